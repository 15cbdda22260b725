package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

// Soak is a run of many volumes and nodes under random faults: all of it is a
// function of the seed. First the safety phase, with faults, in which nothing
// may break; then all is healed, and everybody must come to an end.
type Soak struct {
	Seed    uint64
	Options sim.Options
	// VCenters is how many there are, each with a zone of its own; 0 and 1 are one
	// without zones.
	VCenters int
	// Volumes is about how many there are at a time.
	Volumes int
	// Duration of the safety phase, in the lab's time.
	Duration time.Duration
	// Troubles are the kinds of faults that are on.
	Troubles []string
	// Plan has rules that are armed for the safety phase besides; nil has none.
	Plan *SoakPlan
	// Between is the mean time from one fault to the next; Pause that between
	// two steps of a user.
	Between, Pause time.Duration
	// Mutate changes the lab once it runs, for mutants.
	Mutate func(*sim.Lab)
}

// SoakPlan is a fault file. Its rules must fire, as those of any file.
type SoakPlan struct {
	File  string
	Fits  func(sim.Options) error              // whether a lab with the options can have them; nil: any can
	Rules func(*sim.Lab) ([]fault.Rule, error) // new ones for each lab, for they count
}

// SoakLimits bound what a seed may draw. Zero values leave it to the seed.
type SoakLimits struct {
	System   sim.Options // Backend and Protocol; "" is drawn
	Volumes  int
	Nodes    int
	Arrays   int // on HPE alone
	VCenters int // on vSphere alone
	Duration time.Duration
	Troubles []string // nil is drawn; empty is none; those that the system has not are left out
	Plan     *SoakPlan
}

// DrawSoak decides what a seed stands for.
func DrawSoak(seed uint64, limits SoakLimits) Soak {
	r := rand.New(rand.NewPCG(seed, 1))
	// All is drawn in any case, so that a limit on one thing changes no other.
	system := []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}, {Backend: sim.HPE, Protocol: "fc"}}[r.IntN(3)]
	nodes, volumes := 2+r.IntN(19), 10+r.IntN(191)
	between, pause := time.Duration(1+r.IntN(10))*time.Minute, time.Duration(2+r.IntN(15))*time.Minute
	var on []string
	for _, t := range troubles {
		if r.IntN(2) == 0 && t.fits(system.Backend) {
			on = append(on, t.name)
		}
	}
	// One lab in four has more than one array or vCenter.
	several := 1 + r.IntN(4)/3*(1+r.IntN(2))
	s := Soak{Seed: seed, Options: system, Volumes: volumes, Duration: 2 * time.Hour, Troubles: on, Plan: limits.Plan, Between: between, Pause: pause}
	if limits.System.Backend != "" {
		s.Options = limits.System
		if s.Options.Backend == sim.HPE && s.Options.Protocol == "" {
			s.Options.Protocol = []string{"iscsi", "fc"}[r.IntN(2)]
			if system.Protocol != "" {
				s.Options.Protocol = system.Protocol
			}
		}
		s.Troubles = slices.DeleteFunc(s.Troubles, func(name string) bool {
			return !troubleNamed(name).fits(s.Options.Backend)
		})
	}
	s.Options.Nodes, s.Options.Seed = nodes, seed
	if limits.Nodes > 0 {
		s.Options.Nodes = limits.Nodes
	}
	switch s.Options.Backend {
	case sim.HPE:
		s.Options.Arrays = min(several, 2)
		if limits.Arrays > 0 {
			s.Options.Arrays = limits.Arrays
		}
	case sim.VSphere:
		// Each has two nodes at least: a pod needs another one to move to.
		s.VCenters = min(several, s.Options.Nodes/2)
		if limits.VCenters > 0 {
			s.VCenters = limits.VCenters
			s.Options.Nodes = max(s.Options.Nodes, s.VCenters)
		}
	}
	if limits.Volumes > 0 {
		s.Volumes = limits.Volumes
	}
	if limits.Duration > 0 {
		s.Duration = limits.Duration
	}
	if limits.Troubles != nil {
		s.Troubles = slices.DeleteFunc(slices.Clone(limits.Troubles), func(name string) bool { return !troubleNamed(name).fits(s.Options.Backend) })
	}
	return s
}

func (s Soak) String() string {
	on := strings.Join(s.Troubles, ",")
	if on == "" {
		on = "none"
	}
	if s.Plan != nil {
		on += " and " + s.Plan.File
	}
	several := ""
	if s.Options.Arrays > 1 {
		several = fmt.Sprintf(", %d arrays", s.Options.Arrays)
	}
	if s.VCenters > 1 {
		several = fmt.Sprintf(", %d vCenters", s.VCenters)
	}
	return fmt.Sprintf("seed %d: %s%s, %d nodes, %d volumes, %v, a fault every %v, a step every %v, faults %s",
		s.Seed, s.Options.System(), several, s.Options.Nodes, s.Volumes, s.Duration, s.Between, s.Pause, on)
}

