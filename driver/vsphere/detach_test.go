package vsphere_test

import (
	"context"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func (r *rig) holds(node, volume string) bool {
	for _, d := range r.vc.Disks()[r.vc.VMUUID(node)] {
		if d.VolumeID == volume {
			return true
		}
	}
	return false
}

func TestDetach(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 11, Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}, {Name: "node-3"}}}, nil)
	n1, n2, n3 := r.vc.VMUUID("node-1"), r.vc.VMUUID("node-2"), r.vc.VMUUID("node-3")
	vol := r.create("pvc-1")
	attach := func(t *testing.T, node string) {
		t.Helper()
		if _, err := r.publish(vol, node); err != nil {
			t.Fatal(err)
		}
	}
	const nobody = "42000000-0000-4000-8000-000000000000"

	t.Run("missing volume", func(t *testing.T) {
		for _, v := range []string{"no-uuid", nobody} {
			if err := r.unpublish(v, n1); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("another node holds it", func(t *testing.T) {
		attach(t, n1)
		for _, node := range []string{n2, nobody, "no-uuid"} {
			if err := r.unpublish(vol, node); err != nil {
				t.Errorf("%s: %v", node, err)
			}
			if !r.holds("node-1", vol) {
				t.Fatalf("unpublish for %s took the disk from node-1", node)
			}
		}
	})
	t.Run("look-up fails", func(t *testing.T) {
		// kubernetes-sigs/vsphere-csi-driver#1038: none of these means gone.
		for _, x := range []struct {
			do   fault.Action
			code codes.Code
		}{
			{fault.Error(&vcenter.Fault{Fault: &types.NotAuthenticated{}}), codes.Unavailable},
			{fault.Error(&vcenter.Fault{Fault: &types.NoPermission{PrivilegeId: "System.Read"}}), codes.PermissionDenied},
			{fault.Error(&vcenter.Fault{Fault: &types.RuntimeFault{}}), codes.Internal},
			{fault.Drop(), codes.Unavailable},
		} {
			rule := r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: "FindByUuid", Do: x.do})
			want(t, r.unpublish(vol, n1), x.code)
			if rule.Fired() == 0 {
				t.Errorf("%s never fired", rule.Name)
			}
			r.plan.Disarm(rule)
			if !r.holds("node-1", vol) {
				t.Fatal("the disk is gone")
			}
		}
	})
	t.Run("VM powered off", func(t *testing.T) {
		if err := r.vc.PowerOff("node-1"); err != nil {
			t.Fatal(err)
		}
		_, err := r.publish(vol, n2)
		want(t, err, codes.FailedPrecondition, "node-1", n1)
		if err := r.unpublish(vol, n1); err != nil {
			t.Fatal(err)
		}
		attach(t, n2)
	})
	t.Run("VM deleted", func(t *testing.T) {
		if err := r.vc.DeleteVM("node-2"); err != nil {
			t.Fatal(err)
		}
		// The answer needs the list of VMs: without it, it isn't known.
		rule := r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: "RetrievePropertiesEx", Do: fault.Error(&vcenter.Fault{Fault: &types.NoPermission{}})})
		want(t, r.unpublish(vol, n2), codes.PermissionDenied)
		r.plan.Disarm(rule)
		if err := r.unpublish(vol, n2); err != nil {
			t.Fatal(err)
		}
		_, err := r.publish(vol, n2)
		want(t, err, codes.NotFound, n2)
		attach(t, n3)
	})
	t.Run("from all nodes", func(t *testing.T) {
		for range 2 {
			if err := r.unpublish(vol, ""); err != nil {
				t.Fatal(err)
			}
		}
		if r.holds("node-3", vol) {
			t.Error("node-3 still holds it")
		}
	})
}

// An attach whose caller has gone is waited for by the detach: it must not
// land afterwards.
func TestDetachAfterAbandonedAttach(t *testing.T) {
	r := newRig(t, slow("CnsAttachVolume", 300*time.Millisecond), nil)
	vol := r.create("pvc-1")
	ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
	defer cancel()
	old := r.ctx
	r.ctx = ctx
	_, err := r.publish(vol, r.vc.VMUUID("node-1"))
	r.ctx = old
	want(t, err, codes.DeadlineExceeded)
	if err := r.unpublish(vol, r.vc.VMUUID("node-1")); err != nil {
		t.Fatal(err)
	}
	time.Sleep(400 * time.Millisecond) // longer than the attach takes
	if r.holds("node-1", vol) {
		t.Error("the attach landed after the detach")
	}
}

func TestAttachLimit(t *testing.T) {
	// 60 slots, less the boot disk.
	r := newRig(t, vcenter.Config{Seed: 12, Nodes: []vcenter.Node{{Name: "node-1", OtherDisks: 55}}}, nil)
	node := r.vc.VMUUID("node-1")
	var last string
	for i := range 59 - 55 {
		last = r.create("pvc-" + string(rune('A'+i)))
		if _, err := r.publish(last, node); err != nil {
			t.Fatalf("volume %d: %v", i+1, err)
		}
	}
	vol := r.create("pvc-one-more")
	_, err := r.publish(vol, node)
	want(t, err, codes.ResourceExhausted, "node-1")
	if err := r.unpublish(last, node); err != nil {
		t.Fatal(err)
	}
	if _, err := r.publish(vol, node); err != nil {
		t.Error(err)
	}
	_, err = r.publish("42000000-0000-4000-8000-000000000000", node)
	want(t, err, codes.NotFound, "volume")
	_, err = r.publish(vol, "42000000-0000-4000-8000-000000000000")
	want(t, err, codes.NotFound, "node")
}

// A disk that CNS has no longer on record leaves the VM that has it, at any
// point at which the driver dies too; without that nobody could ever take it
// from there (kubernetes-sigs/vsphere-csi-driver#1274).
func TestDetachOfWhatCNSForgot(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 13}, nil)
	n1, n2 := r.vc.VMUUID("node-1"), r.vc.VMUUID("node-2")
	for i, at := range []struct {
		op    string
		phase fault.Phase
	}{{}, {"DetachDisk_Task", fault.Before}, {"DetachDisk_Task", fault.After}, {"CnsDetachVolume", fault.After}} {
		vol := r.create("pvc-" + string(rune('a'+i)))
		if _, err := r.publish(vol, n1); err != nil {
			t.Fatal(err)
		}
		if err := r.vc.ForgetVolume(vol); err != nil {
			t.Fatal(err)
		}
		// Nobody else's unpublish takes it away.
		if err := r.unpublish(vol, n2); err != nil {
			t.Fatal(err)
		}
		if !r.holds("node-1", vol) {
			t.Fatal("unpublish for node-2 took the disk from node-1")
		}
		if at.op != "" {
			r.plan.Arm(fault.Rule{Hop: ledger.VCenter, Op: at.op, Phase: at.phase, Nth: 1, Do: fault.Crash("driver")})
			if err := r.unpublish(vol, n1); err == nil {
				t.Fatalf("%s %s: no error of a driver that died", at.phase, at.op)
			}
			r.restart()
		}
		for range 2 {
			if err := r.unpublish(vol, n1); err != nil {
				t.Fatalf("%s %s: %v", at.phase, at.op, err)
			}
		}
		if r.holds("node-1", vol) {
			t.Fatalf("%s %s: node-1 still has the disk", at.phase, at.op)
		}
		_, err := r.publish(vol, n2)
		want(t, err, codes.NotFound, vol)
	}
}
