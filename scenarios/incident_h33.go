package scenarios

import (
	"context"
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "corrupt-filesystem",
		Text:      "fsck finds errors that it must not repair by itself: each stage is refused alike and nothing is mounted or formatted, until somebody has repaired it by hand; where the class allows it, the driver repairs it, before it is mounted",
		Labels:    []string{"stage", "data"},
		Incidents: []string{"H33 hpe-storage/csi-driver#416, #477 (CON-2137)"},
		Flow:      corruptFilesystem,
		Mutation:  "a driver that mounts whatever fsck says",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "fsck says that all is well", Hop: ledger.Host, Op: "exec fsck", Do: fault.Skip()})
		},
	})
}

// errorsLeft is how fsck ends that has left errors (fsck(8), exit status 4).
var errorsLeft = fault.Error(exec.CodeExitError{Err: fmt.Errorf("exit status 4: UNEXPECTED INCONSISTENCY; RUN fsck MANUALLY"), Code: 4})

func corruptFilesystem(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	app := pod("app", a, c)
	driver := "driver@" + a
	var from uint64
	var damage *fault.Armed
	// since is what the driver did on the node from here on.
	since := func(op string) []ledger.Entry {
		return l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.Host, op), func(e ledger.Entry) bool { return e.Component == driver })
	}
	staged := func() []ledger.Entry {
		return l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.CSI, "NodeStageVolume"), ledger.About(l.VolumeID("data")))
	}
	return steps(
		func() error { return l.Create(ctx, c) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.Create(ctx, pod("before", a, c)) },
		func() error { _, err := l.Running(ctx, "before"); return err },
		func() error { return l.Write(ctx, "before", "/data/a", "before the damage") },
		func() error { return l.DeletePod(ctx, "before") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error {
			from = uint64(l.Ledger.Len())
			damage = l.Inject(fault.Rule{Name: "errors are left", Hop: ledger.Host, Op: "exec fsck", Do: errorsLeft})
			return l.Create(ctx, app)
		},
		func() error {
			return l.Until(ctx, "the third stage has failed", func() bool {
				n := 0
				for _, e := range staged() {
					if e.Outcome != ledger.Pending {
						n++
					}
				}
				return n >= 3
			})
		},
		func() error { return noteEvent(l, "with errors", app, "FailedMount") },
		func() error {
			for _, e := range staged() {
				if e.Outcome != ledger.Pending && (e.Code != "Internal" || !strings.Contains(e.Error, "errors")) {
					return fmt.Errorf("%v: must be refused as the others are: %w", e, errUnexpected)
				}
			}
			for _, op := range []string{"Mount", "MountSensitive", "exec mkfs.ext4", "exec e2fsck"} {
				if es := since(op); len(es) > 0 {
					return fmt.Errorf("%v: with errors on the filesystem: %w", es[0], errUnexpected)
				}
			}
			return nil
		},
		// Somebody repairs it.
		func() error { l.Disarm(damage); return nil },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/data/a", "before the damage") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
		func() error {
			if l.Backend() != sim.HPE {
				return nil // the other driver has no parameter for it
			}
			return repaired(ctx, l)
		},
	)
}

// repaired is the same with a class that has the driver repair.
func repaired(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "repaired"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "fsRepair": "true"})}
	c := claim("mended", "repaired", "256Mi")
	var from uint64
	return steps(
		func() error { return l.Create(ctx, class, c) },
		func() error { _, err := l.Bound(ctx, "mended"); return err },
		func() error { return l.Create(ctx, pod("before", a, c)) },
		func() error { _, err := l.Running(ctx, "before"); return err },
		func() error { return l.Write(ctx, "before", "/mended/a", "worth a repair") },
		func() error { return l.DeletePod(ctx, "before") },
		func() error { return l.Detached(ctx, l.PVName("mended")) },
		func() error {
			from = uint64(l.Ledger.Len())
			l.Inject(fault.Rule{Name: "errors to repair", Hop: ledger.Host, Op: "exec fsck", Do: errorsLeft})
			return l.Create(ctx, pod("app", a, c))
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/mended/a", "worth a repair") },
		// A driver and a kubelet that start again repair nothing that is mounted.
		func() error {
			before := l.Starts("kubelet@" + a)
			l.Crash("driver@" + a)
			l.Crash("kubelet@" + a)
			return l.Restarted(ctx, "kubelet@"+a, before)
		},
		func() error { return l.Expect(ctx, "app", "/mended/a", "worth a repair") },
		func() error { return l.Check(ctx) },
		func() error {
			var repairs, mounts []ledger.Entry
			for _, e := range l.Ledger.Entries(ledger.After(from), ledger.OnHop(ledger.Host)) {
				switch {
				case e.Component != "driver@"+a:
				case e.Op == "exec e2fsck":
					repairs = append(repairs, e)
				case strings.HasPrefix(e.Op, "Mount") && strings.Contains(e.Request, "globalmount"):
					mounts = append(mounts, e)
				}
			}
			if len(repairs) != 1 || len(mounts) == 0 || repairs[0].Seq > mounts[0].Seq {
				return fmt.Errorf("repaired %d times, mounted %d times, which must be once, and then:\n%s%s: %w", len(repairs), len(mounts), ledger.Text(repairs), ledger.Text(mounts), errUnexpected)
			}
			return nil
		},
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "mended") },
		func() error { return l.Empty(ctx) },
	)
}
