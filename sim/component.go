package sim

import (
	"context"
	"errors"
	"sync"

	"github.com/csilab/csilab/sim/fault"
)

// incarnation is one life of a component.
type incarnation struct {
	// fence makes sure that nothing that this incarnation does from now on has
	// an effect. It returns at once and may be called from inside one of the
	// incarnation's own calls.
	fence func()
	// run works until ctx ends or the component gives up.
	run func(ctx context.Context) error
}

// component is a supervised part of the lab: when an incarnation ends, the
// next one starts from durable state only, as a kubelet restarts a container.
type component struct {
	lab   *Lab
	name  string
	spawn func() (*incarnation, error)

	mu      sync.Mutex
	current *incarnation
	cancel  context.CancelFunc
	down    bool
	atOnce  bool // started again before the loop saw that it was down
	starts  int
	lastErr error
	wake    chan struct{}
	// onCrash, where set, is called at a crash, once it is fenced; forget, where
	// set, before the next life of one that has lost its state as well.
	onCrash func(losing bool)
	forget  func() error
	losing  bool
}

func (l *Lab) supervise(name string, spawn func() (*incarnation, error)) *component {
	c := &component{lab: l, name: name, spawn: spawn, wake: make(chan struct{}, 1)}
	l.mu.Lock()
	l.components[name] = c
	l.mu.Unlock()
	l.wg.Go(c.loop)
	return c
}

func (c *component) loop() {
	ctx := c.lab.ctx
	for ctx.Err() == nil {
		c.mu.Lock()
		down := c.down
		if !down {
			c.atOnce = false
		}
		c.mu.Unlock()
		if down {
			select {
			case <-c.wake:
			case <-ctx.Done():
			}
			continue
		}
		c.live(ctx)
		c.mu.Lock()
		wait := !c.down && !c.atOnce
		c.mu.Unlock()
		if wait {
			_ = c.lab.in.Sleep(ctx, c.lab.opts.restartDelay(), fault.Call{Op: "start", Component: c.name})
		}
	}
}

// live runs one incarnation.
func (c *component) live(ctx context.Context) {
	ictx, cancel := context.WithCancel(ctx)
	defer cancel()
	inc, err := c.spawn()
	if err != nil {
		c.note(err)
		return
	}
	c.mu.Lock()
	if c.down {
		c.mu.Unlock()
		inc.fence()
		return
	}
	c.current, c.cancel = inc, cancel
	c.starts++
	c.mu.Unlock()
	err = inc.run(ictx)
	inc.fence() // also after a clean end: nothing of it may linger
	c.mu.Lock()
	c.current, c.cancel = nil, nil
	losing, forget := c.losing, c.forget
	c.losing = false
	c.mu.Unlock()
	c.note(err)
	if losing && forget != nil && ctx.Err() == nil {
		c.note(forget())
	}
}

func (c *component) note(err error) {
	if err == nil || errors.Is(err, context.Canceled) || c.lab.ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	c.lastErr = err
	c.mu.Unlock()
	c.lab.log.Warn("component ended", "component", c.name, "err", err)
}

// crash fences and cancels the present incarnation; the loop starts the next.
func (c *component) crash() {
	c.mu.Lock()
	inc, cancel, onCrash, losing := c.current, c.cancel, c.onCrash, c.losing
	c.mu.Unlock()
	if inc != nil {
		c.lab.log.Info("crash", "component", c.name, "losing state", losing)
		inc.fence()
		if onCrash != nil && c.lab.ctx.Err() == nil {
			onCrash(losing)
		}
		cancel()
	}
}

// stop crashes the component and keeps it down until start.
func (c *component) stop() {
	c.mu.Lock()
	c.down = true
	c.mu.Unlock()
	c.crash()
}

func (c *component) start() {
	c.mu.Lock()
	c.down, c.atOnce = false, c.atOnce || c.down
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Starts is how often a component was started, e.g. "driver-controller",
// "driver@node-1", "kubelet@node-1", "csi-attacher". 0 for an unknown name.
func (l *Lab) Starts(name string) int {
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts
}

// Crash kills a component; it is restarted from durable state only.
func (l *Lab) Crash(name string) {
	l.byHand(name)
	l.crash(name)
}

func (l *Lab) crash(name string) {
	l.mu.Lock()
	c := l.components[name]
	l.mu.Unlock()
	if c == nil && l.sidecars.Crash(name) {
		return
	}
	if c == nil {
		l.log.Error("crash of an unknown component", "component", name)
		return
	}
	c.crash()
}
