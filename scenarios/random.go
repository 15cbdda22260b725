package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"golang.org/x/sync/errgroup"
)

func init() {
	register(Scenario{
		Name:     "random-users",
		Text:     "four users do what the seed says, while replies are lost, sessions end and components are killed; all data is there, and nothing at the end",
		Labels:   []string{"random", "fault", "crash", "attach", "snapshot", "expand"},
		Options:  func(o *sim.Options) { o.Nodes = 3 },
		Long:     true,
		Flow:     randomUsers,
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the disk where it was",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
}

// randomUsers: what each user does and what goes wrong is drawn from the seed. On
// the wall, when it does depends on the machine: a replay is of the same kind,
// not the same run.
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

// callsBetween is how many calls there are from one kill to the next, at the
// least: on a slow machine nothing would ever be done otherwise.
const callsBetween = 20

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
		begun := l.Ledger.Len()
		for more := true; more; more = l.Options().Timers != "real" && l.Ledger.Len() < begun+callsBetween {
			if !later(ctx, l, "havoc", time.Duration(r.Int64N(int64(pause)))) {
				return n
			}
		}
		if v := victims[r.IntN(len(victims))]; v != "" {
			l.Crash(v)
		} else {
			l.KillSessions()
		}
	}
}
