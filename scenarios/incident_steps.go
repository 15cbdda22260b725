package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// Steps that the scenarios from incidents have in common.

// fileOf is what a pod writes of a claim: a file, or the device.
func fileOf(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock {
		return "/dev/" + c.Name
	}
	return "/" + c.Name + "/a"
}

// startWriter makes a claim and a pod on a node that uses it and has written.
func startWriter(ctx context.Context, l *sim.Lab, name, node string, c *corev1.PersistentVolumeClaim, content string) error {
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, c.Name); return err },
		func() error { return l.Create(ctx, pod(name, node, c)) },
		func() error { _, err := l.Running(ctx, name); return err },
		func() error { return l.Write(ctx, name, fileOf(c), content) },
	)
}

// startReader starts a pod on a node and sees that a claim has the content.
func startReader(ctx context.Context, l *sim.Lab, name, node string, c *corev1.PersistentVolumeClaim, content string) error {
	return steps(
		func() error { return l.Create(ctx, pod(name, node, c)) },
		func() error { _, err := l.Running(ctx, name); return err },
		func() error { return l.Expect(ctx, name, fileOf(c), content) },
	)
}

// allGone deletes pods, then claims, and sees that nothing is left.
func allGone(ctx context.Context, l *sim.Lab, pods, claims []string) error {
	for _, p := range pods {
		if err := l.DeletePod(ctx, p); err != nil {
			return err
		}
	}
	for _, c := range claims {
		if err := l.DeletePVC(ctx, c); err != nil {
			return err
		}
	}
	return l.Empty(ctx)
}

// csiCalls are the calls of an operation to the driver so far.
func csiCalls(l *sim.Lab, op string, more ...ledger.Filter) []ledger.Entry {
	return l.Ledger.Entries(append([]ledger.Filter{ledger.OnHop(ledger.CSI, op)}, more...)...)
}

// succeeded selects calls that were answered with success.
func succeeded(e ledger.Entry) bool { return e.Outcome == ledger.OK }

// now is the ledger's last entry, for ledger.After.
func now(l *sim.Lab) uint64 { return uint64(l.Ledger.Len()) }

// moments bounds what takes moments with the fast timers, on slow machines too:
// only a failure takes so long.
const moments = 30 * time.Second

// longer is a time in which a control plane does what it does after a timeout:
// fast is for the timers of tests, real for those of a cluster.
func longer(l *sim.Lab, fast, real time.Duration) time.Duration {
	if l.Options().Timers == "real" {
		return real
	}
	return fast
}

// stays looks for a while that something stays as it is: holds gives what is
// wrong.
func stays(ctx context.Context, l *sim.Lab, d time.Duration, holds func() error) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := holds(); err != nil {
			return err
		}
		if err := l.Sleep(ctx, min(max(d/100, 20*time.Millisecond), time.Until(end))); err != nil {
			return err
		}
	}
	return holds()
}

// refusedWith requires that a call was refused with one of the codes.
func refusedWith(err error, what string, want ...codes.Code) error {
	if err != nil && slices.Contains(want, status.Code(err)) {
		return nil
	}
	return fmt.Errorf("%s was answered with %s (%v), must be %v: %w", what, status.Code(err), err, want, errUnexpected)
}

// onlyOn requires that the backend lets just these nodes have a claim's volume.
func onlyOn(l *sim.Lab, pvc string, want ...string) error {
	if got := l.ExportedTo(pvc); !slices.Equal(got, want) {
		return fmt.Errorf("%s is exported to %q, must be %q: %w", pvc, got, want, errUnexpected)
	}
	return nil
}

// requestField reads a text field out of the digest of a CSI request.
func requestField(digest, field string) string {
	_, rest, ok := strings.Cut(digest, `"`+field+`":"`)
	if !ok {
		return ""
	}
	v, _, _ := strings.Cut(rest, `"`)
	return v
}

// bindsAnything is a driver whose NodePublishVolume binds whatever is at the
// staging path, and does not look at it (kubernetes#86360).
func bindsAnything(l *sim.Lab) {
	l.Inject(fault.Rule{Name: "publish looks at nothing", Hop: ledger.CSI, Op: "NodePublishVolume",
		Do: fault.Func("bind what is there", func(_ context.Context, c fault.Call) error {
			h, staging, target := l.Host(c.Node), requestField(c.Request, "staging_target_path"), requestField(c.Request, "target_path")
			for _, dir := range []string{staging, target} {
				if err := h.MkdirAll(dir, 0o750); err != nil {
					return err
				}
			}
			if err := h.Mounter().Mount(staging, target, "", []string{"bind"}); err != nil {
				return err
			}
			return fault.ErrSkip
		})})
}

// lies makes a call of an operation to the driver answer OK and do nothing.
func lies(op string) func(*sim.Lab) {
	return func(l *sim.Lab) {
		l.Inject(fault.Rule{Name: op + " lies", Hop: ledger.CSI, Op: op, Do: fault.Skip()})
	}
}
