package scenarios

import (
	"context"
	"fmt"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
)

func init() {
	register(Scenario{
		Name:          "session-lost",
		Text:          "the backend ends all sessions in the middle of each operation, then its password is changed: the driver logs in again and finds what it had begun",
		Labels:        []string{"session", "attach", "fault"},
		Flow:          sessionLost,
		Mutation:      "a provisioner that gives each attempt a new name, so that a retry can't find what was begun before the password changed",
		MutateOptions: newNames,
	})
}

func sessionLost(ctx context.Context, l *sim.Lab) error {
	// endAt ends all sessions once an operation is committed, before its
	// caller hears of it.
	endAt := func(op string) *fault.Armed {
		return l.Inject(fault.Rule{Name: "sessions end at " + op, Hop: l.StorageHop(), Op: op, Phase: fault.After, Nth: 1,
			Do: fault.Func("end all sessions", func(context.Context, fault.Call) error { l.KillSessions(); return nil })})
	}
	rotate := fault.Func("change the password", func(ctx context.Context, _ fault.Call) error {
		if err := l.RotatePassword(ctx, "changed"); err != nil {
			return err
		}
		return fault.ErrDrop // or an answer that is on its way already would tell
	})
	first, second := claim("first", "fast", "256Mi"), claim("second", "fast", "256Mi")
	var rules []*fault.Armed
	on := l.Operations()
	for _, op := range []string{on.Create, on.Attach, on.Detach, on.Delete, on.Snapshot} {
		rules = append(rules, endAt(op))
	}
	var changed *fault.Armed
	return steps(
		func() error { return l.Create(ctx, first, pod("app", "", first)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/first/a", "over lost sessions") },
		func() error { _, err := l.TakeSnapshot(ctx, "snap", "first", "snap"); return err },
		func() error { return l.Check(ctx) },

		func() error {
			changed = l.Inject(fault.Rule{Name: "the password changes", Hop: l.StorageHop(), Op: on.Create, Phase: fault.After, Nth: 1, Do: rotate})
			return l.Create(ctx, second)
		},
		func() error { return l.HasEvent(ctx, second, "ProvisioningFailed", "login") },
		func() error { return noteEvent(l, "after the password has changed", second, "ProvisioningFailed") },
		// The volume is made, nobody knows. What runs goes on without vCenter.
		func() error { return l.Expect(ctx, "app", "/first/a", "over lost sessions") },
		func() error { return l.Redeploy(ctx) },
		func() error { return l.Create(ctx, pod("user", "", second)) },
		func() error { _, err := l.Running(ctx, "user"); return err },
		func() error { return l.Write(ctx, "user", "/second/a", "with the new password") },
		func() error { return backendVolumes(l, 2) },
		func() error { return l.Check(ctx) },

		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "user") },
		func() error { return l.DeleteSnapshot(ctx, "snap") },
		func() error { return l.DeletePVC(ctx, "first") },
		func() error { return l.DeletePVC(ctx, "second") },
		func() error { return l.Empty(ctx) },
		func() error {
			for _, r := range append(rules, changed) {
				if r.Fired() != 1 {
					return fmt.Errorf("%s: %d times: %w", r.Name, r.Fired(), errUnexpected)
				}
			}
			return nil
		},
	)
}

// backendVolumes fails at once where a volume was made twice: that it is
// nobody's is an invariant of a quiet lab only.
func backendVolumes(l *sim.Lab, want int) error {
	if n := l.BackendVolumes(); n != want {
		return fmt.Errorf("the backend has %d volumes for %d claims: %w", n, want, errUnexpected)
	}
	return nil
}
