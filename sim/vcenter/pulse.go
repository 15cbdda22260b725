package vcenter

import "sync"

// pulse wakes all who wait for something to change.
type pulse struct {
	mu sync.Mutex
	ch chan struct{}
}

// next is closed at the next beat. Take it before looking at what may change.
func (p *pulse) next() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ch == nil {
		p.ch = make(chan struct{})
	}
	return p.ch
}

func (p *pulse) beat() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ch != nil {
		close(p.ch)
		p.ch = nil
	}
}
