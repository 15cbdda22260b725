package vsphere_test

import (
	"testing"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// TestFirstReadingLost: a login whose first reading gets no answer is tried
// again, and leaves no session behind.
func TestFirstReadingLost(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 31}, nil)
	r.plan.Arm(fault.Rule{Name: "first reading", Hop: ledger.VCenter, Op: "RetrievePropertiesEx", Nth: 1, Do: fault.Drop()})
	if _, err := r.CreateVolume(r.ctx, createRequest("pvc-1", 1<<30)); err == nil {
		t.Error("created although the login could not be finished")
	}
	r.create("pvc-1")
	deadline := time.Now().Add(10 * time.Second)
	for r.vc.Sessions("driver-controller") != 1 {
		if time.Now().After(deadline) {
			t.Fatalf("%d sessions, want 1", r.vc.Sessions("driver-controller"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// A view whose destruction is delivered twice is gone, which says nothing about
// the session: there is one still.
func TestViewDestroyedTwice(t *testing.T) {
	r := newRig(t, vcenter.Config{Seed: 32}, nil)
	r.plan.Arm(fault.Rule{Name: "twice", Hop: ledger.VCenter, Op: "DestroyView", Nth: 1, Do: fault.Duplicate(false, 0)})
	r.create("pvc-1")
	if n, logins := r.vc.Sessions("driver-controller"), r.calls("Login"); n != 1 || logins != 1 {
		t.Errorf("%d sessions after %d logins, want 1", n, logins)
	}
}
