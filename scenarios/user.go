package scenarios

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
)

// user has a few claims, each with at most one pod and one snapshot.
type user struct {
	l    *sim.Lab
	name string
	rand *rand.Rand
	last string // what the user does
	made int
	have []*owned
	// did is told of each step that is done; nil: nobody.
	did func(kind string)
	// variety is what the user asks for besides plain volumes.
	variety variety
	// patience is how long the user tries again what a pod can't do; 0: not at all.
	patience time.Duration
}

type owned struct {
	claim    *corev1.PersistentVolumeClaim
	size     int // MiB
	pod      string
	file     string
	content  string
	snapshot string // its name, and what it holds
	then     string
	isShare  bool // of files, for several nodes
}

func (u *user) live(ctx context.Context) error {
	for range 12 {
		if err := u.one(ctx); err != nil {
			return err
		}
	}
	return u.leave(ctx)
}

// leave deletes all that the user has.
func (u *user) leave(ctx context.Context) error {
	for len(u.have) > 0 {
		if err := u.drop(ctx, u.have[0]); err != nil {
			return err
		}
	}
	return nil
}

// begin notes what the user does now.
func (u *user) begin(kind, format string, args ...any) {
	u.last = fmt.Sprintf(format, args...)
	if u.did != nil {
		u.did(kind)
	}
}

// again does what a pod may not be able to do for a while, until it can. A user
// with patience is what a StatefulSet is too: a pod that was evicted from a dead
// node is made anew. So does its owner with one whose filesystem is read-only, as
// ext4 is after an I/O error: only a new mount mends that.
func (u *user) again(ctx context.Context, o *owned, f func(ctx context.Context) error) error {
	if u.patience == 0 {
		return f(ctx)
	}
	for start := time.Now(); ; {
		err := u.soon(ctx, f)
		if err == nil || ctx.Err() != nil || errors.Is(err, errUnexpected) || time.Since(start) > u.patience {
			return err
		}
		readOnly := errors.Is(err, syscall.EROFS)
		if !later(ctx, u.l, u.name, 20*time.Second) {
			return context.Cause(ctx)
		}
		p, err := u.l.Pod(o.pod)
		switch {
		case err == nil && p.DeletionTimestamp == nil && !readOnly:
			continue
		case err == nil && p.DeletionTimestamp == nil:
			if err := u.l.Delete(ctx, p); err != nil {
				return err
			}
		case err == nil:
			if err := u.l.Gone(ctx, p); err != nil {
				return err
			}
		case !apierrors.IsNotFound(err):
			return err
		}
		u.made++
		o.pod = fmt.Sprintf("%s-p%d", u.name, u.made)
		u.begin("start", "%s", "starts "+o.pod+" with "+o.claim.Name+" for one that is gone")
		if err := u.l.Create(ctx, pod(o.pod, "", o.claim)); err != nil {
			return err
		}
	}
}

// soon bounds one try: what is waited for may never come without a new pod.
func (u *user) soon(ctx context.Context, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	return f(ctx)
}

// later waits, and says whether ctx lets it. who tells those apart who wait.
func later(ctx context.Context, l *sim.Lab, who string, d time.Duration) bool {
	return l.Sleep(fault.About(ctx, who), d) == nil
}

// one does one thing.
func (u *user) one(ctx context.Context) error {
	if len(u.have) == 0 || len(u.have) < 3 && u.rand.IntN(4) == 0 {
		return u.create(ctx, nil)
	}
	o := u.have[u.rand.IntN(len(u.have))]
	if o.pod == "" {
		if u.rand.IntN(4) == 0 {
			return u.drop(ctx, o)
		}
		return u.start(ctx, o)
	}
	switch u.rand.IntN(5) {
	case 0:
		return u.write(ctx, o)
	case 1:
		return u.stop(ctx, o)
	case 2:
		if o.isShare {
			return u.visit(ctx, o)
		}
		if u.variety.copies && len(u.have) < 4 && u.rand.IntN(3) == 0 {
			return u.copy(ctx, o)
		}
		if o.snapshot == "" {
			return u.cut(ctx, o)
		}
		if len(u.have) < 4 {
			return u.create(ctx, o)
		}
		return u.uncut(ctx, o)
	case 3:
		return u.grow(ctx, o)
	}
	if err := u.stop(ctx, o); err != nil {
		return err
	}
	return u.start(ctx, o)
}

