package hpe_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/transport"
)

// system is the backend over the simulated provider and arrays, in memory.
type system struct {
	csi.ControllerServer
	csi.GroupControllerServer
	san      *san.SAN
	provider *csp.Server
	led      *ledger.Ledger
	plan     *fault.Plan
	records  *record.Memory
	cluster  *kube.Memory
	secrets  map[string]string
	backend  *hpe.Backend
	net      *transport.Memory
	options  func(*hpe.Options) // of the next start
	// restartProvider starts a provider that knows what is on the arrays, only.
	restartProvider func(*testing.T)
	// start replaces the backend by a new one, as a restart of the driver does.
	start func()
	// crash ends the call under way, and the driver with it.
	crash atomic.Pointer[context.CancelFunc]
	died  atomic.Bool
}

type systemConfig struct {
	san  san.Config
	csp  csp.Config
	conf hpe.Config
}

func newSystem(t *testing.T, change ...func(*systemConfig)) *system {
	t.Helper()
	s := &system{led: &ledger.Ledger{}, plan: &fault.Plan{Seed: 1}, records: record.NewMemory(), cluster: &kube.Memory{}}
	in := &fault.Interceptor{Ledger: s.led, Plan: s.plan}
	mem := transport.NewMemory()
	s.net = mem
	listen := func(addr string) net.Listener {
		l, err := mem.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	c := systemConfig{san: san.Config{Seed: 1, Arrays: []san.ArrayConfig{{Config: array.Config{Name: "array1", CopyMiBs: 1 << 20}}}},
		csp: csp.Config{Backoff: []time.Duration{}}, conf: hpe.Config{Cluster: s.cluster, Pause: time.Millisecond}}
	for _, f := range change {
		f(&c)
	}
	for i := range c.san.Arrays {
		c.san.Arrays[i].Listener = listen(c.san.Arrays[i].Name + ":443")
	}
	c.san.In, c.san.Component = in, "csp"
	var err error
	if s.san, err = san.New(context.Background(), c.san); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.san.Close)
	for _, a := range s.san.Arrays() {
		c.csp.Arrays = append(c.csp.Arrays, csp.Array{Name: a.Name(), URL: a.URL(), Backends: []string{a.Name()}, FileService: fileServer})
	}
	c.csp.Listener, c.csp.Dial, c.csp.In = listen("csp:8080"), mem, in
	if s.provider, err = csp.New(context.Background(), c.csp); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.provider.Close() })
	s.restartProvider = func(t *testing.T) {
		s.provider.Close()
		c.csp.Listener = listen("csp:8080")
		if s.provider, err = csp.New(context.Background(), c.csp); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(s.provider.URL())
	if err != nil {
		t.Fatal(err)
	}
	s.secrets = map[string]string{"serviceName": u.Hostname(), "servicePort": u.Port(), "backend": "array1", "username": san.DefaultUser, "password": san.DefaultPassword}
	s.start = func() {
		opt := hpe.Options{Config: c.conf, Dial: mem.DialContext, Records: s.records}
		if s.options != nil {
			s.options(&opt)
		}
		b, err := hpe.New(opt)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close(context.Background()) })
		s.ControllerServer = controller.New(controller.Config{Backend: b, MinBytes: hpe.MinBytes, MaxBytes: hpe.MaxBytes, FSTypes: hpe.FSTypes})
		s.GroupControllerServer = controller.NewGroups(b)
		s.backend = b
	}
	s.start()
	for i := range 2 {
		if err := s.cluster.PutNodeInfo(t.Context(), kube.NodeInfo{Name: fmt.Sprint("node-", i+1), UUID: fmt.Sprint("uuid-", i+1), Networks: []string{fmt.Sprintf("10.0.0.%d/24", i+11)},
			IQNs: []string{fmt.Sprint("iqn.1994-05.com.redhat:", i+1)}, WWPNs: []string{fmt.Sprintf("100000109b00%04x", i+1)}}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *system) createRequest(name string, size int64, change ...func(*csi.CreateVolumeRequest)) *csi.CreateVolumeRequest {
	q := &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapabilities: []*csi.VolumeCapability{mount("")},
		Parameters: map[string]string{"accessProtocol": "iscsi", "cpg": san.DefaultCPG}, Secrets: s.secrets}
	for _, f := range change {
		f(q)
	}
	return q
}

func (s *system) create(t *testing.T, name string, change ...func(*csi.CreateVolumeRequest)) (*csi.Volume, error) {
	t.Helper()
	res, err := s.CreateVolume(t.Context(), s.createRequest(name, 1<<30, change...))
	return res.GetVolume(), err
}

func fromVolume(id string) func(*csi.CreateVolumeRequest) {
	return func(q *csi.CreateVolumeRequest) {
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
	}
}

func fromSnapshot(id string) func(*csi.CreateVolumeRequest) {
	return func(q *csi.CreateVolumeRequest) {
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: id}}}
	}
}

