package sim_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/mount-utils"

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
	// at is asked right after the rule has acted, in the same call: what must be so
	// then.
	at func(l *sim.Lab) bool
	// then is asked at the end, with what was called from the rule's call on.
	then func(l *sim.Lab, es []ledger.Entry) bool
}

// some says that there is an entry of a kind.
func some(is func(e ledger.Entry) bool) func(*sim.Lab, []ledger.Entry) bool {
	return func(_ *sim.Lab, es []ledger.Entry) bool { return slices.ContainsFunc(es, is) }
}

// failed says that a call of an operation was answered with an error.
func failed(op string) func(*sim.Lab, []ledger.Entry) bool {
	return some(func(e ledger.Entry) bool { return e.Op == op && e.Error != "" })
}

func noSession(l *sim.Lab) bool {
	if l.Backend() == sim.HPE {
		return l.SAN().Arrays()[0].Sessions() == 0
	}
	return len(l.VCenter().SessionList()) == 0
}

func isOff(l *sim.Lab) bool { return l.OtherNode("node-2") == "" }

func noHost(l *sim.Lab) bool {
	_, has := l.ArrayHost("node-1")
	return !has && len(l.LUNs("node-1")) == 0
}

// restarted says that a component was started more than once.
func restarted(name string) func(*sim.Lab, []ledger.Entry) bool {
	return func(l *sim.Lab, _ []ledger.Entry) bool { return l.Starts(name) > 1 }
}

// cut says that a partition stood against a call.
var cut = some(func(e ledger.Entry) bool { return strings.HasPrefix(e.Fault, "partition: ") })

// gone says that the volume is on the backend no more, or that its disk is not.
func gone(l *sim.Lab) bool {
	if l.Backend() == sim.HPE {
		return l.BackendVolumes() == 0
	}
	for _, v := range l.VCenter().Volumes() {
		if !v.Lost {
			return false
		}
	}
	return true
}

func readOnly(l *sim.Lab) bool {
	ms, err := l.Host("node-1").Mounter().List()
	return err == nil && slices.ContainsFunc(ms, func(m mount.MountPoint) bool {
		return strings.HasPrefix(m.Path, "/var/lib/kubelet/") && slices.Contains(m.Opts, "ro")
	})
}

