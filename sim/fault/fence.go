package fault

import "sync"

// Fence lets operations through until it is closed. The zero value is open.
type Fence struct {
	mu     sync.RWMutex
	closed bool
}

// Do runs op, or returns err without running it once the fence is closed.
func (f *Fence) Do(err error, op func() error) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if f.closed {
		return err
	}
	return op()
}

// Close waits for operations under way and stops all later ones. It must not
// be called from inside one.
func (f *Fence) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
}