// SoakResult is the end of a soak.
type SoakResult struct {
	Soak   Soak   `json:"-"`
	Plan   string `json:"plan"`
	Class  Class  `json:"class"`
	Reason string `json:"reason,omitempty"`
	// Virtual is how long it took in the lab's time, all phases.
	Virtual time.Duration `json:"virtual"`
	// Steps are those that users began, Faults those that happened, by kind.
	Steps  map[string]int `json:"steps"`
	Faults map[string]int `json:"faults"`
	Calls  int            `json:"calls"`
	Ledger string         `json:"ledger,omitempty"`
	// Unfired: it failed because a rule of its plan never fired. A smaller run tells
	// no more.
	Unfired bool `json:"-"`
	// Digest is of all calls in their order: the same for the same plan.
	Digest string `json:"digest,omitempty"`
}

// calmTime bounds how long everybody may need once all is healed: the force
// detach and the longest back-off of a sidecar (five minutes) several times over.
const calmTime = 3 * time.Hour

// soakCalls is how many calls the ledger of a soak keeps: the last hours of a run
// that fails, in some hundred MB.
const soakCalls = 200_000

// Run runs it. In a bubble: ctx must be of the bubble, and Options.Bubble set.
// keep is the directory for the ledger of a run that fails; "" keeps none.
func (s Soak) Run(ctx context.Context, keep string) (res SoakResult) {
	res = SoakResult{Soak: s, Plan: s.String(), Steps: map[string]int{}, Faults: map[string]int{}}
	start := time.Now()
	opts := s.Options
	opts.VCenters = s.vcenters()
	opts.Settle, opts.MaxCalls = time.Hour, soakCalls
	var calls ledger.Digest
	opts.Arm = func(l *sim.Lab) error { l.Ledger.Subscribe(calls.Add); return nil }
	lab, err := sim.Start(ctx, opts)
	if err != nil {
		res.Class, res.Reason = classify(ctx, err)
		return res
	}
	err = s.run(ctx, lab, &res)
	if err != nil {
		if v := lab.Broken(context.WithoutCancel(ctx)); v != nil {
			err = errors.Join(v, err)
		}
		if keep != "" {
			var lost error
			res.Ledger, lost = lab.WriteLedger(keep, fmt.Sprintf("soak-%s-%d", opts.System(), s.Seed))
			err = unwritten(err, lost)
		}
	}
	res.Class, res.Reason = classify(ctx, err)
	res.Unfired = errors.Is(err, errUnfired)
	res.Virtual, res.Calls = time.Since(start), lab.Ledger.Len()
	res.Digest = calls.String()
	if cerr := lab.Close(); cerr != nil && res.Class == Passed {
		res.Class, res.Reason = classify(ctx, cerr)
	}
	return res
}

// vcenters are several, each with a zone of its own and its share of the nodes;
// nil is one.
func (s Soak) vcenters() (out []sim.VCenter) {
	if s.VCenters < 2 {
		return nil
	}
	for i := range s.VCenters {
		out = append(out, sim.VCenter{Name: fmt.Sprintf("vc-%d", i+1)})
	}
	for n := range s.Options.Nodes {
		i := n % s.VCenters
		out[i].Nodes = append(out[i].Nodes, vcenter.Node{Name: fmt.Sprintf("node-%d", n+1), Zone: fmt.Sprintf("zone-%d", i+1)})
	}
	return out
}