// Each change that a rule makes happens at the call that it matched, heals after
// its time, and the life goes on to its end with nothing left.
func TestChanges(t *testing.T) {
	for i, tc := range []changed{
		{name: "session", rule: "{hop: STORAGE, op: ATTACH, nth: 1, do: session-killed}", at: noSession},
		{name: "password", rule: "{hop: csi, op: ControllerPublishVolume, nth: 1, do: {password-rotated: {for: 3m}}}", at: noSession, then: failed("ControllerPublishVolume")},
		{name: "password at the backend", rule: "{hop: STORAGE, op: ATTACH, nth: 1, do: {password-rotated: {for: 3m}}}", at: noSession, then: failed("ControllerPublishVolume")},
		{name: "power", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {power-loss: {for: 1m}}}", at: isOff, then: restarted("kubelet@node-1")},
		{name: "power between commands", rule: "{hop: host, op: exec mkfs.ext4, phase: after, nth: 1, do: {power-loss: {for: 1m}}}", at: isOff, then: restarted("driver@node-1")},
		{name: "power at the attach", rule: "{hop: STORAGE, op: ATTACH, phase: before, nth: 1, do: {power-loss: {node: node-1, for: 1m}}}", at: isOff, then: restarted("kubelet@node-1")},
		{name: "power at a write", rule: "{hop: kube, op: create volumeattachments, phase: before, nth: 1, do: {power-loss: {node: node-1, for: 1m}}}", at: isOff},
		{name: "partition of the call", rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {partition: {for: 3m}}}", then: cut},
		{name: "partition of the answer", rule: "{hop: STORAGE, op: ATTACH, phase: after, nth: 1, do: {partition: {for: 3m}}}", then: cut},
		{name: "partition of a node", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {partition: {a: node-1, b: control-plane, for: 2m}}}", then: cut},
		{name: "partition at a write", rule: "{hop: kube, op: create volumeattachments, phase: before, nth: 1, do: {partition: {for: 1m}}}", then: cut},
		{name: "crash of the backend", rule: "{hop: STORAGE, op: ATTACH, phase: after, nth: 1, do: {crash: {component: BACKEND, for: 1m}}}", then: func(l *sim.Lab, _ []ledger.Entry) bool { return l.Starts(storage(l)) > 1 }},
		{name: "crash of the driver with its state", rule: "{hop: csi, op: ControllerPublishVolume, phase: after, nth: 1, do: {crash: {component: driver-controller, state: lost, for: 30s}}}", then: restarted("driver-controller")},
		{name: "crash of who has no part", rule: "{hop: csi, op: NodeStageVolume, phase: after, nth: 1, do: {crash: {component: driver-controller}}}",
			then: func(l *sim.Lab, es []ledger.Entry) bool {
				return l.Starts("driver-controller") == 2 && es[0].Outcome == ledger.OK
			}},
		{name: "VM moves", backend: sim.VSphere, rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: vm-moved}", at: moved},
		{name: "VM moves in the call", backend: sim.VSphere, rule: "{hop: vcenter, op: CnsAttachVolume, phase: after, nth: 1, do: vm-moved}", at: moved},
		{name: "datastores", backend: sim.VSphere, rule: "{hop: csi, op: CreateVolume, phase: before, nth: 1, do: {datastore-maintenance: {for: 3m}}}", then: failed("CreateVolume")},
		{name: "errors of I/O", rule: "{hop: csi, op: NodeStageVolume, phase: before, nth: 1, do: {io-error: {for: 1m}}}", then: failed("NodeStageVolume")},
		{name: "errors of I/O in a command", rule: "{hop: host, op: exec mkfs.ext4, phase: before, nth: 1, do: {io-error: {of: writes, for: 1m}}}", then: failed("exec mkfs.ext4")},
		{name: "read-only", rule: "{hop: csi, op: NodeUnpublishVolume, phase: before, nth: 1, do: {read-only-remount: {for: 10m}}}", at: readOnly},
		{name: "VLUN", backend: sim.HPE, rule: "{hop: csi, op: ControllerUnpublishVolume, phase: before, nth: 1, do: vlun-removed}",
			at: func(l *sim.Lab) bool { return len(l.LUNs("node-1")) == 0 }},
		{name: "VLUN in the call", backend: sim.HPE, rule: "{hop: wsapi, op: 'DELETE /vluns/*', phase: before, nth: 1, do: vlun-removed}",
			at: func(l *sim.Lab) bool { return len(l.LUNs("node-1")) == 0 }},
		{name: "LUN", backend: sim.HPE, rule: "{hop: csi, op: ControllerUnpublishVolume, phase: before, nth: 1, do: lun-renumbered}",
			at: func(l *sim.Lab) bool { return l.LUNs("node-1")[0].LUN > 0 }},
		{name: "no space", rule: "{hop: csi, op: CreateVolume, phase: before, nth: 1, do: {storage-full: {for: 3m}}}", then: failed("CreateVolume")},
		{name: "no space in the call", rule: "{hop: STORAGE, op: CREATE, phase: before, nth: 1, do: {storage-full: {free: 1048576, for: 3m}}}", then: failed("CreateVolume")},
		{name: "account", backend: sim.VSphere, rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {account-locked: {sessions: ended, for: 3m}}}", at: noSession, then: failed("ControllerPublishVolume")},
		{name: "account with its sessions", backend: sim.VSphere, rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {account-locked: {for: 3m}}}",
			at: func(l *sim.Lab) bool { return !noSession(l) }},
		{name: "paths", rule: "{hop: csi, op: NodeStageVolume, phase: before, nth: 1, do: {storage-cut: {for: 3m}}}", then: failed("NodeStageVolume")},
		{name: "late disk", rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {device-late: {by: 50s, for: 3m}}}", then: failed("NodeStageVolume")},
		{name: "disk without a size", rule: "{hop: csi, op: NodeStageVolume, phase: before, nth: 1, do: {device-silent: {for: 3m}}}", then: failed("NodeStageVolume")},
		{name: "host", backend: sim.HPE, rule: "{hop: csi, op: ControllerUnpublishVolume, phase: before, nth: 1, do: host-entry-removed}", at: noHost},
		{name: "host in the call", backend: sim.HPE, rule: "{hop: wsapi, op: 'DELETE /vluns/*', phase: before, nth: 1, do: {host-entry-removed: {node: node-1}}}", at: noHost},
		{name: "off the records", backend: sim.VSphere, rule: "{hop: csi, op: ControllerPublishVolume, phase: before, nth: 1, do: {volume-unregistered: {for: 3m}}}",
			at: func(l *sim.Lab) bool { return l.BackendVolumes() == 0 }, then: failed("ControllerPublishVolume")},
		{name: "volume", rule: "{hop: csi, op: DeleteVolume, phase: before, nth: 1, do: volume-deleted}", at: gone},
		{name: "volume in the call", rule: "{hop: STORAGE, op: DELETE, phase: before, nth: 1, do: volume-deleted}", at: gone},
		{name: "volume in its task", backend: sim.VSphere, rule: "{hop: vcenter, op: 'task:CnsDeleteVolume', phase: before, nth: 1, do: volume-deleted}", at: gone},
	} {
		for _, backend := range []string{sim.VSphere, sim.HPE} {
			if tc.backend != "" && tc.backend != backend || raced && tc.backend == "" && (i%2 == 0) != (backend == sim.VSphere) {
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
	text := strings.NewReplacer("STORAGE", string(lab.StorageHop()), "ATTACH", fmt.Sprintf("%q", ops.Attach), "DELETE,", fmt.Sprintf("%q,", ops.Delete), "CREATE,", fmt.Sprintf("%q,", ops.Create), "BACKEND", what).Replace(tc.rule)
	text = "apiVersion: csilab.dev/v1\nkind: FaultPlan\nrules:\n- " + strings.Replace(text, "{", "{name: the fault, ", 1) + "\n"
	rules, err := faultfile.Parse("f.yaml", []byte(text), faultfile.Lab{World: lab, Nodes: lab.Nodes()})
	must(t, err)
	var at atomic.Uint64
	rules[0].Tell = func(c fault.Call) {
		open := lab.Ledger.Open(ledger.OnHop(c.Hop, c.Op), ledger.By(c.Component))
		at.Store(open[len(open)-1].Seq)
	}
	armed := lab.Inject(rules[0])
	if tc.at != nil {
		look := armed.Rule
		look.Name, look.Tell = "look", nil
		look.Do = fault.NewChange("look", 0, func(context.Context, *fault.Interceptor, fault.Call) (func(), error) {
			if !tc.at(lab) {
				t.Error("the lab is not changed")
			}
			return nil, nil
		})
		lab.Inject(look)
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
	es := lab.Ledger.Entries(func(e ledger.Entry) bool { return e.Seq >= at.Load() })
	if armed.Fired() != 1 || es[0].Hop != rules[0].Hop || es[0].Fault == "" {
		t.Errorf("fired %d times (%v), at %v", armed.Fired(), armed.Missed(), es[0])
	}
	if tc.then != nil && !tc.then(lab, es) {
		t.Errorf("nobody has felt it:\n%s", ledger.Text(es))
	}
}

// moved says that node-1's VM is not where it was first.
func moved(l *sim.Lab) bool {
	return l.VCenter().HostOf("node-1") != l.VCenter().Hosts()[0]
}

// rule is a rule of a fault file, by its kind and parameters in YAML.
func rule(t *testing.T, lab *sim.Lab, at fault.Rule, do string) fault.Rule {
	t.Helper()
	text := fmt.Sprintf("apiVersion: csilab.dev/v1\nkind: FaultPlan\nrules:\n- {name: %q, hop: %s, op: %q, phase: %s, nth: %d, do: %s}\n", at.Name, at.Hop, at.Op, at.Phase, at.Nth, do)
	rules, err := faultfile.Parse("f.yaml", []byte(text), faultfile.Lab{World: lab})
	must(t, err)
	return rules[0]
}

// Data faults keep a pod from starting, and nobody formats what it finds, until
// they heal.
func TestSpoiledDevicesByRule(t *testing.T) {
	for name, do := range map[string]string{"bits": "{bit-flip: {offset: 20, mask: 255}}", "another volume": "{wrong-device: {other: default/other}}", "I/O": "{io-error: {length: 4096, of: reads}}", "no size": "device-silent", "no path": "storage-cut"} {
		t.Run(name, func(t *testing.T) {
			eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
				start(ctx, t, lab, "neighbour", "node-2", "other")
				written(ctx, t, lab)
				must(t, lab.DeletePod(ctx, "app"))
				must(t, lab.Detached(ctx, lab.PVName("data")))
				armed := lab.Inject(rule(t, lab, fault.Rule{Name: "spoiled", Hop: ledger.CSI, Op: "NodeStageVolume", Phase: fault.Before, Nth: 1}, do))
				must(t, lab.Create(ctx, pod("app", "node-2", "data")))
				if _, err := lab.Running(soon(t), "app"); err == nil {
					t.Error("what is spoiled was mounted")
				}
				if name != "another volume" { // which has the neighbour's name meanwhile
					must(t, lab.Broken(ctx)) // nobody has formatted it
				}
				lab.Disarm(armed)
				_, err := lab.Running(ctx, "app")
				must(t, err)
				must(t, lab.Expect(ctx, "app", "/data/a", "content"))
				must(t, lab.Unfired())
				must(t, lab.DeletePod(ctx, "neighbour"))
				must(t, lab.DeletePVC(ctx, "other"))
				end(ctx, t, lab, "app", "data")
			})
		})
	}
}

// A device that holds a filesystem has none for who probes it, until it heals.
func TestBlankDeviceByRule(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		armed := lab.Inject(rule(t, lab, fault.Rule{Name: "blank", Hop: ledger.CSI, Op: "NodePublishVolume", Phase: fault.After, Nth: 1}, "device-blank"))
		start(ctx, t, lab, "app", "node-1", "data")
		must(t, lab.Unfired())
		probe := func() error {
			ms, err := lab.Host("node-1").Mounter().List()
			must(t, err)
			i := slices.IndexFunc(ms, func(m mount.MountPoint) bool { return m.Path == lab.StagingPath("data") })
			out, err := lab.Host("node-1").Exec().Command("blkid", "-p", ms[i].Device).CombinedOutput()
			t.Logf("%s", out)
			return err
		}
		if probe() == nil {
			t.Error("a blank device has a filesystem")
		}
		lab.Disarm(armed)
		must(t, probe())
		must(t, lab.Write(ctx, "app", "/data/a", "content"))
		end(ctx, t, lab, "app", "data")
	})
}

