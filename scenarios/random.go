package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "random-users",
		Text:     "four users do what the seed says, while replies are lost, sessions end and components are killed; all data is there, and nothing at the end",
		Labels:   []string{"random", "fault", "crash", "attach", "snapshot", "expand"},
		Options:  func(o *sim.Options) { o.Nodes = 3 },
		Flow:     randomUsers,
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the disk where it was",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

// randomUsers: what each user does and what goes wrong is drawn from the seed.
// When it does depends on the machine: a replay is of the same kind, not the
// same run.
func randomUsers(ctx context.Context, l *sim.Lab) error {
	seed := l.Options().Seed
	var rules []*fault.Armed
	for _, r := range []fault.Rule{
		{Name: "CSI replies are lost", Hop: ledger.CSI, Probability: 0.03},
		{Name: "replies of the backend are lost", Hop: l.StorageHop(), Probability: 0.02, Match: func(c fault.Call) bool { return !waits[c.Op] && c.Component == "driver-controller" }},
	} {
		r.Phase, r.Do, r.MayNotFire = fault.After, fault.Drop(), true
		rules = append(rules, l.Inject(r))
	}
	cctx, calm := context.WithCancel(ctx)
	defer calm()
	var kills atomic.Int64
	chaos := make(chan struct{})
	go func() {
		defer close(chaos)
		kills.Store(int64(havoc(cctx, l, rand.New(rand.NewPCG(seed, 0)))))
	}()
	g, gctx := errgroup.WithContext(ctx)
	for i := range 4 {
		g.Go(func() error {
			u := user{l: l, name: fmt.Sprintf("u%d", i+1), rand: rand.New(rand.NewPCG(seed, uint64(i+1)))}
			return step(u.live(gctx), "user %s (%s)", u.name, u.last)
		})
	}
	err := g.Wait()
	calm()
	<-chaos
	lost := 0
	for _, r := range rules {
		lost += r.Fired()
		l.Disarm(r)
	}
	l.Note("%d replies lost, %d components killed or sessions ended", lost, kills.Load())
	if err != nil {
		return err
	}
	return l.Empty(ctx)
}

// havoc kills a component or all sessions again and again.
func havoc(ctx context.Context, l *sim.Lab, r *rand.Rand) (n int) {
	pause := 250 * time.Millisecond
	if l.Options().Timers == "real" {
		pause = time.Minute // a component stays down for ten seconds
	}
	victims := []string{"driver-controller", "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "",
		"attachdetach-controller", "persistentvolume-controller", "default-scheduler"}
	for _, node := range l.Nodes() {
		victims = append(victims, "driver@"+node, "kubelet@"+node, "registrar@"+node)
	}
	for ; ; n++ {
		t := time.NewTimer(time.Duration(r.Int64N(int64(pause))))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return n
		}
		if v := victims[r.IntN(len(victims))]; v != "" {
			l.Crash(v)
		} else {
			l.KillSessions()
		}
	}
}

// user has a few claims, each with at most one pod and one snapshot.
type user struct {
	l    *sim.Lab
	name string
	rand *rand.Rand
	last string
	made int
	have []*owned
}

type owned struct {
	claim    *corev1.PersistentVolumeClaim
	size     int // MiB
	pod      string
	file     string
	content  string
	snapshot string // its name, and what it holds
	then     string
}

func (u *user) live(ctx context.Context) error {
	for range 12 {
		if err := u.one(ctx); err != nil {
			return err
		}
	}
	for len(u.have) > 0 {
		if err := u.drop(ctx, u.have[0]); err != nil {
			return err
		}
	}
	return nil
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
	if from != nil {
		isBlock, o.size, o.content = isBlockClaim(from.claim), from.size, from.then
		change = append(change, fromSnapshot(from.snapshot))
	}
	o.file = "/" + name + "/a"
	if isBlock {
		change = append(change, block)
		o.file = "/dev/" + name
	}
	o.claim = claim(name, "fast", fmt.Sprintf("%dMi", o.size), change...)
	u.last = "creates " + name
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
	u.last = "starts " + o.pod + " with " + o.claim.Name
	if err := u.l.Create(ctx, pod(o.pod, "", o.claim)); err != nil {
		return err
	}
	if _, err := u.l.Running(ctx, o.pod); err != nil {
		return err
	}
	if o.content == "" {
		return u.write(ctx, o)
	}
	return u.l.Expect(ctx, o.pod, o.file, o.content)
}

func (u *user) write(ctx context.Context, o *owned) error {
	u.made++
	o.content = fmt.Sprintf("%s wrote this at %03d", u.name, u.made)
	u.last = "writes " + o.content
	return u.l.Write(ctx, o.pod, o.file, o.content)
}

func (u *user) stop(ctx context.Context, o *owned) error {
	u.last = "stops " + o.pod
	p := o.pod
	o.pod = ""
	return u.l.DeletePod(ctx, p)
}

func (u *user) cut(ctx context.Context, o *owned) error {
	u.made++
	o.snapshot, o.then = fmt.Sprintf("%s-s%d", u.name, u.made), o.content
	u.last = "takes snapshot " + o.snapshot
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
	u.last = "deletes snapshot " + o.snapshot
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
	u.last = "grows " + o.claim.Name + " to " + size
	return steps(
		func() error { return u.l.Expand(ctx, o.claim.Name, size) },
		func() error { return u.l.Expanded(ctx, o.claim.Name, size) },
		func() error { return u.l.Expect(ctx, o.pod, o.file, o.content) },
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
	u.last = "deletes " + o.claim.Name
	return u.l.DeletePVC(ctx, o.claim.Name)
}