func (s *system) publish(ctx context.Context, id, node string, change ...func(*csi.ControllerPublishVolumeRequest)) (map[string]string, error) {
	q := &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: mount(""), VolumeContext: map[string]string{"accessProtocol": "iscsi"}, Secrets: s.secrets}
	for _, f := range change {
		f(q)
	}
	res, err := s.ControllerPublishVolume(ctx, q)
	return res.GetPublishContext(), err
}

func (s *system) unpublish(ctx context.Context, id, node string) error {
	_, err := s.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node, Secrets: s.secrets})
	return err
}

func (s *system) delete(ctx context.Context, id string) error {
	_, err := s.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id, Secrets: s.secrets})
	return err
}

// count of virtual volumes whose record has the id, on all arrays.
func (s *system) count(id string) (n int) {
	for _, a := range s.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			if got, _ := csp.IDOf(v.Name, v.Comment); got == id {
				n++
			}
		}
	}
	return n
}

// exportedTo are the hosts that an array exports anything to.
func (s *system) exportedTo() string {
	hosts := map[string]bool{}
	for _, a := range s.san.Arrays() {
		for _, e := range a.Exports() {
			hosts[e.Host] = true
		}
	}
	var out []string
	for _, h := range []string{"iqn-node-1", "iqn-node-2"} {
		if hosts[h] {
			out = append(out, h)
		}
	}
	return strings.Join(out, " ")
}

// step repeats a call until it succeeds, as sidecars do.
func (s *system) step(ctx context.Context, name string, call func(context.Context) error) error {
	var err error
	for range 20 {
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		s.crash.Store(&cancel)
		err = call(one)
		cancel()
		if s.died.Swap(false) {
			s.start()
		}
		if err == nil {
			return nil
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Internal, codes.ResourceExhausted:
		default:
			return fmt.Errorf("%s: %w", name, err)
		}
		time.Sleep(time.Millisecond) // as a back-off
	}
	return fmt.Errorf("%s: no convergence: %w", name, err)
}

// lifecycle takes a volume through everything and looks at the array after each
// step: one of each name, exported where it should be, nothing left.
func (s *system) lifecycle(ctx context.Context, name string) error {
	var vol, snap, group string
	has := func(id string, n int) func() error {
		return func() error {
			if got := s.count(id); got != n {
				return fmt.Errorf("%d of %s on the array, want %d", got, id, n)
			}
			return nil
		}
	}
	on := func(hosts string) func() error {
		return func() error {
			if got := s.exportedTo(); got != hosts {
				return fmt.Errorf("exported to %q, want %q", got, hosts)
			}
			return nil
		}
	}
	create := func(name string, id *string, change ...func(*csi.CreateVolumeRequest)) func(context.Context) error {
		return func(ctx context.Context) error {
			res, err := s.CreateVolume(ctx, s.createRequest(name, 1<<30, change...))
			if id != nil {
				*id = res.GetVolume().GetVolumeId()
			}
			return err
		}
	}
	publish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error { _, err := s.publish(ctx, vol, node); return err }
	}
	unpublish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error { return s.unpublish(ctx, vol, node) }
	}
	remove := func(id string) func(context.Context) error {
		return func(ctx context.Context) error { return s.delete(ctx, id) }
	}
	for _, x := range []struct {
		name  string
		call  func(context.Context) error
		check func() error
	}{
		{"create", create(name, &vol), has(name, 1)},
		{"publish", publish("uuid-1"), on("iqn-node-1")},
		{"snapshot", func(ctx context.Context) error {
			res, err := s.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap-" + name, SourceVolumeId: vol, Secrets: s.secrets})
			snap = res.GetSnapshot().GetSnapshotId()
			return err
		}, has("snap-"+name, 1)},
		{"restore", func(ctx context.Context) error { return create("r-"+name, nil, fromSnapshot(snap))(ctx) }, has("r-"+name, 1)},
		{"delete snapshot", func(ctx context.Context) error {
			_, err := s.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap, Secrets: s.secrets})
			return err
		}, has("snap-"+name, 0)},
		{"clone", func(ctx context.Context) error { return create("c-"+name, nil, fromVolume(vol))(ctx) }, has("c-"+name, 1)},
		{"expand", func(ctx context.Context) error {
			res, err := s.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, Secrets: s.secrets})
			if err == nil && res.GetCapacityBytes() != 2<<30 {
				return fmt.Errorf("grown to %d", res.GetCapacityBytes())
			}
			return err
		}, nil},
		{"group snapshot", func(ctx context.Context) error {
			res, err := s.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: "g-" + name, SourceVolumeIds: []string{vol, "r-" + name}, Secrets: s.secrets})
			group = res.GetGroupSnapshot().GetGroupSnapshotId()
			if err == nil && len(res.GetGroupSnapshot().GetSnapshots()) != 2 {
				return fmt.Errorf("group snapshot %v", res)
			}
			return err
		}, nil},
		{"delete group snapshot", func(ctx context.Context) error {
			_, err := s.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: group, Secrets: s.secrets})
			return err
		}, nil},
		{"unpublish", unpublish("uuid-1"), on("")},
		{"publish on the other", publish("uuid-2"), on("iqn-node-2")},
		{"unpublish from the other", unpublish("uuid-2"), on("")},
		{"delete", remove(name), has(name, 0)},
		{"delete the restored", remove("r-" + name), has("r-"+name, 0)},
		{"delete the clone", remove("c-" + name), has("c-"+name, 0)},
	} {
		if err := s.step(ctx, x.name, x.call); err != nil {
			return err
		}
		if x.check != nil {
			if err := x.check(); err != nil {
				return fmt.Errorf("after %s: %w", x.name, err)
			}
		}
	}
	return s.left(ctx)
}