// The snapshot that is to be deleted is gone.
func TestSnapshotRemovedByRule(t *testing.T) {
	eachBackend(t, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
		written(ctx, t, lab)
		s, err := lab.TakeSnapshot(ctx, "cut", "data", "snap")
		must(t, err)
		id := lab.SnapshotHandle(s.Name)
		lab.Inject(rule(t, lab, fault.Rule{Name: "removed", Hop: ledger.CSI, Op: "DeleteSnapshot", Phase: fault.Before, Nth: 1}, "snapshot-removed"))
		lab.Inject(fault.Rule{Name: "look", Hop: ledger.CSI, Op: "DeleteSnapshot", Nth: 1, Do: fault.NewChange("look", 0, func(context.Context, *fault.Interceptor, fault.Call) (func(), error) {
			if lab.OnBackend(id) {
				t.Error("the snapshot is there")
			}
			return nil, nil
		})})
		must(t, lab.DeleteSnapshot(ctx, "cut"))
		end(ctx, t, lab, "app", "data")
		must(t, lab.Unfired())
	})
}

// The VM goes while its disk is detached: the detach succeeds, and the volume is
// free for another node.
func TestVMDeletedByRule(t *testing.T) {
	for op, hop := range map[string]ledger.Hop{"ControllerUnpublishVolume": ledger.CSI, "CnsDetachVolume": ledger.VCenter} {
		bubble(t, func(t *testing.T) {
			lab := simtest.New(t, simtest.Bubble())
			ctx := hour(t)
			time.Sleep(time.Second)
			written(ctx, t, lab)
			lab.Inject(rule(t, lab, fault.Rule{Name: "the VM goes", Hop: hop, Op: op, Phase: fault.Before, Nth: 1}, "{vm-deleted: {node: node-1}}"))
			must(t, lab.DeletePod(ctx, "app"))
			must(t, lab.Detached(ctx, lab.PVName("data")))
			if lab.VCenter().HostOf("node-1") != "" {
				t.Error("the VM is there")
			}
			start(ctx, t, lab, "app", "node-2", "data")
			must(t, lab.Expect(ctx, "app", "/data/a", "content"))
			end(ctx, t, lab, "app", "data")
			must(t, lab.Unfired())
		})
	}
}

