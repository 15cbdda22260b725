package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	_ "github.com/vmware/govmomi/cns/simulator"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	_ "github.com/vmware/govmomi/pbm/simulator"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // vcsim logs what it refuses
	os.Exit(m.Run())
}

// server is one of the two that are compared.
type server struct {
	close func()
	ours  *vcenter.VCenter // or
	stock *simulator.Model
	soap  *govmomi.Client
	cns   *cns.Client

	volumes   int   // that it was filled with
	perVolume int64 // bytes of heap that each took
}

// sides are what is compared: ours first.
var sides = []struct {
	name  string
	start func(ctx context.Context) (*server, error)
}{
	{"csilab", startOurs},
	{"stock", startStock},
}

func startOurs(ctx context.Context) (*server, error) {
	v, err := vcenter.New(ctx, vcenter.Config{TLS: true, Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}, {Name: "node-4"}}})
	if err != nil {
		return nil, err
	}
	s := &server{ours: v, close: v.Close}
	if s.soap, err = govmomi.NewClient(ctx, v.URL(), true); err != nil {
		v.Close()
		return nil, err
	}
	return s, s.connect(ctx)
}

func startStock(ctx context.Context) (*server, error) {
	m := simulator.VPX()
	if err := m.Create(); err != nil {
		return nil, err
	}
	m.Service.TLS = new(tls.Config)
	m.Service.RegisterEndpoints = true
	srv := m.Service.NewServer()
	s := &server{stock: m, close: func() { srv.Close(); m.Remove() }}
	var err error
	if s.soap, err = govmomi.NewClient(ctx, srv.URL, true); err != nil {
		s.close()
		return nil, err
	}
	return s, s.connect(ctx)
}

func (s *server) connect(ctx context.Context) (err error) {
	s.cns, err = cns.NewClient(ctx, s.soap.Client)
	return err
}

func (s *server) stop() {
	s.soap.CloseIdleConnections()
	s.cns.CloseIdleConnections()
	s.close()
}

func spec(name string, ds *types.ManagedObjectReference) cnstypes.CnsVolumeCreateSpec {
	c := cnstypes.CnsVolumeCreateSpec{
		Name: name, VolumeType: string(cnstypes.CnsVolumeTypeBlock),
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
			ClusterType: string(cnstypes.CnsClusterTypeKubernetes), ClusterId: "bench", VSphereUser: "administrator@vsphere.local", ClusterFlavor: string(cnstypes.CnsClusterFlavorVanilla)}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}},
	}
	if ds != nil {
		c.Datastores = []types.ManagedObjectReference{*ds}
	}
	return c
}

// datastore is what stock needs to be told: it does not choose.
func (s *server) datastore() *types.ManagedObjectReference {
	if s.stock == nil {
		return nil
	}
	r := s.stock.Service.Context.Map.Any("Datastore").Reference()
	return &r
}

func result(ctx context.Context, t *object.Task, err error) (string, error) {
	if err != nil {
		return "", err
	}
	info, err := t.WaitForResult(ctx)
	if err != nil {
		return "", err
	}
	b, ok := info.Result.(cnstypes.CnsVolumeOperationBatchResult)
	if !ok || len(b.VolumeResults) != 1 {
		return "", fmt.Errorf("result %T", info.Result)
	}
	r := b.VolumeResults[0].GetCnsVolumeOperationResult()
	if r.Fault != nil {
		return "", fmt.Errorf("%T %s", r.Fault.Fault, r.Fault.LocalizedMessage)
	}
	return r.VolumeId.Id, nil
}

func (s *server) create(ctx context.Context, name string, ds *types.ManagedObjectReference) (string, error) {
	t, err := s.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{spec(name, ds)})
	return result(ctx, t, err)
}

func (s *server) delete(ctx context.Context, id string) error {
	t, err := s.cns.DeleteVolume(ctx, []cnstypes.CnsVolumeId{{Id: id}}, true)
	_, err = result(ctx, t, err)
	return err
}

// heap in use after a collection, in bytes.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// compare runs one measurement on both sides and reports how many times faster
// ours is, by wall clock and by CPU.
func compare(b *testing.B, measure func(b *testing.B, s *server)) {
	type cost struct{ wall, cpu float64 } // seconds per operation
	of := map[string]cost{}               // of the last run of each, the longest
	for _, side := range sides {
		b.Run(side.name, func(b *testing.B) {
			s, err := side.start(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer s.stop()
			b.ResetTimer()
			cpu := cpuTime()
			measure(b, s)
			b.StopTimer()
			c := cost{b.Elapsed().Seconds() / float64(b.N), (cpuTime() - cpu).Seconds() / float64(b.N)}
			b.ReportMetric(c.cpu*1e3, "cpu-ms/op")
			b.ReportMetric(1/c.wall, "op/s")
			of[side.name] = c
		})
	}
	ratio(b, of["stock"].wall/of["csilab"].wall, "x-stock")
}

// reportCPU reports what an operation takes from now until the call of what it
// returns.
func reportCPU(b *testing.B) func() {
	cpu := cpuTime()
	return func() { b.ReportMetric((cpuTime()-cpu).Seconds()*1e3/float64(b.N), "cpu-ms/op") }
}

// ratio reports a figure that belongs to both sides.
func ratio(b *testing.B, x float64, unit string) {
	b.Run("ratio", func(b *testing.B) {
		for range b.N {
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(x, unit)
	})
}

// Both sides are what they seem in a process that has registered stock's CNS.
func TestSidesAreApart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, side := range sides {
		s, err := side.start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.create(ctx, "a", s.datastore())
		if err != nil {
			t.Fatal(err)
		}
		// Stock's tasks are named, ours are not, as CNS's.
		task, err := s.cns.ExtendVolume(ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, CapacityInMb: 2}})
		if err != nil {
			t.Fatal(err)
		}
		info, err := task.WaitForResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if ours := info.Name == ""; ours != (s.ours != nil) {
			t.Errorf("%s: task %q", side.name, info.Name)
		}
		s.stop()
	}
}
