package vsphere

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csilab/csilab/driver/controller"
)

// metrics have the names and labels of upstream's driver, so that dashboards
// and alerts carry over. A nil value counts nothing.
type metrics struct {
	cns, csi *prometheus.HistogramVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	buckets := []float64{.1, .25, .5, 1, 2, 5, 10, 15, 20, 25, 30, 60, 120, 180}
	m := &metrics{
		cns: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vsphere_cns_volume_ops_histogram",
			Help: "Duration of CNS operations in seconds.", Buckets: buckets}, []string{"optype", "status"}),
		csi: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vsphere_csi_volume_ops_histogram",
			Help: "Duration of CSI volume operations in seconds.", Buckets: buckets}, []string{"voltype", "optype", "status", "faulttype"}),
	}
	for _, c := range []prometheus.Collector{m.cns, m.csi} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func passed(err error) string {
	if err != nil {
		return "fail"
	}
	return "pass"
}

// observeCNS counts one CNS operation; call it deferred with the result.
func (m *metrics) observeCNS(op string, began time.Time, err *error) {
	if m != nil {
		m.cns.WithLabelValues(op, passed(*err)).Observe(time.Since(began).Seconds())
	}
}

// observeCSI counts one operation of the controller service.
func (m *metrics) observeCSI(op string, began time.Time, err *error) {
	if m == nil {
		return
	}
	fault := ""
	if *err != nil {
		fault = "csi.fault." + controller.KindOf(*err).String()
	}
	m.csi.WithLabelValues("block", op, passed(*err), fault).Observe(time.Since(began).Seconds())
}