// left says what is left on the arrays and in the records.
func (s *system) left(ctx context.Context) error {
	for _, a := range s.san.Arrays() {
		for _, v := range append(a.Volumes(), a.Snapshots()...) {
			return fmt.Errorf("%s is left on %s: %s", v.Name, a.Name(), v.Comment)
		}
		var sets []array.Set
		a.Look(func(core *array.Array) { sets = core.VolumeSets() })
		for _, set := range sets {
			return fmt.Errorf("volume set %s is left: %s", set.Name, set.Comment)
		}
		for _, h := range a.Hosts() {
			return fmt.Errorf("host %s is left", h.Name)
		}
	}
	recs, err := s.records.List(ctx)
	if err != nil || len(recs) > 0 {
		return fmt.Errorf("records left: %v, %v", recs, err)
	}
	return nil
}

// TestSweep runs the life cycle once clean, then once for every call that it
// made to the provider and each fault: the caller repeats, and ends where the
// clean run did. CSILAB_FULL=1 takes all calls, else those that change
// something and a sample of the others.
func TestSweep(t *testing.T) {
	t.Run("device", func(t *testing.T) { sweep(t, (*system).lifecycle) })
	t.Run("share", func(t *testing.T) { sweep(t, (*system).shareLife) })
}

func sweep(t *testing.T, life func(*system, context.Context, string) error) {
	s := newSystem(t)
	if err := life(s, t.Context(), "pvc-00000000-0000-0000-0000-000000000000"); err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, e := range s.led.Entries(ledger.OnHop(ledger.CSP)) {
		calls = append(calls, e.Op)
	}
	t.Logf("%d calls", len(calls))
	forget := fault.Func("forget tokens", func(context.Context, fault.Call) error { s.provider.ForgetTokens(); return nil })
	kill := fault.Func("kill the driver", func(context.Context, fault.Call) error {
		s.died.Store(true)
		(*s.crash.Load())()
		return fault.ErrDrop
	})
	for i, f := range []struct {
		name  string
		phase fault.Phase
		do    fault.Action
		all   bool // of the calls that change something
	}{
		{"request lost", fault.Before, fault.Drop(), false},
		{"reply lost", fault.After, fault.Drop(), true},
		{"500 before", fault.Before, fault.Error(&csp.Fault{Status: 500, Message: "boom"}), false},
		{"500 after", fault.After, fault.Error(&csp.Fault{Status: 500, Message: "boom"}), false},
		{"a page after", fault.After, fault.Error(&csp.Fault{Status: 503, Body: csp.HTMLBody}), false},
		{"401 after", fault.After, fault.Error(&csp.Fault{Status: 401, Message: "boom"}), false},
		{"tokens forgotten", fault.Before, forget, false},
		{"driver killed before", fault.Before, kill, false},
		{"driver killed after", fault.After, kill, true},
	} {
		t.Run(f.name, func(t *testing.T) {
			for n := 1; n <= len(calls); n++ {
				changes := !strings.HasPrefix(calls[n-1], "GET ")
				if os.Getenv("CSILAB_FULL") == "" && !(f.all && changes) && (n+3*i)%12 != 0 {
					continue
				}
				var seen atomic.Int64
				nth := int64(n)
				rule := s.plan.Arm(fault.Rule{Name: fmt.Sprintf("%s, call %d", f.name, n), Hop: ledger.CSP, Phase: f.phase, Do: f.do, MayNotFire: true,
					Match: func(c fault.Call) bool { return seen.Add(1) == nth }})
				from := s.led.Len()
				// As long as names in a cluster, and alike where an array cuts them.
				err := life(s, t.Context(), fmt.Sprintf("pvc-00000000-0000-0000-0000-%06d%06d", i, n))
				s.plan.Disarm(rule)
				if err != nil {
					t.Errorf("call %d (%s): %v\n%s", n, calls[n-1], err, ledger.Text(s.led.Entries(ledger.After(uint64(from)))))
					return
				}
			}
		})
	}
}
