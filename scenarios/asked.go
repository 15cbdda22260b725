package scenarios

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// What a flow asks the ledger, and what it asks the driver itself.

// asked are the calls of an operation that reached whom they were for: those
// that a rule stopped on their way are left out.
func asked(l *sim.Lab, h ledger.Hop, op string, fs ...ledger.Filter) []ledger.Entry {
	fs = append(fs, ledger.OnHop(h, op), func(e ledger.Entry) bool { return e.Outcome != ledger.Refused })
	return l.Ledger.Entries(fs...)
}

// times fails unless an operation was asked for just so often.
func times(l *sim.Lab, h ledger.Hop, op string, want int, fs ...ledger.Filter) error {
	if es := asked(l, h, op, fs...); len(es) != want {
		return fmt.Errorf("%s was asked for %d times, expected are %d: %w\n%s", op, len(es), want, errUnexpected, ledger.Text(es))
	}
	return nil
}

// await waits until f is true, and fails with its error.
func await(ctx context.Context, l *sim.Lab, what string, f func() (bool, error)) error {
	var ferr error
	err := l.Until(ctx, what, func() bool {
		ok, err := f()
		ferr = err
		return ok || err != nil
	})
	if ferr != nil {
		return step(ferr, "%s", what)
	}
	return err
}

// registersAgain waits until a kubelet has registered the driver of its node
// anew, after entry since of the ledger.
func registersAgain(ctx context.Context, l *sim.Lab, node string, since uint64) error {
	limit := longer(l, moments, 5*time.Minute)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %v", limit))
	defer cancel()
	return l.Until(ctx, node+" registers again", func() bool {
		return len(l.Ledger.Entries(ledger.After(since), ledger.OnHop(ledger.CSI, "NodeGetInfo"), func(e ledger.Entry) bool {
			return e.Component == "kubelet@"+node && e.Outcome == ledger.OK
		})) > 0
	})
}

// attempts waits until an operation of CSI was begun so often.
func attempts(ctx context.Context, l *sim.Lab, op string, n int, fs ...ledger.Filter) error {
	return l.Until(ctx, fmt.Sprintf("%s is called %d times", op, n), func() bool { return len(asked(l, ledger.CSI, op, fs...)) >= n })
}

// attachment is the VolumeAttachment of a claim's volume on a node, or nil.
func attachment(l *sim.Lab, pvc, node string) *storagev1.VolumeAttachment {
	pv := l.PVName(pvc)
	for _, a := range store.List[storagev1.VolumeAttachment](l.Client(), "") {
		if p := a.Spec.Source.PersistentVolumeName; p != nil && *p == pv && a.Spec.NodeName == node {
			return a
		}
	}
	return nil
}

// exportedTo fails unless the backend gives a claim's volume to just these
// nodes.
func exportedTo(ctx context.Context, l *sim.Lab, pvc string, want ...string) error {
	id := l.VolumeID(pvc)
	var got []string
	for _, x := range l.World(ctx, false).Exports {
		if x.VolumeID == id {
			got = append(got, x.Node)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the backend gives the volume of %s to %q, expected is %q: %w", pvc, got, want, errUnexpected)
	}
	return nil
}

// code fails unless an error has a code of CSI.
func code(err error, want codes.Code) error {
	if got := status.Code(err); got != want {
		return fmt.Errorf("the answer is %s (%v), expected is %s: %w", got, err, want, errUnexpected)
	}
	return nil
}

// caller is who asks the driver in a flow, beside the sidecars.
const caller = "caller"

// createAgain asks once more for a claim's volume, of between required and limit
// bytes (0: no limit).
func createAgain(ctx context.Context, l *sim.Lab, pvc string, required, limit int64) (*csi.Volume, error) {
	return l.As(caller).CreateVolume(ctx, "pvc-"+string(l.ClaimUID(pvc)), required, limit)
}

// used makes a claim and a pod on a node that writes to it; for a raw block
// volume the file is its device.
func used(ctx context.Context, l *sim.Lab, pvc, podName, node, content string) error {
	c := claim(pvc, "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, pvc); return err },
		func() error { return l.Create(ctx, pod(podName, node, c)) },
		func() error { _, err := l.Running(ctx, podName); return err },
		func() error { return l.Write(ctx, podName, "/"+pvc+"/a", content) },
	)
}

// removed deletes pods and claims and sees that nothing is left.
func removed(ctx context.Context, l *sim.Lab, pods, claims []string) error {
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
