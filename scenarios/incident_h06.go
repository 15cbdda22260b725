package scenarios

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/csilab/csilab/sim"
)

func init() {
	register(Scenario{
		Name:      "late-lun-behind-another",
		Text:      "a volume's LUN shows up seconds after its export, and the node has a LUN of another array at the same number, with a filesystem on it: the stage waits for the disk with the volume's serial number, and the other filesystem is never mounted",
		Labels:    []string{"stage", "lun"},
		Incidents: []string{"H06 hpe-storage/csi-driver release notes v2.1.1 (CON-2445)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 2 },
		Flow:      lateLUN,
		Mutation:  "a NodeStageVolume that takes what it finds for the volume",
		Mutate:    func(l *sim.Lab) { l.Inject(stageLies) },
	})
}

func lateLUN(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, anchor := claim("data", "fast", "256Mi"), claim("anchor", "fast", "256Mi")
	const mounted, file = "/mnt/backup", "/mnt/backup/table"
	var f *foreign
	var heal func()
	run := func(name string, args ...string) error {
		out, err := f.node.Exec().Command(name, args...).CombinedOutput()
		return step(err, "%s %v: %s", name, args, out)
	}
	return steps(
		func() error { return startWriter(ctx, l, "before", b, c, "of the volume") },
		func() error { return l.DeletePod(ctx, "before") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return startWriter(ctx, l, "anchor", a, anchor, "of the first volume") },
		func() error {
			n, err := lun(l, "anchor", a)
			if err != nil {
				return err
			}
			// The next volume's.
			f, err = foreignAt(l, l.SAN().Arrays()[1], a, n+1)
			return err
		},
		func() error {
			return l.Until(ctx, "the node has a map of the other LUN", func() bool { _, err := f.device(); return err == nil })
		},
		func() error {
			dev, err := f.device()
			if err != nil {
				return err
			}
			return steps(
				func() error { return run("mkfs.ext4", "-F", dev) },
				func() error { return f.node.MkdirAll(mounted, 0o755) },
				func() error { return run("mount", "-t", "ext4", dev, mounted) },
				func() error { return f.node.WriteFile(file, []byte("of a backup"), 0o644) },
				func() error { return run("umount", mounted) },
			)
		},
		// Shorter than a driver waits for a device.
		func() (err error) { heal, err = l.LateDevices(a, longer(l, 2*time.Second, 10*time.Second)); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { heal(); return nil },
		func() error {
			x, err := lun(l, "data", a)
			y, yerr := lun(l, "anchor", a)
			if err == nil && yerr == nil && x != y+1 {
				err = fmt.Errorf("the volume has LUN %d, the other one %d: %w", x, y+1, errUnexpected)
			}
			return err
		},
		func() error { return l.Expect(ctx, "app", "/data/a", "of the volume") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error {
			dev, err := f.device()
			if err != nil {
				return err
			}
			return run("mount", "-t", "ext4", dev, mounted)
		},
		func() error {
			got, err := f.node.ReadFile(file)
			if err == nil && string(got) != "of a backup" {
				err = fmt.Errorf("the other filesystem holds %q: %w", got, errUnexpected)
			}
			return err
		},
		func() error {
			all, err := f.node.ReadDir(mounted)
			for _, e := range all {
				if n := e.Name(); n != path.Base(file) && n != "lost+found" {
					return fmt.Errorf("the other filesystem has %s: %w", n, errUnexpected)
				}
			}
			return err
		},
		func() error { return run("umount", mounted) },
		func() error { return f.node.Remove(mounted) },
		func() error { return f.remove(l.Options().Protocol == "iscsi") },
		func() error { return allGone(ctx, l, []string{"anchor"}, []string{"data", "anchor"}) },
	)
}
