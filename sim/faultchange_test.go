package sim_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

// changed is a life in which a rule of a file changes the lab.
type changed struct {
	name    string
	backend string // "": both
	rule    string // YAML, without name
	// at says what must be so when the rule has fired, before it heals.
	at func(l *sim.Lab) error
	// lost says that the pod's volume does not come back.
	lost bool
}

// Each change that a rule makes happens at the call that it matched, heals after
// its time, and the life goes on to its end with nothing left.
func TestChanges(t *testing.T) {
	is := func(what string, f func(l *sim.Lab) bool) func(*sim.Lab) error {
		return func(l *sim.Lab) error {
			if !f(l) {
				return errors.New("it is not so: " + what)
			}
			return nil
		}
	}
	for _, tc := range []changed{
		{name: "session", rule: "{hop: STORAGE, op: ATTACH, nth: 1, do: session-killed}"},
		{name: "password", rule: "{hop: csi, op: ControllerPublishVolume, nth: 1, do: {password-rotated: {for: 3m}}}"},
		{name: "password at the backend", rule: "{hop: STORAGE, op: ATTACH, nth: 1, do: {password-rotated: {for: 3m}}}"},
		{name: "power", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {power-loss: {for: 1m}}}",
			at: is("node-1 is off", func(l *sim.Lab) bool { return l.OtherNode("node-2") == "" })},
		{name: "power between commands", rule: "{hop: host, op: exec mkfs.ext4, phase: after, nth: 1, do: {power-loss: {for: 1m}}}"},
		{name: "power at the attach", rule: "{hop: STORAGE, op: ATTACH, phase: before, nth: 1, do: {power-loss: {node: node-1, for: 1m}}}"},
		{name: "power at a write", rule: "{hop: kube, op: create volumeattachments, phase: before, nth: 1, do: {power-loss: {node: node-1, for: 1m}}}"},
		{name: "partition of the call", rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {partition: {for: 3m}}}"},
		{name: "partition of the answer", rule: "{hop: STORAGE, op: ATTACH, phase: after, nth: 1, do: {partition: {for: 3m}}}"},
		{name: "partition of a node", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {partition: {a: node-1, b: control-plane, for: 2m}}}"},
		{name: "partition at a write", rule: "{hop: kube, op: create volumeattachments, phase: before, nth: 1, do: {partition: {for: 1m}}}"},
		{name: "crash of the backend", rule: "{hop: STORAGE, op: ATTACH, phase: after, nth: 1, do: {crash: {component: BACKEND, for: 1m}}}"},
		{name: "crash of the driver with its state", rule: "{hop: csi, op: ControllerPublishVolume, phase: after, nth: 1, do: {crash: {component: driver-controller, state: lost, for: 30s}}}"},
		{name: "crash of who has no part", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {crash: {component: csi-provisioner}}}"},
		{name: "VM moves", backend: sim.VSphere, rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: vm-moved}"},
		{name: "VM moves in the call", backend: sim.VSphere, rule: "{hop: vcenter, op: CnsAttachVolume, phase: after, nth: 1, do: vm-moved}"},
		{name: "datastores", backend: sim.VSphere, rule: "{hop: csi, op: CreateVolume, phase: before, nth: 1, do: {datastore-maintenance: {for: 3m}}}"},
		{name: "errors of I/O", rule: "{hop: csi, op: NodeStageVolume, phase: before, nth: 1, do: {io-error: {for: 1m}}}"},
		{name: "errors of I/O in a command", rule: "{hop: host, op: exec mkfs.ext4, phase: before, nth: 1, do: {io-error: {of: writes, for: 1m}}}"},
		{name: "read-only", rule: "{hop: csi, op: NodeUnpublishVolume, phase: before, nth: 1, do: {read-only-remount: {for: 10m}}}"},
		{name: "bits that heal", rule: "{hop: csi, op: NodeUnpublishVolume, phase: before, nth: 1, do: {bit-flip: {offset: 900000, mask: 255, for: 1m}}}"},
		{name: "VLUN", backend: sim.HPE, rule: "{hop: csi, op: ControllerUnpublishVolume, phase: before, nth: 1, do: vlun-removed}"},
		{name: "VLUN in the call", backend: sim.HPE, rule: "{hop: wsapi, op: 'DELETE /vluns/*', phase: before, nth: 1, do: vlun-removed}"},
		{name: "LUN", backend: sim.HPE, rule: "{hop: csi, op: ControllerUnpublishVolume, phase: before, nth: 1, do: lun-renumbered}"},
		{name: "volume", rule: "{hop: csi, op: DeleteVolume, phase: before, nth: 1, do: volume-deleted}"},
		{name: "volume in the call", rule: "{hop: STORAGE, op: DELETE, phase: before, nth: 1, do: volume-deleted}"},
		{name: "volume in its task", backend: sim.VSphere, rule: "{hop: vcenter, op: 'task:CnsDeleteVolume', phase: before, nth: 1, do: volume-deleted}"},
	} {
		for _, backend := range []string{sim.VSphere, sim.HPE} {
			if tc.backend != "" && tc.backend != backend {
				continue
			}
			t.Run(tc.name+"/"+backend, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T) { liveWith(t, tc, backend) })
			})
		}
	}
}

