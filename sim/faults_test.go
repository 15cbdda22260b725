package sim_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
	"github.com/csilab/csilab/sim/vcenter"
)

// Each kind of fault on each hop of a lab: the rule fires, the ledger shows
// what its caller saw, and the life goes on to its end with nothing left.
func TestFaultOnEachHop(t *testing.T) {
	csiError := func(c codes.Code) fault.Action { return fault.Error(status.Error(c, "injected")) }
	vcError := fault.Error(&vcenter.Fault{Fault: &types.HostNotConnected{}})
	kubeError := fault.Error(apierrors.NewServerTimeout(schema.GroupResource{Resource: "things"}, "write", 1))
	for _, tc := range []struct {
		name    string
		rule    fault.Rule
		outcome ledger.Outcome
		code    string        // of the ledger; "" is not looked at
		takes   time.Duration // the call at least
		crashes string        // the component that starts again
		before  string        // component that is restarted to make the call happen
		rescue  string        // component that is restarted after five minutes
	}{
		{name: "csi error before", outcome: ledger.Refused, code: "ResourceExhausted",
			rule: fault.Rule{Hop: ledger.CSI, Op: "CreateVolume", Nth: 1, Do: csiError(codes.ResourceExhausted)}},
		{name: "csi error after", outcome: ledger.MaybeApplied, code: "Internal",
			rule: fault.Rule{Hop: ledger.CSI, Op: "ControllerPublishVolume", Phase: fault.After, OnlySuccess: true, Nth: 1, Do: csiError(codes.Internal)}},
		{name: "csi drop before", outcome: ledger.Refused,
			rule: fault.Rule{Hop: ledger.CSI, Op: "NodePublishVolume", Nth: 1, Do: fault.Drop()}},
		{name: "csi drop after create", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "csi drop after unstage", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.CSI, Op: "NodeUnstageVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "csi delay", outcome: ledger.OK, takes: 30 * time.Second,
			rule: fault.Rule{Hop: ledger.CSI, Op: "NodeStageVolume", Nth: 1, Do: fault.Delay(30 * time.Second)}},
		// The attacher gives a call 15 s (external-attacher --timeout).
		{name: "csi hang", outcome: ledger.Refused, takes: 15 * time.Second,
			rule: fault.Rule{Hop: ledger.CSI, Op: "ControllerPublishVolume", Nth: 1, Do: fault.Hang()}},
		{name: "csi crash of the controller", outcome: ledger.MaybeApplied, crashes: "driver-controller",
			rule: fault.Rule{Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, Nth: 1, Do: fault.Crash("driver-controller")}},
		{name: "csi crash of the node service", outcome: ledger.MaybeApplied, crashes: "driver@node-1",
			rule: fault.Rule{Hop: ledger.CSI, Op: "NodeStageVolume", Phase: fault.After, Nth: 1, Do: fault.Crash("driver@node-1")}},
		{name: "csi crash of the kubelet", outcome: ledger.MaybeApplied, crashes: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.CSI, Op: "NodePublishVolume", Phase: fault.After, Nth: 1, Do: fault.Crash("kubelet@node-1")}},

		{name: "vcenter error before", outcome: ledger.Refused, code: "HostNotConnected",
			rule: fault.Rule{Hop: ledger.VCenter, Op: "CnsCreateVolume", Nth: 1, Do: vcError}},
		{name: "vcenter error after", outcome: ledger.MaybeApplied, code: "HostNotConnected",
			rule: fault.Rule{Hop: ledger.VCenter, Op: "CnsCreateVolume", Phase: fault.After, Nth: 1, Do: vcError}},
		{name: "vcenter task fails", outcome: ledger.Refused, code: "HostNotConnected",
			rule: fault.Rule{Hop: ledger.VCenter, Op: "task:CnsAttachVolume", Nth: 1, Do: vcError}},
		{name: "vcenter task fails after its commit", outcome: ledger.MaybeApplied, code: "HostNotConnected",
			rule: fault.Rule{Hop: ledger.VCenter, Op: "task:CnsDetachVolume", Phase: fault.After, Nth: 1, Do: vcError}},
		{name: "vcenter drop after", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.VCenter, Op: "CnsAttachVolume", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "vcenter delay", outcome: ledger.OK, takes: 20 * time.Second,
			rule: fault.Rule{Hop: ledger.VCenter, Op: "task:CnsDetachVolume", Nth: 1, Do: fault.Delay(20 * time.Second)}},
		{name: "vcenter hang", outcome: ledger.Refused, takes: time.Second,
			rule: fault.Rule{Hop: ledger.VCenter, Op: "CnsCreateVolume", Nth: 1, Do: fault.Hang()}},
		{name: "vcenter crash of the controller", outcome: ledger.MaybeApplied, crashes: "driver-controller",
			rule: fault.Rule{Hop: ledger.VCenter, Op: "CnsDeleteVolume", Phase: fault.After, Nth: 1, Do: fault.Crash("driver-controller")}},

		{name: "host error before", outcome: ledger.Refused,
			rule: fault.Rule{Hop: ledger.Host, Op: "exec mkfs.ext4", Nth: 1, Do: fault.Error(syscall.EIO)}},
		{name: "host error after", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.Host, Op: "Mount", Phase: fault.After, Nth: 1, Do: fault.Error(syscall.EIO)}},
		{name: "host drop after unmount", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.Host, Op: "Unmount", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "host delay", outcome: ledger.OK, takes: 10 * time.Second,
			rule: fault.Rule{Hop: ledger.Host, Op: "exec mkfs.ext4", Nth: 1, Do: fault.Delay(10 * time.Second)}},
		// The driver can't give up a command that hangs in the kernel, and refuses
		// to start another; only its end helps.
		{name: "host hang", outcome: ledger.Refused, takes: 5 * time.Minute, rescue: "driver@node-1", crashes: "driver@node-1",
			rule: fault.Rule{Hop: ledger.Host, Op: "exec blkid", Nth: 1, Do: fault.Hang()}},
		{name: "host crash of the node service", outcome: ledger.MaybeApplied, crashes: "driver@node-1",
			rule: fault.Rule{Hop: ledger.Host, Op: "exec mkfs.ext4", Phase: fault.After, Nth: 1, Do: fault.Crash("")}},
		{name: "host crash of the kubelet", outcome: ledger.MaybeApplied, crashes: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Host, Component: "kubelet@node-1", Op: "WriteFile", Phase: fault.After, Nth: 1, Do: fault.Crash("")}},

		{name: "registration error before", outcome: ledger.Refused, code: "Unavailable", before: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "GetInfo", Nth: 1, Do: csiError(codes.Unavailable)}},
		{name: "registration error after", outcome: ledger.MaybeApplied, code: "Internal", before: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "NotifyRegistrationStatus", Phase: fault.After, Nth: 1, Do: csiError(codes.Internal)}},
		{name: "registration drop after", outcome: ledger.MaybeApplied, before: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "GetInfo", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "registration delay", outcome: ledger.OK, takes: 500 * time.Millisecond, before: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "GetInfo", Nth: 1, Do: fault.Delay(500 * time.Millisecond)}},
		{name: "registration hang", outcome: ledger.Refused, takes: time.Second, before: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "GetInfo", Nth: 1, Do: fault.Hang()}},
		{name: "registration crash of the kubelet", outcome: ledger.MaybeApplied, before: "kubelet@node-1", crashes: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Registration, Component: "kubelet@node-1", Op: "NotifyRegistrationStatus", Phase: fault.After, Nth: 1, Do: fault.Crash("")}},

		{name: "kube error before", outcome: ledger.Refused, code: "ServerTimeout",
			rule: fault.Rule{Hop: ledger.Kube, Op: "create volumeattachments", Nth: 1, Do: kubeError}},
		{name: "kube error after", outcome: ledger.MaybeApplied, code: "ServerTimeout",
			rule: fault.Rule{Hop: ledger.Kube, Op: "create persistentvolumes", Phase: fault.After, Nth: 1, Do: kubeError}},
		{name: "kube drop after", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.Kube, Op: "delete volumeattachments", Phase: fault.After, Nth: 1, Do: fault.Drop()}},
		{name: "kube delay", outcome: ledger.OK, takes: 10 * time.Second,
			rule: fault.Rule{Hop: ledger.Kube, Op: "create persistentvolumes", Nth: 1, Do: fault.Delay(10 * time.Second)}},
		{name: "kube crash of the kubelet", outcome: ledger.MaybeApplied, crashes: "kubelet@node-1",
			rule: fault.Rule{Hop: ledger.Kube, Component: "kubelet@node-1", Op: "update-status pods", Phase: fault.After, Nth: 1, Do: fault.Crash("")}},
		{name: "kube crash of the provisioner", outcome: ledger.MaybeApplied,
			rule: fault.Rule{Hop: ledger.Kube, Op: "create persistentvolumes", Phase: fault.After, Nth: 1, Do: fault.Crash("")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.Bubble())
				ctx := hour(t)
				time.Sleep(time.Second) // until the last node is registered
				tc.rule.Name = tc.name
				starts := lab.Starts(tc.crashes)
				armed := lab.Inject(tc.rule)
				if tc.before != "" {
					starts++
					lab.Crash(tc.before)
					time.Sleep(time.Minute)
				}
				if tc.rescue != "" {
					defer time.AfterFunc(6*time.Minute, func() { lab.Crash(tc.rescue) }).Stop()
				}
				start(ctx, t, lab, "app", "node-1", "data")
				must(t, lab.Write(ctx, "app", "/data/a", "through the fault"))
				must(t, lab.Check(ctx))
				end(ctx, t, lab, "app", "data")

				must(t, lab.Unfired())
				if armed.Fired() != 1 {
					t.Errorf("fired %d times", armed.Fired())
				}
				hit := lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Fault == tc.name })
				if len(hit) != 1 {
					t.Fatalf("the ledger names the fault on %d calls:\n%s", len(hit), ledger.Text(hit))
				}
				e := hit[0]
				if e.Outcome != tc.outcome || tc.code != "" && e.Code != tc.code || e.Duration < tc.takes {
					t.Errorf("%v after %v, want %s %s after at least %v", e, e.Duration, tc.outcome, tc.code, tc.takes)
				}
				if tc.crashes != "" && lab.Starts(tc.crashes) <= starts {
					t.Errorf("%s was not started again", tc.crashes)
				}
				if tc.outcome == ledger.OK {
					return
				}
				again := func(o ledger.Entry) bool { return o.Seq > e.Seq && o.Hop == e.Hop }
				if len(lab.Ledger.Entries(again)) == 0 {
					t.Errorf("nobody called again after %v", e)
				}
			})
		})
	}
}

