package scenarios

import (
	"context"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:          "backend-unreachable",
		Text:          "the backend answers nothing for a while: pods run on, what is asked meanwhile waits with an event, and all of it is done afterwards, once",
		Labels:        []string{"session", "attach", "fault"},
		Flow:          unreachable,
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what was begun before the outage",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:     "datastore-maintenance",
		Backends: []string{sim.VSphere},
		Text:     "no datastore takes a volume: the claim waits with the reason as an event, volumes that are there stay in use, and the claim is served afterwards",
		Labels:   []string{"provision", "fault"},
		Flow:     maintenance,
		Mutation: "a DeleteVolume that answers OK and leaves the volume",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
		},
	})
}

// outage loses all that is sent to the vCenter, and what it answers, until end
// is called.
func outage(l *sim.Lab) (end func()) {
	var rules []*fault.Armed
	for _, p := range []fault.Phase{fault.Before, fault.After} {
		rules = append(rules, l.Inject(fault.Rule{Name: "the backend is out of reach", Hop: l.StorageHop(), Phase: p, Do: fault.Drop(), MayNotFire: true,
			Match: func(c fault.Call) bool { return c.Component == "driver-controller" }}))
	}
	return func() {
		for _, r := range rules {
			l.Disarm(r)
		}
	}
}

func unreachable(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	here, there, later := claim("here", "fast", "256Mi"), claim("there", "fast", "256Mi"), claim("later", "fast", "256Mi")
	moved := pod("moves", l.OtherNode(a), there)
	var end func()
	return steps(
		func() error { return l.Create(ctx, here, there) },
		func() error { _, err := l.Bound(ctx, "here"); return err },
		func() error { _, err := l.Bound(ctx, "there"); return err },
		func() error { return l.Create(ctx, pod("stays", a, here), pod("moves", a, there)) },
		func() error { _, err := l.Running(ctx, "stays"); return err },
		func() error { _, err := l.Running(ctx, "moves"); return err },
		func() error { return l.Write(ctx, "stays", "/here/a", "before the outage") },
		func() error { return l.Write(ctx, "moves", "/there/a", "before the move") },
		// The outage begins when a volume has just been made and nobody knows.
		func() error {
			l.Inject(fault.Rule{Name: "the outage begins", Hop: l.StorageHop(), Op: l.Operations().Create, Phase: fault.After, Nth: 1,
				Do: fault.Func("the outage begins", func(context.Context, fault.Call) error { end = outage(l); return fault.ErrDrop })})
			return l.Create(ctx, later)
		},
		func() error { return l.HasEvent(ctx, later, "ProvisioningFailed", "") },
		func() error { return noteEvent(l, "during the outage", later, "ProvisioningFailed") },
		func() error { return l.DeletePod(ctx, "moves") },
		func() error { return l.Create(ctx, moved, pod("new", a, later)) },
		func() error { return l.Write(ctx, "stays", "/here/b", "in the outage") },
		func() error { return l.Expect(ctx, "stays", "/here/a", "before the outage") },
		func() error { return l.HasEvent(ctx, moved, "FailedAttachVolume", "") },
		func() error { end(); return nil },
		func() error { _, err := l.Running(ctx, "moves"); return err },
		func() error { return l.Expect(ctx, "moves", "/there/a", "before the move") },
		func() error { _, err := l.Running(ctx, "new"); return err },
		func() error { return l.Write(ctx, "new", "/later/a", "after the outage") },
		func() error { return backendVolumes(l, 3) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "stays") },
		func() error { return l.DeletePod(ctx, "moves") },
		func() error { return l.DeletePod(ctx, "new") },
		func() error { return l.DeletePVC(ctx, "here") },
		func() error { return l.DeletePVC(ctx, "there") },
		func() error { return l.DeletePVC(ctx, "later") },
		func() error { return l.Empty(ctx) },
	)
}

func maintenance(ctx context.Context, l *sim.Lab) error {
	old, late := claim("old", "fast", "256Mi"), claim("late", "fast", "256Mi")
	all := func(on bool) error {
		for _, d := range l.VCenter().DatastoreNames() {
			if err := l.VCenter().DatastoreMaintenance(d, on); err != nil {
				return err
			}
		}
		return nil
	}
	return steps(
		func() error { return l.Create(ctx, old, pod("app", "", old)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return all(true) },
		func() error { return l.Create(ctx, late, pod("waits", "", late)) },
		func() error { return l.HasEvent(ctx, late, "ProvisioningFailed", "") },
		func() error { return noteEvent(l, "in maintenance", late, "ProvisioningFailed") },
		func() error { return l.Write(ctx, "app", "/old/a", "as ever") },
		func() error { return all(false) },
		func() error { _, err := l.Running(ctx, "waits"); return err },
		func() error { return l.Write(ctx, "waits", "/late/a", "at last") },
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "waits") },
		func() error { return l.DeletePVC(ctx, "old") },
		func() error { return l.DeletePVC(ctx, "late") },
		func() error { return l.Empty(ctx) },
	)
}
