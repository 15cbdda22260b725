package scenarios

import (
	"context"
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "device-fails-at-stage",
		Text:      "a device with data can't be read when it is staged: its first blocks fail with EIO, all of it does, or it says that it has no size; each time the stage fails, nothing is formatted or written, and the data is there when the device is back",
		Labels:    []string{"stage", "mkfs", "data"},
		Incidents: []string{"K34 longhorn/longhorn#14042", "K34 NetApp/trident#418"},
		Flow:      deviceFails,
		Mutation:  "a stage that tries to format whatever blkid was asked about",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "formats", Hop: ledger.Host, Op: "exec blkid", Component: "driver@" + l.OtherNode(l.Nodes()[0]), Phase: fault.After, MayNotFire: true,
				Do: fault.Func("mkfs", func(_ context.Context, c fault.Call) error {
					words := strings.Fields(c.Request)
					_, _ = l.Host(c.Node).Exec().Command("mkfs.ext4", "-F", words[len(words)-1]).CombinedOutput() // it may fail too
					return nil
				})})
		},
	})
}

func deviceFails(ctx context.Context, l *sim.Lab) error {
	if l.Lacks("io-error") != "" {
		return sim.Skip("what real nodes on vSphere read can't be spoiled: their disks are loop devices on files")
	}
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	next := pod("next", b, c)
	flows := []func() error{
		func() error { return startWriter(ctx, l, "app", a, c, "not to be formatted") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
	}
	for _, d := range []struct {
		what string
		do   func(id string) (heal func(), err error)
	}{
		{"reads of the first blocks fail", func(id string) (func(), error) { return l.FailIO(id, b, 0, 64<<10, disk.Reads) }},
		{"all reads and writes fail", func(id string) (func(), error) { return l.FailIO(id, b, 0, 0, disk.ReadsAndWrites) }},
		{"the device has no size", func(id string) (func(), error) { return l.SilentDevice(id, b) }},
	} {
		var heal func()
		flows = append(flows,
			func() (err error) { heal, err = d.do(l.VolumeID("data")); return err },
			func() error {
				defer func() { heal() }()
				return steps(
					func() error { return l.Create(ctx, next) },
					func() error {
						return first(ctx,
							func(ctx context.Context) error { _, err := l.Running(ctx, "next"); return err }, "a pod runs while "+d.what,
							func(ctx context.Context) error { return l.HasEvent(ctx, next, "FailedMount", "") })
					},
					func() error { return noteEvent(l, "while "+d.what, next, "FailedMount") },
				)
			},
			func() error { _, err := l.Running(ctx, "next"); return step(err, "after %s", d.what) },
			func() error {
				return step(l.Expect(ctx, "next", "/data/a", "not to be formatted"), "after %s", d.what)
			},
			func() error {
				if n := formatted(l, b); n > 0 {
					return fmt.Errorf("a device with data was formatted %d times: %w", n, errUnexpected)
				}
				return nil
			},
			func() error { return l.Check(ctx) },
			func() error { return l.DeletePod(ctx, "next") },
			func() error { return l.Detached(ctx, l.PVName("data")) },
		)
	}
	return steps(append(flows, func() error { return allGone(ctx, l, nil, []string{"data"}) })...)
}