// A lost connection loses the replies of all calls on it. The ledger says so
// of the others too: they may be applied.
func TestDropHasOtherVictims(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		must(t, lab.Create(ctx, claim("a"), claim("b")))
		for _, c := range []string{"a", "b"} {
			_, err := lab.Bound(ctx, c)
			must(t, err)
		}
		a, b := lab.VolumeID("a"), lab.VolumeID("b")
		gate := fault.NewGate()
		held := lab.Inject(fault.Rule{Name: "attach of a waits", Hop: ledger.VCenter, Op: "CnsAttachVolume", Nth: 1, Do: gate})
		must(t, lab.Create(ctx, pod("a", "node-1", "a")))
		if _, err := gate.Reached(ctx); err != nil {
			t.Fatal(err)
		}
		lab.Inject(fault.Rule{Name: "reply of b lost", Hop: ledger.CSI, Op: "ControllerPublishVolume", Volume: b, Phase: fault.After, Nth: 1, Do: fault.Drop()})
		must(t, lab.Create(ctx, pod("b", "node-2", "b")))
		_, err := lab.Running(ctx, "b")
		must(t, err)
		gate.Release()
		lab.Disarm(held)
		_, err = lab.Running(ctx, "a")
		must(t, err)
		victims := lab.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerPublishVolume"), func(e ledger.Entry) bool {
			return e.Volume == a && e.Outcome == ledger.MaybeApplied && strings.Contains(e.Error, "other victim")
		})
		if len(victims) == 0 {
			t.Errorf("the publish of the other volume is no victim:\n%s", ledger.Text(lab.Ledger.Entries(ledger.OnHop(ledger.CSI, "ControllerPublishVolume"))))
		}
		must(t, lab.Check(ctx))
		must(t, lab.DeletePod(ctx, "a"))
		must(t, lab.DeletePVC(ctx, "a"))
		end(ctx, t, lab, "b", "b")
	})
}