func (s Soak) run(ctx context.Context, l *sim.Lab, res *SoakResult) error {
	kinds := varietyOf(l)
	if err := errors.Join(l.NodesReady(ctx), l.Apply(ctx, l.Classes()), kinds.classes(ctx, l)); err != nil {
		return err
	}
	if s.Mutate != nil {
		s.Mutate(l)
	}
	end := time.Now().Add(s.Duration)
	var mu sync.Mutex
	count := func(m map[string]int) func(string) {
		return func(kind string) { mu.Lock(); m[kind]++; mu.Unlock() }
	}
	plan, err := s.arm(l, count(res.Faults))
	if err != nil {
		return err
	}
	// A user has up to three claims.
	users := make([]*user, max(1, (s.Volumes+2)/3))
	failed := make(chan error, len(users)+3)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all, trouble sync.WaitGroup
	defer trouble.Wait()
	defer all.Wait()
	defer stop()
	for i := range users {
		u := &user{l: l, name: fmt.Sprintf("u%d", i+1), rand: rand.New(rand.NewPCG(s.Seed, uint64(i)+100)), did: count(res.Steps), patience: calmTime, variety: kinds}
		users[i] = u
		all.Go(func() {
			if err := u.soak(ctx, end, s.Pause); err != nil {
				failed <- step(err, "user %s (%s)", u.name, u.last)
			}
		})
	}
	trouble.Go(func() { s.trouble(ctx, l, end, count(res.Faults)) })
	trouble.Go(func() {
		later(ctx, l, "end of the plan", time.Until(end))
		if err := plan(); err != nil && ctx.Err() == nil {
			failed <- err
		}
	})
	done := make(chan struct{})
	go func() { all.Wait(); trouble.Wait(); close(done) }()
	look := time.NewTicker(max(s.Duration/48, time.Minute))
	defer look.Stop()
	deadline := time.NewTimer(s.Duration + calmTime)
	defer deadline.Stop()
	for {
		select {
		case err := <-failed:
			return err
		case <-look.C:
			if err := l.Broken(ctx); err != nil {
				return err
			}
		case <-deadline.C:
			stop()
			all.Wait() // what they do is theirs until they have ended
			var waits []string
			for _, u := range users {
				if u.last != "" {
					waits = append(waits, u.name+" "+u.last)
				}
			}
			return &sim.TimeoutError{What: fmt.Sprintf("%v after all was healed some are not done: %s", calmTime, strings.Join(waits, "; ")), Err: context.DeadlineExceeded}
		case <-done:
			select {
			case err := <-failed:
				return err
			default:
			}
			return l.Empty(ctx)
		}
	}
}

// soak does steps until end, then deletes all.
func (u *user) soak(ctx context.Context, end time.Time, pause time.Duration) error {
	for time.Now().Before(end) {
		if !later(ctx, u.l, u.name, draw(u.rand, pause)) {
			return context.Cause(ctx)
		}
		if err := u.one(ctx); err != nil {
			return err
		}
	}
	if err := u.leave(ctx); err != nil {
		return err
	}
	u.last = ""
	return nil
}

// draw is a time between a half and one and a half of mean.
func draw(r *rand.Rand, mean time.Duration) time.Duration {
	return mean/2 + time.Duration(r.Int64N(int64(mean)))
}

// trouble makes faults until end, one after the other or over each other, and
// heals them all.
func (s Soak) trouble(ctx context.Context, l *sim.Lab, end time.Time, did func(string)) {
	if len(s.Troubles) == 0 {
		return
	}
	r := rand.New(rand.NewPCG(s.Seed, 2))
	var open sync.WaitGroup
	defer open.Wait()
	for n := 1; ; n++ {
		pause := draw(r, s.Between)
		if time.Now().Add(pause).After(end) || !later(ctx, l, "trouble", pause) {
			return
		}
		name := s.Troubles[r.IntN(len(s.Troubles))]
		heal := armed(l, name, did, troubleNamed(name).rules(l, r)...)
		last := min(2*draw(r, s.Between), time.Until(end)) // two at a time, on average
		open.Go(func() { later(ctx, l, fmt.Sprint("end of trouble ", n), last); heal() })
	}
}

// arm arms the rules of the plan. What it returns takes them out, heals what they
// did, and tells which never fired.
func (s Soak) arm(l *sim.Lab, did func(string)) (end func() error, err error) {
	if s.Plan == nil {
		return func() error { return nil }, nil
	}
	rules, err := s.Plan.Rules(l)
	if err != nil {
		return nil, err
	}
	as := l.InjectAll(rules)
	return func() error {
		err := l.Unfired()
		if err != nil {
			err = fmt.Errorf("%w%w", errUnfired, err)
		}
		for _, a := range as {
			l.Disarm(a)
			for range a.Fired() {
				did(a.Name)
			}
		}
		return err
	}, nil
}

var errUnfired = errors.New("")

// armed arms rules, and gives what takes them out, heals what they did and tells
// how often they acted.
func armed(l *sim.Lab, name string, did func(string), rules ...fault.Rule) (heal func()) {
	var as []*fault.Armed
	for _, r := range rules {
		r.MayNotFire = true
		if r.Name == "" {
			r.Name = name
		}
		as = append(as, l.Inject(r))
	}
	return func() {
		for _, a := range as {
			l.Disarm(a)
			for range a.Fired() {
				did(name)
			}
		}
	}
}

// Troubles are the names of the faults of a soak that make sense on a backend;
// of all with "".
func Troubles(backend string) (names []string) {
	for _, t := range troubles {
		if backend == "" || t.fits(backend) {
			names = append(names, t.name)
		}
	}
	return names
}

func troubleNamed(name string) trouble {
	for _, t := range troubles {
		if t.name == name {
			return t
		}
	}
	return trouble{}
}

// Total sums up counts.
func Total(m map[string]int) (n int) {
	for v := range maps.Values(m) {
		n += v
	}
	return n
}