// create makes a claim, empty or from another's snapshot.
func (u *user) create(ctx context.Context, from *owned) error {
	u.made++
	name := fmt.Sprintf("%s-c%d", u.name, u.made)
	o := &owned{size: u.smallest()}
	isBlock := u.rand.IntN(2) == 0
	var change []func(*corev1.PersistentVolumeClaim)
	kind, class := "create", "fast"
	if from == nil {
		kind, class = u.variety.draw(u.rand)
	}
	if o.isShare = kind == "share"; o.isShare {
		isBlock, o.size = false, shareMiB
		change = append(change, mode(corev1.ReadWriteMany))
	}
	if from != nil {
		kind = "restore"
		isBlock, o.size, o.content = isBlockClaim(from.claim), from.size, from.then
		change = append(change, fromSnapshot(from.snapshot))
	}
	o.file = "/" + name + "/a"
	if isBlock {
		change = append(change, block)
		o.file = "/dev/" + name
	}
	o.claim = claim(name, class, fmt.Sprintf("%dMi", o.size), change...)
	u.begin(kind, "%s", "creates "+name)
	if err := u.l.Create(ctx, o.claim); err != nil {
		return err
	}
	u.have = append(u.have, o)
	if u.rand.IntN(2) == 0 {
		return u.start(ctx, o) // the claim may not be bound yet
	}
	_, err := u.l.Bound(ctx, name)
	return err
}

// smallest is the size in MiB that a claim begins with: one below the backend's
// smallest volume could not be restored, as its snapshot is larger than it asks.
func (u *user) smallest() int { return max(32, int(u.l.Smallest()>>20)) }

func isBlockClaim(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeMode != nil && *c.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

func (u *user) start(ctx context.Context, o *owned) error {
	u.made++
	o.pod = fmt.Sprintf("%s-p%d", u.name, u.made)
	u.begin("start", "%s", "starts "+o.pod+" with "+o.claim.Name)
	if err := u.l.Create(ctx, pod(o.pod, "", o.claim)); err != nil {
		return err
	}
	if err := u.again(ctx, o, func(ctx context.Context) error { _, err := u.l.Running(ctx, o.pod); return err }); err != nil {
		return err
	}
	if o.content == "" {
		return u.write(ctx, o)
	}
	return u.reads(ctx, o)
}

func (u *user) write(ctx context.Context, o *owned) error {
	u.made++
	o.content = fmt.Sprintf("%s wrote this at %03d", u.name, u.made)
	u.begin("write", "%s", "writes "+o.content)
	return u.again(ctx, o, func(ctx context.Context) error { return u.l.Write(ctx, o.pod, o.file, o.content) })
}

// reads reads back what was written last.
func (u *user) reads(ctx context.Context, o *owned) error {
	return u.again(ctx, o, func(ctx context.Context) error {
		got, err := u.l.Read(ctx, o.pod, o.file, len(o.content))
		if err == nil && got != o.content {
			return fmt.Errorf("pod %s reads %q from %s, expected %q: %w", o.pod, got, o.file, o.content, errUnexpected)
		}
		return err
	})
}

func (u *user) stop(ctx context.Context, o *owned) error {
	u.begin("stop", "%s", "stops "+o.pod)
	p := o.pod
	o.pod = ""
	if err := u.l.DeletePod(ctx, p); err != nil && (u.patience == 0 || !apierrors.IsNotFound(err)) {
		return err
	}
	return nil
}

func (u *user) cut(ctx context.Context, o *owned) error {
	u.made++
	o.snapshot, o.then = fmt.Sprintf("%s-s%d", u.name, u.made), o.content
	u.begin("snapshot", "%s", "takes snapshot "+o.snapshot)
	_, err := u.l.TakeSnapshot(ctx, o.snapshot, o.claim.Name, "snap")
	return err
}

func (u *user) uncut(ctx context.Context, o *owned) error {
	// A claim that is being restored from it would hold it.
	for _, other := range u.have {
		if d := other.claim.Spec.DataSource; d != nil && d.Name == o.snapshot {
			if _, err := u.l.Bound(ctx, other.claim.Name); err != nil {
				return err
			}
		}
	}
	u.begin("delete snapshot", "%s", "deletes snapshot "+o.snapshot)
	s := o.snapshot
	o.snapshot = ""
	return u.l.DeleteSnapshot(ctx, s)
}

func (u *user) grow(ctx context.Context, o *owned) error {
	if o.size > 4*u.smallest() || u.l.CanGrowOnline(o.claim.Name) != nil {
		return nil
	}
	if o.snapshot != "" {
		if err := u.uncut(ctx, o); err != nil {
			return err
		}
	}
	o.size *= 2
	size := fmt.Sprintf("%dMi", o.size)
	u.begin("expand", "%s", "grows "+o.claim.Name+" to "+size)
	return steps(
		func() error { return u.l.Expand(ctx, o.claim.Name, size) },
		func() error {
			return u.again(ctx, o, func(ctx context.Context) error { return u.l.Expanded(ctx, o.claim.Name, size) })
		},
		func() error { return u.reads(ctx, o) },
	)
}

// drop deletes a claim and what belongs to it.
func (u *user) drop(ctx context.Context, o *owned) error {
	if o.pod != "" {
		if err := u.stop(ctx, o); err != nil {
			return err
		}
	}
	if o.snapshot != "" {
		if err := u.uncut(ctx, o); err != nil {
			return err
		}
	}
	u.have = slices.DeleteFunc(u.have, func(x *owned) bool { return x == o })
	u.begin("delete", "%s", "deletes "+o.claim.Name)
	return u.l.DeletePVC(ctx, o.claim.Name)
}
