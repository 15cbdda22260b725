package cnsface

import (
	"context"
	"slices"
	"sync"
)

// keyed is a lock per key. It is waited for on channels, with a context, so
// that it may be held across I/O.
type keyed struct {
	mu sync.Mutex
	m  map[string]*turn
}

type turn struct {
	free  chan struct{} // holds a token while nobody has the lock
	users int
}

// lock waits for the lock of a key. Errors: the context's.
func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.m == nil {
		k.m = map[string]*turn{}
	}
	t := k.m[key]
	if t == nil {
		t = &turn{free: make(chan struct{}, 1)}
		t.free <- struct{}{}
		k.m[key] = t
	}
	t.users++
	k.mu.Unlock()

	leave := func() {
		k.mu.Lock()
		if t.users--; t.users == 0 {
			delete(k.m, key)
		}
		k.mu.Unlock()
	}
	select {
	case <-t.free:
		return func() { t.free <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, context.Cause(ctx)
	}
}

// lockAll waits for the locks of several keys, in one order for all callers,
// so that two never wait for each other. Errors: the context's.
func (k *keyed) lockAll(ctx context.Context, keys ...string) (unlock func(), err error) {
	slices.Sort(keys)
	var held []func()
	unlock = func() {
		for _, u := range held {
			u()
		}
	}
	for _, key := range slices.Compact(keys) {
		u, err := k.lock(ctx, key)
		if err != nil {
			unlock()
			return nil, err
		}
		held = append(held, u)
	}
	return unlock, nil
}

// deletes knows the volumes that are being deleted, and how that ended for
// those that came meanwhile: a second delete while the first runs is no fault
// (CNS API reference, CnsDeleteVolume).
type deletes struct {
	mu sync.Mutex
	m  map[string]*deletion
}

type deletion struct {
	users int
	done  bool // the volume has been deleted
}

func (d *deletes) enter(volume string) *deletion {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.m == nil {
		d.m = map[string]*deletion{}
	}
	x := d.m[volume]
	if x == nil {
		x = &deletion{}
		d.m[volume] = x
	}
	x.users++
	return x
}

func (d *deletes) leave(volume string, x *deletion) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x.users--; x.users == 0 {
		delete(d.m, volume)
	}
}
