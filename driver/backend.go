package driver

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/node"
	"github.com/csilab/csilab/driver/node/guest"
	"github.com/csilab/csilab/driver/node/san"
	"github.com/csilab/csilab/driver/vsphere"
)

// metricsPrefix begins the names of a backend's metrics.
var metricsPrefix = map[Backend]string{VSphere: "vsphere_csi", HPE: "hpe_csi"}

// controllerBackend is a storage system with a beginning and an end.
type controllerBackend interface {
	controller.Backend
	// Probe says what keeps it from being ready.
	Probe(context.Context) error
	Close(context.Context) error
}

func (d *Driver) controllerBackend(ctx context.Context, registry prometheus.Registerer) (b controllerBackend, err error) {
	records, err := d.records()
	if err != nil {
		return nil, err
	}
	switch d.cfg.Backend {
	case HPE:
		b, err = hpe.New(hpe.Options{Config: *d.cfg.HPE, Dial: d.cfg.Dial, Records: records, Forgetful: d.cfg.Records == nil && d.cfg.StateDir == "", Log: d.log})
	default:
		// What the backend has under way must be able to end after ctx has.
		b, err = vsphere.NewSeveral(context.WithoutCancel(ctx), vsphere.Options{
			Config: *d.cfg.VSphere, ConfigFile: d.cfg.ConfigFile, Getenv: d.cfg.Getenv, Watch: d.cfg.Watch,
			Dial: d.cfg.Dial, Records: records, Log: d.log, Registerer: registry,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	return b, nil
}

// nodeBackend is how volumes come to this node.
func (d *Driver) nodeBackend() (node.Backend, error) {
	switch d.cfg.Backend {
	case HPE:
		cfg := san.Config{Host: d.cfg.Host, NodeName: d.cfg.NodeName, Wait: d.cfg.DeviceWait, Log: d.log,
			CHAP: san.SecretName{Name: d.cfg.HPE.CHAPSecretName, Namespace: d.cfg.HPE.CHAPSecretNamespace}}
		if c := d.cfg.HPE.Cluster; c != nil {
			cfg.Cluster = c
		}
		return san.New(cfg)
	default:
		return guest.New(guest.Config{Host: d.cfg.Host, Watch: d.cfg.Watch, Wait: d.cfg.DeviceWait, Log: d.log})
	}
}
