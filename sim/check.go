package sim

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
)

// InvariantError says which invariants of the lab are broken.
type InvariantError struct{ Violations []invariant.Violation }

func (e *InvariantError) Error() string {
	var lines []string
	for _, v := range e.Violations {
		lines = append(lines, v.String())
	}
	return strings.Join(lines, "\n")
}

func broken(vs []invariant.Violation) error {
	if len(vs) == 0 {
		return nil
	}
	return &InvariantError{vs}
}

// Broken looks at the invariants that hold at any moment, without waiting. It
// is nil, or an *InvariantError.
func (l *Lab) Broken(ctx context.Context) error {
	w := l.World(ctx, false)
	vs := invariant.Check(w, l.Ledger)
	if len(vs) > 0 {
		l.saw("broken", w, vs)
	}
	return broken(vs)
}

// Check requires that all invariants hold once the lab is quiet: what is on
// its way gets time to arrive. Those that hold at any moment fail at once.
func (l *Lab) Check(ctx context.Context) error { return l.settle(ctx, "check", nil) }

// Empty requires that nothing is left of what the scenario made: no volume,
// snapshot, attachment, disk, mount or directory, and that the invariants hold.
func (l *Lab) Empty(ctx context.Context) error {
	return l.settle(ctx, "empty", func(w *invariant.World) (left []string) {
		for _, v := range w.Volumes {
			if !v.Unmanaged && !v.Retained {
				left = append(left, "volume "+v.Name)
			}
		}
		for _, s := range w.Snapshots {
			left = append(left, "snapshot "+s.ID)
		}
		for _, e := range w.Exports {
			left = append(left, fmt.Sprintf("export of %s to %s", e.VolumeID, e.Node))
		}
		for _, a := range store.List[storagev1.VolumeAttachment](l.user, "") {
			left = append(left, "VolumeAttachment "+a.Name)
		}
		for _, n := range w.Nodes {
			for _, m := range n.Mounts {
				if m.VolumeID != "" || strings.HasPrefix(m.Path, kubeletRoot+"/pods/") || strings.HasPrefix(m.Path, kubeletRoot+"/plugins/kubernetes.io/") {
					left = append(left, fmt.Sprintf("mount %s on %s", m.Path, n.Name))
				}
			}
			for _, d := range n.Disks {
				left = append(left, fmt.Sprintf("disk %s on %s", d, n.Name))
			}
			for _, d := range n.PodDirs {
				left = append(left, fmt.Sprintf("directory of pod %s on %s", d, n.Name))
			}
			if !n.Fenced {
				left = append(left, l.node(n.Name).leftDirs()...)
			}
		}
		for _, n := range store.List[corev1.Node](l.user, "") {
			if len(n.Status.VolumesInUse) > 0 && !l.fenced(n.Name) {
				left = append(left, fmt.Sprintf("volumesInUse of %s: %v", n.Name, n.Status.VolumesInUse))
			}
		}
		return left
	})
}

func (l *Lab) fenced(node string) bool {
	n := l.node(node)
	return n == nil || n.fenced()
}

// leftDirs lists staging directories that are still there.
func (n *Node) leftDirs() (left []string) {
	for _, dir := range []string{kubeletRoot + "/plugins/kubernetes.io/csi/" + n.lab.DriverName(), kubeletRoot + "/plugins/kubernetes.io/csi/volumeDevices"} {
		es, _ := n.host.ReadDir(dir)
		for _, e := range es {
			// staging and publish are roots that kubelet keeps.
			if e.Name() == "staging" || e.Name() == "publish" {
				sub, _ := n.host.ReadDir(dir + "/" + e.Name())
				for _, s := range sub {
					left = append(left, fmt.Sprintf("%s/%s/%s on %s", dir, e.Name(), s.Name(), n.Name))
				}
				continue
			}
			left = append(left, fmt.Sprintf("%s/%s on %s", dir, e.Name(), n.Name))
		}
	}
	return left
}

// settle looks until the quiet invariants hold and left gives nothing. why says
// who asks.
func (l *Lab) settle(ctx context.Context, why string, left func(*invariant.World) []string) error {
	ctx, cancel := within(ctx, l.settleTime())
	defer cancel()
	what := "left behind"
	if why == "converge" {
		what = "not settled"
	}
	var last error // of a whole look
	var seen *invariant.World
	for try := 0; ; try++ {
		if err := l.Broken(ctx); err != nil {
			return err
		}
		w := l.World(ctx, true)
		if ctx.Err() == nil {
			seen = w
			last = broken(invariant.Check(w, l.Ledger))
			if last == nil && left != nil {
				if rest := left(w); len(rest) > 0 {
					last = fmt.Errorf("%s: %s", what, strings.Join(rest, "; "))
				}
			}
			if last == nil {
				l.saw(why, w, nil)
				return nil
			}
			l.stillSick(last)
		}
		if werr := l.pauseFor(ctx, between(try, l.opts.Timers)); werr != nil {
			if ie, ok := last.(*InvariantError); ok {
				l.saw(why, seen, ie.Violations)
				return last // quiet for long, and still broken
			}
			if last == nil {
				last = errors.New("one whole look at the lab")
			}
			return &TimeoutError{What: last.Error(), Err: werr}
		}
	}
}

// pause waits a moment between two looks. Not every change is a call that
// could be waited for: a directory that a component removes last, say.
func (l *Lab) pause(ctx context.Context) error { return l.pauseFor(ctx, look) }

// look is how long after a look the next one is.
const look = 20 * time.Millisecond

// between is the time before look try+1. With real timers a lab that isn't quiet
// after a second is waiting for minutes, and a look is dear.
func between(try int, timers string) time.Duration {
	if timers == "real" && try > 50 {
		return time.Second
	}
	return look
}

func (l *Lab) pauseFor(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(errClosed) })()
	return l.Sleep(ctx, d)
}

var errClosed = errors.New("the lab is closed")

// Sleep waits for d of the lab's time, or until ctx ends; the error is its cause.
// In a bubble, where many wake at one moment, what the caller does then comes in
// the order that the seed gives; fault.About tells callers apart.
func (l *Lab) Sleep(ctx context.Context, d time.Duration) error {
	return l.in.Sleep(ctx, d, fault.Call{Op: "sleep", Component: "user"})
}