// A LUN that belongs to another volume when the first is unstaged: no data is
// crossed, and the volumes can be used again.
func TestStaleDeviceByRule(t *testing.T) {
	bubble(t, func(t *testing.T) {
		lab := simtest.New(t, simtest.OnArray("iscsi"), simtest.Bubble())
		ctx := hour(t)
		time.Sleep(time.Second)
		start(ctx, t, lab, "neighbour", "node-1", "other")
		must(t, lab.Write(ctx, "neighbour", "/other/b", "its own"))
		written(ctx, t, lab)
		lab.Inject(rule(t, lab, fault.Rule{Name: "stale", Hop: ledger.CSI, Op: "NodeUnpublishVolume", Phase: fault.After, Nth: 1}, "{stale-device: {by: default/other}}"))
		must(t, lab.DeletePod(ctx, "app"))
		must(t, lab.Detached(ctx, lab.PVName("data")))
		must(t, lab.Unfired())
		must(t, lab.DeletePod(ctx, "neighbour"))
		must(t, lab.Detached(ctx, lab.PVName("other")))
		start(ctx, t, lab, "app", "node-2", "data")
		must(t, lab.Expect(ctx, "app", "/data/a", "content"))
		start(ctx, t, lab, "neighbour", "node-2", "other")
		must(t, lab.Expect(ctx, "neighbour", "/other/b", "its own"))
		must(t, lab.DeletePod(ctx, "neighbour"))
		must(t, lab.DeletePVC(ctx, "other"))
		end(ctx, t, lab, "app", "data")
	})
}