func liveWith(t *testing.T, tc changed, backend string) {
	lab := simtest.New(t, simtest.Bubble(), simtest.With(func(o *sim.Options) { o.Backend = backend }))
	ctx := hour(t)
	time.Sleep(time.Second) // until the last node is registered
	ops := lab.Operations()
	what := "vcenter"
	if backend == sim.HPE {
		what = "csp"
	}
	text := strings.NewReplacer("STORAGE", string(lab.StorageHop()), "ATTACH", fmt.Sprintf("%q", ops.Attach), "DELETE,", fmt.Sprintf("%q,", ops.Delete), "BACKEND", what).Replace(tc.rule)
	text = "apiVersion: csilab.dev/v1\nkind: FaultPlan\nrules:\n- " + strings.Replace(text, "{", "{name: the fault, ", 1) + "\n"
	rules, err := faultfile.Parse("f.yaml", []byte(text), faultfile.Lab{World: lab, Nodes: lab.Nodes()})
	must(t, err)
	fired := make(chan bool, 1)
	var at atomic.Uint64
	rules[0].Tell = func(c fault.Call) {
		open := lab.Ledger.Open(ledger.OnHop(c.Hop, c.Op), ledger.By(c.Component))
		at.Store(open[len(open)-1].Seq)
		fired <- true
	}
	armed := lab.Inject(rules[0])
	if tc.at != nil {
		go func() {
			<-fired
			time.Sleep(10 * time.Second)
			if err := tc.at(lab); err != nil {
				t.Error(err)
			}
		}()
	}
	start(ctx, t, lab, "app", "node-1", "data")
	must(t, lab.Write(ctx, "app", "/data/a", "through the fault"))
	must(t, lab.Check(ctx))
	must(t, lab.Expect(ctx, "app", "/data/a", "through the fault"))
	must(t, lab.DeletePod(ctx, "app"))
	must(t, lab.DeletePVC(ctx, "data"))
	must(t, lab.Converge(ctx))
	must(t, lab.Empty(ctx))
	must(t, lab.Unfired())
	// A partition decides on the call that made it too.
	hit := lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Fault == "the fault" || e.Seq == at.Load() })
	if armed.Fired() != 1 || len(hit) != 1 || string(hit[0].Hop) != string(rules[0].Hop) {
		t.Errorf("fired %d times (%v), in the ledger:\n%s", armed.Fired(), armed.Missed(), ledger.Text(hit))
	}
}

// What a lab can't do is refused when a plan is read for it, with the rule's place
// and what the lab has; a rule in Go does not fire and says why.
func TestChangesThatALabHasNot(t *testing.T) {
	for kind, backend := range map[string]string{"vlun-removed": sim.VSphere, "lun-renumbered": sim.VSphere, "{stale-device: {by: b}}": sim.VSphere,
		"vm-moved": sim.HPE, "vm-deleted": sim.HPE, "datastore-maintenance": sim.HPE, "certificate-changed": sim.VSphere} {
		bubble(t, func(t *testing.T) {
			lab := simtest.New(t, simtest.Bubble(), simtest.With(func(o *sim.Options) { o.Backend = backend }))
			text := "apiVersion: csilab.dev/v1\nkind: FaultPlan\nrules:\n- name: a\n  do: " + kind + "\n"
			_, err := faultfile.Parse("f.yaml", []byte(text), faultfile.Lab{World: lab})
			if err == nil || !strings.Contains(err.Error(), "f.yaml:5:7: rules[0].do: ") || !strings.Contains(err.Error(), "this lab has the backend "+backend) {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		lab.Inject(fault.Rule{Name: "no array", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.RemoveVLUN("", "")})
		lab.Inject(fault.Rule{Name: "nothing mounted", Hop: ledger.CSI, Op: "CreateVolume", Do: fault.MakeReadOnly("", "node-1", 0)})
		lab.Inject(fault.Rule{Name: "nobody", Hop: ledger.CSI, Op: "CreateVolume", Do: fault.CrashWith(fault.CrashParams{Component: "nobody", State: "lost"})})
		start(ctx, t, lab, "app", "node-1", "data")
		end(ctx, t, lab, "app", "data")
		err := lab.Unfired()
		for _, want := range []string{"no array", "no like of it", "nothing mounted", "which the call names, is not there", `nobody (crash nobody with its state: component "nobody": allowed are`} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("missing %q in %v", want, err)
			}
		}
	})
}
