// Package sim is a lab: one running world with a vCenter, nodes with kubelets,
// a control plane and the CSI driver, all hops between them recorded and open
// to faults.
package sim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/kube/sidecars"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/vcenter"
	"github.com/csilab/csilab/sim/wsapi"
)

// Lab is one running world. Start makes one; Close ends it.
type Lab struct {
	Ledger *ledger.Ledger
	Plan   *fault.Plan

	opts   Options
	log    *slog.Logger
	ctx    context.Context
	cancel context.CancelFunc
	// alarm ends when an observation breaks an invariant for good.
	alarm context.Context
	ring  context.CancelFunc
	wg    sync.WaitGroup
	dir   *stateDir // nil in a bubble

	in        *fault.Interceptor
	disks     *mutableDisks
	backend   backend
	store     *store.Store
	user      *store.Client
	net       transport.Network // of the control plane and the backend
	records   record.Store
	nodeNames sync.Map // by id in CSI
	nodes     []*Node
	data      *data
	seen      observations

	sidecars    *sidecars.Pod
	controllers map[string]bool // names of controllers and sidecars; set once

	mu         sync.Mutex
	components map[string]*component
	notes      []string
	retained   []string
	healing    *healing
	judged     []evidence.World
	closed     bool
}

// Main must be the first call of main and TestMain in programs that start
// labs: a node with a real host, and the driver on it, are child processes of
// the same binary.
func Main() {
	host.RegisterChild("csi-driver", func(args []string) int {
		return driver.Main(args, os.Getenv, os.Stdout, os.Stderr, onRealNode)
	})
	host.Main()
}

// Sweep removes what labs that were killed have left on this machine.
func Sweep(o Options) {
	o = o.WithDefaults()
	if err := ownDirectory(o.StateRoot); err != nil {
		return // there is none, or it isn't ours to clean
	}
	removed, err := host.Sweep(o.StateRoot)
	if err != nil {
		o.Log.Warn("sweep of dead labs", "err", err)
	}
	for _, dir := range removed {
		o.Log.Info("removed what a dead lab left", "dir", dir)
	}
}

// Start starts a lab. It runs until Close; ctx bounds the start only.
func Start(ctx context.Context, o Options) (_ *Lab, err error) {
	o = o.WithDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	l := &Lab{
		Ledger: &ledger.Ledger{}, Plan: &fault.Plan{Seed: o.Seed},
		opts: o, log: o.Log, components: map[string]*component{}, data: newData(), records: record.NewMemory(),
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.alarm, l.ring = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	l.in = &fault.Interceptor{Ledger: l.Ledger, Plan: l.Plan, OnCrash: l.crash, World: l, Observe: l.observe, Infer: l.cause, Classify: classify}
	l.Plan.NodeName = l.nodeName
	if o.MaxCalls > 0 {
		l.Ledger.Limit(o.MaxCalls, l.spill())
	}
	l.Ledger.Subscribe(l.ended)
	var store0 disk.Store
	switch {
	case o.Bubble:
		turns := fault.NewTurns(o.Seed, synctest.Wait)
		l.in.Turn = turns.Take
		l.wg.Go(func() { turns.Run(l.ctx) })
		l.net = l.memoryNetwork("")
		store0 = disk.NewMemory()
	default:
		if err := Preflight(o); err != nil {
			return nil, err
		}
		if l.dir, err = newStateDir(o.StateRoot); err != nil {
			return nil, &EnvironmentError{err}
		}
		l.net = transport.Wall{}
		store0 = disk.NewMemory()
		if o.Host == "real" {
			if store0, err = disk.NewFiles(filepath.Join(l.dir.path, "disks")); err != nil {
				return nil, err
			}
		}
	}
	l.disks = &mutableDisks{Store: store0}
	l.store = store.New(o.Seed, l.in)
	l.user = l.store.Client("user")
	l.backend = &vsphere{l: l}
	if o.Backend == HPE {
		l.backend = &hpe{l: l}
	}
	if err := l.backend.start(ctx); err != nil {
		return nil, err
	}
	for i, m := range l.backend.machines() {
		n, err := l.newNode(ctx, m, i)
		if n != nil {
			l.nodes = append(l.nodes, n) // also half made: Close takes it down
		}
		if err != nil {
			return nil, err
		}
	}
	if err := l.createBasics(ctx); err != nil {
		return nil, err
	}
	if o.Arm != nil {
		if err := o.Arm(l); err != nil {
			return nil, err
		}
	}
	if err := l.startControlPlane(); err != nil {
		return nil, err
	}
	l.startController()
	for _, n := range l.nodes {
		n.start()
	}
	return l, nil
}

// memoryNetwork is one of a lab in a bubble: that of a node, or of all others.
func (l *Lab) memoryNetwork(node string) *transport.Memory {
	m := transport.NewMemory()
	m.Turn = func(ctx context.Context, address string) {
		l.in.Await(ctx, fault.Call{Op: "dial", Node: node, Volume: address})
	}
	return m
}

// Options are the lab's, defaults filled in.
func (l *Lab) Options() Options { return l.opts }

// Client is the API as a user sees it.
func (l *Lab) Client() *store.Client { return l.user }

// Context ends when the lab is closed.
func (l *Lab) Context() context.Context { return l.ctx }

// Note remembers a line for the report of a scenario.
func (l *Lab) Note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notes = append(l.notes, fmt.Sprintf(format, args...))
}

