package flow

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim"
)

func init() {
	for _, m := range []medium{filesystem, raw} {
		c := m.claim("data")
		register(Flow{
			Name: "expand" + m.suffix,
			Text: "a " + m.words + " grows while a pod uses it",
			Prepare: func(ctx context.Context, l *sim.Lab) error {
				if err := written(ctx, l, m, c, "app", l.Nodes()[0], "before it grew"); err != nil {
					return err
				}
				if err := l.CanGrowOnline(c.Name); err != nil {
					return sim.Skip("online growth: %v", err)
				}
				return nil
			},
			Body: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return l.Expand(ctx, c.Name, bigger) },
					func() error { return l.Expanded(ctx, c.Name, bigger) },
				)
			},
			End: func(ctx context.Context, l *sim.Lab) error {
				return steps(
					func() error { return l.BackendSize(ctx, c.Name, bigger) },
					func() error {
						if m.suffix != "" {
							return nil
						}
						// A filesystem keeps a part to itself, of a small one a quarter at the most.
						q := resource.MustParse(bigger)
						var got int64
						// A kubelet that has just come back has to find the driver first.
						err := l.Until(ctx, "the kubelet tells the size of the filesystem", func() bool {
							var err error
							got, err = l.FilesystemBytes(ctx, "app", "/"+c.Name)
							return err == nil
						})
						if err == nil && got < q.Value()*3/4 {
							err = fmt.Errorf("the filesystem has %d bytes, the volume %d", got, q.Value())
						}
						return err
					},
					func() error { return l.Expect(ctx, "app", m.file(c.Name), "before it grew") },
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return holds(ctx, l, m, c, l.Nodes()[1], "before it grew") },
					func() error { return l.DeletePVC(ctx, c.Name) },
				)
			},
		})
	}
}
