package node

import (
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// inflight admits one call per volume at a time. The next one is Aborted, which
// the CSI spec (section "Error Scheme", ABORTED) has for "an operation is
// pending for this volume" and orchestrators retry. No lock is held while a
// call runs.
type inflight struct {
	mu   sync.Mutex
	busy map[string]string // volume id -> operation
}

// begin returns the function that ends the call.
func (f *inflight) begin(volume, op string) (end func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.busy[volume]; ok {
		return nil, status.Errorf(codes.Aborted, "%s of volume %q: a %s of it is still under way", op, volume, other)
	}
	if f.busy == nil {
		f.busy = map[string]string{}
	}
	f.busy[volume] = op
	return func() {
		f.mu.Lock()
		delete(f.busy, volume)
		f.mu.Unlock()
	}, nil
}

// known remembers which volume this process put at a path. It serves to refuse
// a call that names one volume and the path of another; after a restart such a
// call is not noticed, which harms nobody: what is at the path is still what
// the orchestrator asked to have undone.
type known struct {
	mu    sync.Mutex
	paths map[string]string // path -> volume id
}

func (k *known) put(path, volume string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.paths == nil {
		k.paths = map[string]string{}
	}
	k.paths[path] = volume
}

func (k *known) drop(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.paths, path)
}

// other is the volume that is at the path, when it is known and not this one.
func (k *known) other(path, volume string) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.paths[path]
	return v, ok && v != volume
}