// A new certificate keeps the driver out until the end of the faulty phase deploys
// it anew.
func TestCertificateChangedByRule(t *testing.T) {
	lab := simtest.New(t, simtest.MemoryHosts())
	ctx := bounded(t)
	must(t, lab.Create(ctx, claim("first"))) // the driver is there, with the old one
	_, err := lab.Bound(ctx, "first")
	must(t, err)
	lab.Inject(rule(t, lab, fault.Rule{Name: "renewed", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.Before, Nth: 1}, "certificate-changed"))
	must(t, lab.Create(ctx, claim("data")))
	pvc, err := lab.PVC("data")
	must(t, err)
	must(t, lab.HasEvent(ctx, pvc, "ProvisioningFailed", "certificate"))
	must(t, lab.Converge(ctx))
	must(t, lab.DeletePVC(ctx, "first"))
	start(ctx, t, lab, "app", "node-1", "data")
	end(ctx, t, lab, "app", "data")
	must(t, lab.Unfired())
}

// What a lab can't do is refused when a plan is read for it, with the rule's place
// and what the lab has; a rule in Go does not fire and says why.
func TestChangesThatALabHasNot(t *testing.T) {
	for kind, backend := range map[string]string{"vlun-removed": sim.VSphere, "lun-renumbered": sim.VSphere, "{stale-device: {by: b}}": sim.VSphere,
		"vm-moved": sim.HPE, "vm-deleted": sim.HPE, "datastore-maintenance": sim.HPE, "certificate-changed": sim.VSphere,
		"host-entry-removed": sim.VSphere, "account-locked": sim.HPE, "volume-unregistered": sim.HPE} {
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
