package vsphere

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vmware/govmomi/vim25/types"
)

// enter ties a call to the life of the backend.
func (b *Backend) enter(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(fmt.Errorf("the driver is stopping: %w", context.Canceled)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ended is the error of a context that is over. It keeps the cause's text and
// is of the context's kind.
func ended(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, ctx.Err()) {
		return cause
	}
	return ctx.Err()
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

var errCallTimeout = errors.New("no answer in time")

// within runs one call, bounded in time. A call that runs out of its own time
// is lost; one whose caller has gone returns the context's error.
func within(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	cctx, cancel := context.WithTimeoutCause(ctx, d, errCallTimeout)
	defer cancel()
	err := f(cctx)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	if context.Cause(cctx) == errCallTimeout {
		return &lost{errCallTimeout}
	}
	return wire(err)
}

// read runs f, which changes nothing, and so runs it again when the session
// or the connection turns out dead.
func (b *Backend) read(ctx context.Context, f func(ctx context.Context, s *session) error) error {
	for try := 1; ; try++ {
		s, err := b.session(ctx)
		if err != nil {
			return err
		}
		err = within(ctx, b.opt.CallTimeout, func(ctx context.Context) error { return f(ctx, s) })
		var l *lost
		switch {
		case err == nil || try == 3 || ctx.Err() != nil:
			return err
		case dead(err):
			b.drop(s)
		case errors.As(err, &l) && try == 1:
		default:
			return err
		}
	}
}

// dead reports whether the session has ended on the server: it says so, or an
// object that lives and dies with a session is gone.
func dead(err error) bool {
	var f *fault
	if !errors.As(err, &f) {
		return false
	}
	switch v := f.value.(type) {
	case *types.NotAuthenticated:
		return true
	case *types.ManagedObjectNotFound:
		return v.Obj.Type == "PropertyCollector" || v.Obj.Type == "ContainerView" || v.Obj.Type == "PropertyFilter"
	}
	return false
}