// Notes are the lines noted so far.
func (l *Lab) Notes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.notes)
}

// Inject arms a fault rule.
func (l *Lab) Inject(r fault.Rule) *fault.Armed {
	l.sick()
	return l.Plan.Arm(r)
}

// Disarm takes a rule out and heals what it has done.
func (l *Lab) Disarm(a *fault.Armed) { l.Plan.Disarm(a) }

// Unfired is an error that names the rules that had to fire and have not.
func (l *Lab) Unfired() error {
	var names []string
	for _, r := range l.Plan.Unfired() {
		name := r.Name
		if why := r.Missed(); why != nil {
			name += " (" + why.Error() + ")"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("fault rules that never fired: %s", strings.Join(names, "; "))
}

// Close ends the lab and leaves nothing behind. It may be called more than once.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.cancel()
	defer l.ring()
	l.in.Close()
	for _, n := range l.nodes {
		n.failQueued()
	}
	l.mu.Lock()
	cs := make([]*component, 0, len(l.components))
	for _, c := range l.components {
		cs = append(cs, c)
	}
	l.mu.Unlock()
	for _, c := range cs {
		c.stop()
	}
	l.wg.Wait()
	if l.backend != nil {
		l.backend.close()
	}
	var errs []error
	for _, n := range l.nodes {
		errs = append(errs, n.close())
	}
	if l.disks != nil {
		errs = append(errs, l.disks.Close())
	}
	if l.dir != nil {
		errs = append(errs, l.dir.close())
	}
	return errors.Join(errs...)
}

// classify gives the protocol's code of an error for the ledger.
func classify(h ledger.Hop, err error) string {
	switch h {
	case ledger.CSI, ledger.Registration:
		if s, ok := status.FromError(err); ok {
			return s.Code().String()
		}
	case ledger.Kube:
		if r := apierrors.ReasonForError(err); r != "" {
			return string(r)
		}
	case ledger.VCenter:
		return vcenter.CodeOf(err)
	case ledger.CSP:
		return csp.CodeOf(err)
	case ledger.WSAPI:
		return wsapi.CodeOf(err)
	case ledger.Host:
		return host.CodeOf(err)
	}
	return ""
}

// settleTime bounds Check and Empty.
func (l *Lab) settleTime() time.Duration { return l.opts.SettleTime() }
