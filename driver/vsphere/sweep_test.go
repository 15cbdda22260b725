package vsphere_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// step is one call of a caller that repeats it until it succeeds, as sidecars
// do: a code that isn't final, or Internal, is tried again.
func (r *rig) step(name string, call func(context.Context) error) error {
	var err error
	for range 12 {
		ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
		err = call(ctx)
		cancel()
		if r.restartDead() {
			// No reply leaves a dead process.
			err = status.Error(codes.Unavailable, "the driver was killed")
			continue
		}
		if err == nil {
			return nil
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Internal, codes.ResourceExhausted:
		default:
			return fmt.Errorf("%s: %w", name, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("%s: no convergence: %w", name, err)
}

// lifecycle takes one volume through everything and checks the backend after
// each step: one volume and one snapshot for one name, whatever went wrong.
func (r *rig) lifecycle(name string) error {
	var vol, clone, snap string
	n1, n2 := r.vc.VMUUID("node-1"), r.vc.VMUUID("node-2")
	publish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: vol, NodeId: node, VolumeCapability: writer1})
			return err
		}
	}
	unpublish := func(node string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := r.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: vol, NodeId: node})
			return err
		}
	}
	on := func(nodes ...string) func() error {
		return func() error {
			for node, uuid := range map[string]string{"node-1": n1, "node-2": n2} {
				want := 0
				for _, n := range nodes {
					if n == uuid {
						want = 1
					}
				}
				has := 0
				for _, d := range r.vc.Disks()[uuid] {
					if d.VolumeID == vol {
						has++
					}
				}
				if has != want {
					return fmt.Errorf("%s has the disk %d times, want %d", node, has, want)
				}
			}
			return nil
		}
	}
	volumes := func(name string, n int) func() error {
		return func() error {
			has := 0
			for _, v := range r.vc.Volumes() {
				if v.Name == name {
					has++
				}
			}
			if has != n {
				return fmt.Errorf("%d volumes have the name %s, want %d", has, name, n)
			}
			return nil
		}
	}
	snapshots := func(n int) func() error {
		return func() error {
			has := 0
			for _, s := range r.vc.Snapshots() {
				if s.Volume == vol {
					has++
				}
			}
			if has != n {
				return fmt.Errorf("%d snapshots, want %d", has, n)
			}
			return nil
		}
	}
	create := func(ctx context.Context) error {
		res, err := r.CreateVolume(ctx, createRequest(name, 1<<30))
		vol = res.GetVolume().GetVolumeId()
		return err
	}
	for _, s := range []struct {
		name  string
		call  func(context.Context) error
		check func() error
	}{
		{"create", create, volumes(name, 1)},
		{"publish", publish(n1), on(n1)},
		{"snapshot", func(ctx context.Context) error {
			res, err := r.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap-" + name, SourceVolumeId: vol})
			snap = res.GetSnapshot().GetSnapshotId()
			return err
		}, snapshots(1)},
		{"restore", func(ctx context.Context) error {
			q := createRequest("clone-"+name, 1<<30)
			q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snap}}}
			res, err := r.CreateVolume(ctx, q)
			clone = res.GetVolume().GetVolumeId()
			return err
		}, volumes("clone-"+name, 1)},
		{"delete snapshot", func(ctx context.Context) error {
			_, err := r.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: snap})
			return err
		}, snapshots(0)},
		{"expand", func(ctx context.Context) error {
			_, err := r.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: vol, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}})
			return err
		}, nil},
		{"unpublish", unpublish(n1), on()},
		{"publish on the other", publish(n2), on(n2)},
		{"unpublish from the other", unpublish(n2), on()},
		{"delete", func(ctx context.Context) error {
			_, err := r.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: vol})
			return err
		}, volumes(name, 0)},
		{"delete the clone", func(ctx context.Context) error {
			_, err := r.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: clone})
			return err
		}, volumes("clone-"+name, 0)},
	} {
		if err := r.step(s.name, s.call); err != nil {
			return err
		}
		if s.check != nil {
			if err := s.check(); err != nil {
				return fmt.Errorf("after %s: %w", s.name, err)
			}
		}
	}
	recs, err := r.records.List(r.ctx)
	if err != nil || len(recs) > 0 {
		return fmt.Errorf("records left: %v, %v", recs, err)
	}
	return nil
}

// The tasks of the CNS run aside and take some time, so that a fault may hit
// while one runs.
var latency = map[string]time.Duration{"CnsCreateVolume": 2 * time.Millisecond, "CnsAttachVolume": 2 * time.Millisecond,
	"CnsCreateSnapshots": 2 * time.Millisecond}

func changes(op string) bool {
	return strings.HasPrefix(op, "Cns") && !strings.HasPrefix(op, "CnsQuery")
}

// TestSweep runs the life cycle once clean, and then once for calls that it
// made to the vCenter and each fault. CSILAB_FULL=1 takes all calls.
func TestSweep(t *testing.T) {
	quick := func(o *options) { o.Settle = 30 * time.Millisecond; o.CallTimeout = 2 * time.Second }
	r := newRig(t, vcenter.Config{Seed: 3, TaskLatency: latency}, quick)
	if err := r.lifecycle("clean"); err != nil {
		t.Fatal(err)
	}
	var calls []string
	for _, e := range r.led.Entries(ledger.OnHop(ledger.VCenter)) {
		if e.Component == "driver-controller" {
			calls = append(calls, e.Op)
		}
	}
	t.Logf("%d calls", len(calls))
	notAuthenticated := fault.Error(&vcenter.Fault{Fault: &types.NotAuthenticated{}})
	kill := fault.Func("kill sessions", func(context.Context, fault.Call) error { r.vc.KillSessions(); return nil })
	for i, f := range []struct {
		name  string
		phase fault.Phase
		do    fault.Action
		all   bool // of the calls that change something
	}{
		{"request lost", fault.Before, fault.Drop(), false},
		{"reply lost", fault.After, fault.Drop(), true},
		{"error after commit", fault.After, notAuthenticated, true},
		{"session killed before", fault.Before, kill, false},
		{"session killed after", fault.After, kill, false},
		{"driver killed before", fault.Before, fault.Crash(""), false},
		{"driver killed after", fault.After, fault.Crash(""), true},
	} {
		t.Run(f.name, func(t *testing.T) {
			r.t = t
			for n := 1; n <= len(calls); n++ {
				// Where the reply counts every call that changes something, and
				// a sample of the others, which differs from fault to fault.
				if os.Getenv("CSILAB_FULL") == "" && !(f.all && changes(calls[n-1])) && (n+3*i)%20 != 0 {
					continue
				}
				var seen atomic.Int64
				nth := int64(n)
				rule := r.plan.Arm(fault.Rule{Name: fmt.Sprintf("%s, call %d", f.name, n), Hop: ledger.VCenter, Component: "driver-controller",
					Phase: f.phase, Do: f.do, MayNotFire: true,
					Match: func(c fault.Call) bool { return seen.Add(1) == nth }})
				from := r.led.Len()
				err := r.lifecycle(fmt.Sprintf("%s-%d", f.name, n))
				r.plan.Disarm(rule)
				if err != nil {
					t.Errorf("call %d (%s): %v\n%s", n, calls[n-1], err, ledger.Text(r.led.Entries(ledger.OnHop(ledger.VCenter), ledger.After(uint64(from)))))
					return
				}
			}
		})
	}
}
