package vsphere_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

type options = vsphere.Options

// rig is a driver's controller before a vCenter of the lab.
type rig struct {
	t    *testing.T
	ctx  context.Context
	vc   *vcenter.VCenter
	plan *fault.Plan
	in   *fault.Interceptor
	led  *ledger.Ledger

	conf    vsphere.Config
	records record.Store
	opt     func(*options)

	mu      sync.Mutex // guards life and kill
	life    context.Context
	kill    context.CancelFunc
	backend *vsphere.Backend
	csi.ControllerServer
}

func newRig(t *testing.T, cfg vcenter.Config, opt func(*options)) *rig {
	t.Helper()
	r := &rig{t: t, plan: &fault.Plan{Seed: 1}, led: &ledger.Ledger{}, records: record.NewMemory(), opt: opt}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), 8*time.Minute)
	t.Cleanup(cancel)
	r.in = &fault.Interceptor{Plan: r.plan, Ledger: r.led, OnCrash: func(string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.kill()
	}}
	if cfg.Nodes == nil {
		cfg.Nodes = []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}
	}
	cfg.In = r.in
	vc, err := vcenter.New(r.ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.vc = vc
	t.Cleanup(vc.Close)
	t.Cleanup(r.in.Close)
	r.conf, err = vsphere.ParseConfig([]byte(vc.Conf("cluster-1")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.TLS {
		r.conf.VCenter.Scheme = "http"
	}
	r.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.backend.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, a := range r.plan.Unfired() {
			t.Errorf("rule never fired: %s", a.Name)
		}
	})
	return r
}

// start makes a driver on the records that there are.
func (r *rig) start() {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	r.mu.Lock()
	r.life, r.kill = ctx, cancel
	r.mu.Unlock()
	o := vsphere.Options{Config: r.conf, Records: r.records, Settle: 200 * time.Millisecond, CallTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)}
	if testing.Verbose() {
		o.Log = slog.New(slog.NewTextHandler(writer{r.t}, nil))
	}
	if r.opt != nil {
		r.opt(&o)
	}
	b, err := vsphere.New(ctx, o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.backend = b
	r.ControllerServer = controller.New(controller.Config{Backend: b})
}

// restartDead restarts the driver if it was killed.
func (r *rig) restartDead() bool {
	if r.life.Err() == nil {
		return false
	}
	r.restart()
	return true
}

// restart kills the driver and starts a new one.
func (r *rig) restart() {
	r.t.Helper()
	r.kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	r.backend.Close(ctx)
	r.start()
}

type writer struct{ t *testing.T }

func (w writer) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

var writer1 = &csi.VolumeCapability{
	AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4"}},
	AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
}

func createRequest(name string, bytes int64) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: bytes}, VolumeCapabilities: []*csi.VolumeCapability{writer1}}
}

func (r *rig) create(name string) string {
	r.t.Helper()
	res, err := r.CreateVolume(r.ctx, createRequest(name, 1<<30))
	if err != nil {
		r.t.Fatalf("create %s: %v", name, err)
	}
	return res.GetVolume().GetVolumeId()
}

func (r *rig) publish(volume, node string) (map[string]string, error) {
	res, err := r.ControllerPublishVolume(r.ctx, &csi.ControllerPublishVolumeRequest{VolumeId: volume, NodeId: node, VolumeCapability: writer1})
	return res.GetPublishContext(), err
}

func (r *rig) unpublish(volume, node string) error {
	_, err := r.ControllerUnpublishVolume(r.ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: volume, NodeId: node})
	return err
}

func (r *rig) snapshot(name, volume string) (*csi.Snapshot, error) {
	res, err := r.CreateSnapshot(r.ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return res.GetSnapshot(), err
}

func (r *rig) delete(volume string) error {
	_, err := r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: volume})
	return err
}

// want fails unless err has the code and its text holds all of parts.
func want(t *testing.T, err error, code codes.Code, parts ...string) {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	for _, p := range parts {
		if err != nil && !strings.Contains(err.Error(), p) {
			t.Errorf("error %q doesn't say %q", err, p)
		}
	}
}
