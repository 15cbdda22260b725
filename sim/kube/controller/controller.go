// Package controller is the loop that all controllers of the simulated control
// plane run under: changes of objects become keys, keys wait in a rate-limited
// queue, workers reconcile one key at a time. What a controller decides stands
// in its Reconcile, which a test can also call by hand, step by step.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"

	"github.com/csilab/csilab/driver/apart"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
)

// Config is one controller. Name, Client, Kinds and Reconcile are required.
type Config struct {
	// Name is for logs.
	Name string
	// Client is where the watch is opened.
	Client *store.Client
	// Kinds are the watched kinds, e.g. "Pod".
	Kinds []string
	// Keys says which keys an event concerns; nil takes the object's own key.
	// It is called for one event at a time, in the order of the store.
	Keys func(store.Event) []string
	// Reconcile brings the world nearer to what is wanted for one key. One key
	// is never reconciled twice at the same time. A result > 0 asks for another
	// call after that time. An error is retried with back-off; one made by
	// Fatal ends the controller.
	Reconcile func(ctx context.Context, key string) (requeueAfter time.Duration, err error)
	// BaseDelay and MaxDelay bound the exponential back-off of a failing key,
	// which doubles from Base to Max. 0 is 5 ms and 1000 s, the defaults of
	// client-go (util/workqueue/default_rate_limiters.go, DefaultTypedControllerRateLimiter).
	BaseDelay, MaxDelay time.Duration
	// Workers is how many keys are reconciled at the same time. 0 is 1.
	Workers int
	// Resync > 0 reconciles the keys of all objects again at this interval and a part
	// of a millisecond that the name decides.
	Resync time.Duration
	// Log may be nil.
	Log *slog.Logger
}

// Defaults of client-go's DefaultTypedControllerRateLimiter (util/workqueue/default_rate_limiters.go).
const (
	DefaultBaseDelay = 5 * time.Millisecond
	DefaultMaxDelay  = 1000 * time.Second
)

type fatalError struct{ err error }

func (f fatalError) Error() string { return f.err.Error() }
func (f fatalError) Unwrap() error { return f.err }

// Fatal marks an error of Reconcile that ends the controller, as a process
// that exits. Fatal(nil) is nil.
func Fatal(err error) error {
	if err == nil {
		return nil
	}
	return fatalError{err}
}

// Run runs a controller until ctx ends, then returns nil; or until Reconcile
// returns a Fatal error, or its client was fenced, then returns that error. No
// goroutine and no call of Reconcile is left when it returns.
func Run(ctx context.Context, c Config) error {
	if c.Client == nil || c.Reconcile == nil || len(c.Kinds) == 0 {
		return fmt.Errorf("controller %q: Client, Kinds and Reconcile are required", c.Name)
	}
	if c.BaseDelay < 0 || c.MaxDelay < 0 || c.Workers < 0 || c.Resync < 0 {
		return fmt.Errorf("controller %q: BaseDelay %v, MaxDelay %v, Workers %d and Resync %v must not be negative", c.Name, c.BaseDelay, c.MaxDelay, c.Workers, c.Resync)
	}
	if c.Keys == nil {
		c.Keys = func(e store.Event) []string { return []string{store.Key(e.Object)} }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	l := &loop{Config: c, cancel: cancel, queue: workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](
			cmp.Or(c.BaseDelay, DefaultBaseDelay), cmp.Or(c.MaxDelay, DefaultMaxDelay)))}
	events := c.Client.Watch(fault.About(ctx, c.Name+" "+strings.Join(c.Kinds, ",")), c.Kinds...)
	var wg sync.WaitGroup
	for range max(c.Workers, 1) {
		wg.Go(func() { l.work(ctx) })
	}
	l.feed(ctx, events)
	l.queue.ShutDown()
	wg.Wait()
	for range events { // the watch has ended when its channel is closed
	}
	if err := context.Cause(ctx); errors.As(err, new(fatalError)) || errors.Is(err, fault.ErrCrashed) {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

type loop struct {
	Config
	cancel context.CancelCauseFunc
	queue  workqueue.TypedRateLimitingInterface[string]
}

// feed turns events into keys until ctx ends.
func (l *loop) feed(ctx context.Context, events <-chan store.Event) {
	var tick <-chan time.Time
	known := map[string][]string{} // object -> its keys, for Resync
	if l.Resync > 0 {
		// A retry of a key that came due at the same moment would be one attempt with
		// it, or one more, by chance. In life resyncs come at intervals that are drawn
		// (ResyncPeriod of
		// kubernetes v1.37.2 cmd/kube-controller-manager/app/controllermanager.go:191).
		t := time.NewTicker(l.Resync + apart.By(l.Name))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			keys := l.Keys(e)
			l.add(keys)
			if l.Resync > 0 {
				id := e.Kind + "|" + store.Key(e.Object)
				known[id] = keys
				if e.Type == store.Deleted {
					delete(known, id)
				}
			}
		case <-tick:
			var all []string
			for _, id := range slices.Sorted(maps.Keys(known)) {
				all = append(all, known[id]...)
			}
			l.add(all)
		}
	}
}

// add queues keys, each once: a worker may begin with the first of two before the
// second is there, and it would be reconciled twice, or not, by chance.
func (l *loop) add(keys []string) {
	added := make(map[string]bool, len(keys))
	for _, k := range keys {
		if !added[k] {
			added[k] = true
			l.queue.Add(k)
		}
	}
}

func (l *loop) work(ctx context.Context) {
	for {
		key, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		if ctx.Err() == nil {
			l.reconcile(ctx, key)
		}
		l.queue.Done(key)
	}
}

func (l *loop) reconcile(ctx context.Context, key string) {
	ctx = fault.About(ctx, l.Name+" "+key)
	l.Client.Await(ctx, "reconcile "+l.Name, key)
	after, err := l.Reconcile(ctx, key)
	switch {
	case err == nil:
		l.queue.Forget(key)
		if after > 0 {
			l.queue.AddAfter(key, after)
		}
	case errors.As(err, new(fatalError)), errors.Is(err, fault.ErrCrashed):
		l.cancel(err)
	case ctx.Err() != nil:
	default:
		level := slog.LevelWarn
		if apierrors.IsConflict(err) { // the next try reads the newer version
			level = slog.LevelDebug
		}
		l.Log.Log(ctx, level, "reconcile failed", "controller", l.Name, "key", key, "failures", l.queue.NumRequeues(key)+1, "err", err)
		l.queue.AddRateLimited(key)
	}
}
