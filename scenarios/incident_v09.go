package scenarios

import (
	"context"
	"fmt"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:          "create-cancelled",
		Text:          "whoever asked for a volume leaves while it is being made, and sessions end meanwhile: that is no failure of the making, and the next call finds the same volume",
		Labels:        []string{"provision", "session", "crash"},
		Incidents:     []string{"V09 kubernetes-sigs/vsphere-csi-driver#4258"},
		Flow:          createCancelled,
		Mutation:      "a provisioner whose next attempt is for another volume",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:      "restore-outlasts-the-driver",
		Text:      "a restore takes longer than driver and provisioner wait: each retry joins the one that runs, and one copy is made",
		Labels:    []string{"restore", "provision"},
		Incidents: []string{"V08 kubernetes-sigs/vsphere-csi-driver#3024"},
		// A storage provider answers when the copy has begun: see clone-while-copied.
		Backends:      []string{sim.VSphere},
		Flow:          restoreOutlasts,
		Mutation:      "a provisioner that gives each attempt a new name",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:      "tiny-timeouts",
		Text:      "the provisioner waits shorter than the backend takes for any volume: in the end there are as many volumes as claims",
		Labels:    []string{"provision", "timeout"},
		Incidents: []string{"V10 kubernetes-sigs/vsphere-csi-driver#2507, kubernetes-sigs/vsphere-csi-driver#531, kubernetes-sigs/vsphere-csi-driver#558"},
		Options:   func(o *sim.Options) { o.ProvisionTimeout = 300 * time.Millisecond },
		Flow:      tinyTimeouts,
		Mutation:  "a provisioner that gives each attempt a new name",

		MutateOptions: newNames,
	})
}

// making is where the backend makes a volume: a rule there stops it while it
// works, whoever still waits.
func making(l *sim.Lab) fault.Rule {
	if l.Backend() == sim.VSphere {
		return fault.Rule{Hop: ledger.VCenter, Op: "task:" + l.Operations().Create, Phase: fault.Before}
	}
	return fault.Rule{Hop: ledger.WSAPI, Op: "POST /volumes", Phase: fault.After}
}

func createCancelled(ctx context.Context, l *sim.Lab) error {
	c := claim("data", "fast", "256Mi")
	g := fault.NewGate()
	defer g.Release()
	return steps(
		func() error {
			r := making(l)
			r.Name, r.Nth, r.Do = "the volume is being made", 1, g
			l.Inject(r)
			return l.Create(ctx, c)
		},
		func() error { _, err := g.Reached(ctx); return err },
		func() error { l.Crash("csi-provisioner"); return nil },
		func() error { return attempts(ctx, l, "CreateVolume", 2) },
		func() error { l.KillSessions(); return nil },
		func() error { l.Crash("csi-provisioner"); g.Release(); return nil },
		func() error { return l.Create(ctx, pod("app", "", c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "in the one volume") },
		func() error { return backendVolumes(l, 1) },
		func() error {
			if l.Backend() != sim.VSphere {
				return nil // a storage provider may be asked again: it finds what has the name
			}
			return times(l, l.StorageHop(), l.Operations().Create, 1)
		},
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app"}, []string{"data"}) },
	)
}

func restoreOutlasts(ctx context.Context, l *sim.Lab) error {
	restored := claim("restored", "fast", "256Mi", fromSnapshot("snap"))
	on := l.Operations()
	// The driver's own limit was half an hour. Virtual time can wait for that;
	// on the wall the provisioner is sent away as its time-out would do.
	wait := func() error {
		begun := len(asked(l, ledger.CSI, "CreateVolume"))
		if !l.Options().Bubble {
			for range 3 {
				l.Crash("csi-provisioner")
				begun++
				if err := attempts(ctx, l, "CreateVolume", begun); err != nil {
					return err
				}
			}
			return nil
		}
		if err := l.Sleep(ctx, 35*time.Minute); err != nil {
			return err
		}
		if n := len(asked(l, ledger.CSI, "CreateVolume")) - begun; n < 3 {
			return fmt.Errorf("in half an hour CreateVolume was called again %d times: %w", n, errUnexpected)
		}
		return nil
	}
	return steps(
		func() error { return used(ctx, l, "source", "writer", "", "as of the snapshot") },
		func() error { _, err := l.TakeSnapshot(ctx, "snap", "source", "snap"); return err },
		func() error { return l.Write(ctx, "writer", "/source/a", "after the snapshot") },
		func() error {
			hold := l.VCenter().HoldTasks(on.Create)
			defer hold.Release()
			return steps(
				func() error { return l.Create(ctx, restored) },
				func() error { _, err := hold.Wait(ctx); return step(err, "no task makes the volume") },
				wait,
				func() error { return times(l, l.StorageHop(), on.Create, 2) }, // with the source
				func() error { return backendVolumes(l, 1) },
			)
		},
		func() error { return l.Create(ctx, pod("reader", "", restored)) },
		func() error { _, err := l.Running(ctx, "reader"); return err },
		func() error { return l.Expect(ctx, "reader", "/restored/a", "as of the snapshot") },
		func() error { return times(l, l.StorageHop(), on.Create, 2) },
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "reader") },
		func() error { return l.DeletePod(ctx, "writer") },
		func() error { return l.DeletePVC(ctx, "restored") },
		func() error { return l.DeleteSnapshot(ctx, "snap") },
		func() error { return removed(ctx, l, nil, []string{"source"}) },
	)
}

func tinyTimeouts(ctx context.Context, l *sim.Lab) error {
	const n = 4
	name := func(i int) string { return fmt.Sprintf("c%d", i) }
	var pods, claims []string
	return steps(
		func() error {
			r := making(l)
			r.Name, r.First, r.Do = "the backend takes its time", n, fault.Delay(700*time.Millisecond)
			l.Inject(r)
			for i := range n {
				if err := l.Create(ctx, claim(name(i), "fast", "256Mi")); err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			for i := range n {
				if _, err := l.Bound(ctx, name(i)); err != nil {
					return err
				}
			}
			return backendVolumes(l, n)
		},
		func() error {
			late := l.Ledger.Entries(ledger.OnHop(ledger.CSI, "CreateVolume"), func(e ledger.Entry) bool { return e.Code == "DeadlineExceeded" })
			if len(late) < n {
				return fmt.Errorf("%d calls ran out of time, expected are %d and more: %w", len(late), n, errUnexpected)
			}
			return nil
		},
		func() error {
			for i := range n {
				c := claim(name(i), "fast", "256Mi")
				if err := l.Create(ctx, pod("p-"+name(i), "", c)); err != nil {
					return err
				}
				if _, err := l.Running(ctx, "p-"+name(i)); err != nil {
					return err
				}
				if err := l.Write(ctx, "p-"+name(i), "/"+name(i)+"/a", name(i)); err != nil {
					return err
				}
				pods, claims = append(pods, "p-"+name(i)), append(claims, name(i))
			}
			return backendVolumes(l, n)
		},
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, pods, claims) },
	)
}
