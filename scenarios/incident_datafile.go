package scenarios

import (
	"context"
	"errors"
	"fmt"
	"path"
	"syscall"
	"time"

	"github.com/csilab/csilab/sim"
)

func init() {
	register(Scenario{
		Name:          "data-file-lost",
		Text:          "kubelet's file about a pod's volume is lost while kubelet is down and the pod is deleted: the volume counts as in use, is not detached, and no file in it is removed, until somebody unmounts it by hand",
		Labels:        []string{"K29", "incident", "stage", "kubelet", "reconstruct"},
		Incidents:     []string{"K29 kubernetes/kubernetes#101911"},
		Flow:          dataFileLost,
		Mutation:      "a kubelet that finds only volumes with a pod directory at its restart (kubernetes#121937)",
		MutateOptions: func(o *sim.Options) { o.ForgetfulKubelets = true },
	})
}

func dataFileLost(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	kubelet := "kubelet@" + a
	c := claim("data", "fast", "256Mi")
	target := ""
	var from uint64
	remove := func(p string) error {
		if err := l.Host(a).Remove(p); err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
		return nil
	}
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "not to be removed") },
		func() (err error) { target, err = l.PublishPath("app", "data"); return err },
		func() error { from = now(l); return l.StopComponent(kubelet) },
		func() error { return l.ForceDeletePod(ctx, "app") },
		func() error { return l.Host(a).Remove(path.Join(path.Dir(target), "vol_data.json")) },
		func() error {
			before := l.Starts(kubelet)
			return errors.Join(l.StartComponent(kubelet), l.Restarted(ctx, kubelet, before))
		},
		func() error { return l.NodesReady(ctx) },
		func() error {
			return stays(ctx, l, longer(l, time.Second, 15*time.Minute), func() error {
				got, err := l.Host(a).ReadAt(target+"/a", 0, len("not to be removed"))
				if err != nil || string(got) != "not to be removed" {
					return fmt.Errorf("the file of the pod holds %q (%v): %w", got, err, errUnexpected)
				}
				return noUnpublish(l, from)()
			})
		},
		func() error { return onlyOn(l, "data", a) },
		// Somebody clears it away.
		func() error { return l.Host(a).Mounter().Unmount(target) },
		func() error { return remove(target) },
		func() error { return remove(path.Dir(target)) },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return unstagedFirst(l, from) },
		func() error { return startReader(ctx, l, "next", l.OtherNode(a), c, "not to be removed") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}
