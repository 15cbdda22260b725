// Package kube runs the simulated control plane's own controllers together:
// what kube-controller-manager and kube-scheduler are in a cluster. The CSI
// sidecars and kubelets are packages of their own.
package kube

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/csilab/csilab/sim/kube/attachdetach"
	"github.com/csilab/csilab/sim/kube/binder"
	"github.com/csilab/csilab/sim/kube/ephemeralvolume"
	"github.com/csilab/csilab/sim/kube/expand"
	"github.com/csilab/csilab/sim/kube/garbagecollector"
	"github.com/csilab/csilab/sim/kube/nodelifecycle"
	"github.com/csilab/csilab/sim/kube/podgc"
	"github.com/csilab/csilab/sim/kube/protection"
	"github.com/csilab/csilab/sim/kube/scheduler"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/kube/tainteviction"
)

// Timers are the waiting times of all controllers. Each package says where its
// own come from.
type Timers struct {
	Binder        binder.Timers
	Scheduler     scheduler.Timers
	AttachDetach  attachdetach.Timers
	NodeLifecycle nodelifecycle.Timers
	PodGC         podgc.Timers
}

// RealTimers are those of a cluster with default flags.
func RealTimers() Timers {
	return Timers{Binder: binder.RealTimers(), Scheduler: scheduler.RealTimers(), AttachDetach: attachdetach.RealTimers(),
		NodeLifecycle: nodelifecycle.RealTimers(), PodGC: podgc.RealTimers()}
}

// FastTimers are for tests on the wall.
func FastTimers() Timers {
	return Timers{Binder: binder.FastTimers(), Scheduler: scheduler.FastTimers(), AttachDetach: attachdetach.FastTimers(),
		NodeLifecycle: nodelifecycle.FastTimers(), PodGC: podgc.FastTimers()}
}

// Config is the set of controllers.
type Config struct {
	Store *store.Store // required
	// Timers' zero fields take those of RealTimers.
	Timers Timers
	// DisableForceDetach is kube-controller-manager's --disable-force-detach-on-timeout.
	DisableForceDetach bool
	Log                *slog.Logger // may be nil
}

// Components are the controllers by the name that each acts under in the
// store, the ledger and fault rules. A lab that crashes and restarts them one
// by one runs these; each value runs until its context ends, with a client of
// its own that the lab may fence.
func Components(cfg Config) map[string]func(context.Context, *store.Client) error {
	return map[string]func(context.Context, *store.Client) error{
		binder.Actor: func(ctx context.Context, c *store.Client) error {
			return binder.New(binder.Config{Client: c, Timers: cfg.Timers.Binder, Log: cfg.Log}).Run(ctx)
		},
		scheduler.Actor: func(ctx context.Context, c *store.Client) error {
			return scheduler.New(scheduler.Config{Client: c, Timers: cfg.Timers.Scheduler, Log: cfg.Log}).Run(ctx)
		},
		attachdetach.Actor: func(ctx context.Context, c *store.Client) error {
			return attachdetach.New(attachdetach.Config{Client: c, Timers: cfg.Timers.AttachDetach, DisableForceDetach: cfg.DisableForceDetach, Log: cfg.Log}).Run(ctx)
		},
		nodelifecycle.Actor: func(ctx context.Context, c *store.Client) error {
			return nodelifecycle.New(nodelifecycle.Config{Client: c, Timers: cfg.Timers.NodeLifecycle, Log: cfg.Log}).Run(ctx)
		},
		tainteviction.Actor: func(ctx context.Context, c *store.Client) error {
			return tainteviction.New(tainteviction.Config{Client: c, Log: cfg.Log}).Run(ctx)
		},
		podgc.Actor: func(ctx context.Context, c *store.Client) error {
			return podgc.New(podgc.Config{Client: c, Timers: cfg.Timers.PodGC, Log: cfg.Log}).Run(ctx)
		},
		ephemeralvolume.Actor: func(ctx context.Context, c *store.Client) error {
			return ephemeralvolume.Run(ctx, c, cfg.Log)
		},
		garbagecollector.Actor: func(ctx context.Context, c *store.Client) error {
			return garbagecollector.Run(ctx, c, cfg.Log)
		},
		expand.Actor: func(ctx context.Context, c *store.Client) error { return expand.Run(ctx, c, cfg.Log) },
		protection.ClaimActor: func(ctx context.Context, c *store.Client) error {
			return protection.RunClaims(ctx, c, cfg.Log)
		},
		protection.VolumeActor: func(ctx context.Context, c *store.Client) error {
			return protection.RunVolumes(ctx, c, cfg.Log)
		},
	}
}

// RunCore runs all of them until ctx ends, then returns nil; or until one
// fails, then returns its error. Nothing is left running when it returns.
func RunCore(ctx context.Context, cfg Config) error {
	if cfg.Store == nil {
		return fmt.Errorf("kube: Config.Store is required")
	}
	g, ctx := errgroup.WithContext(ctx)
	for name, run := range Components(cfg) {
		g.Go(func() error { return run(ctx, cfg.Store.Client(name)) })
	}
	return g.Wait()
}
