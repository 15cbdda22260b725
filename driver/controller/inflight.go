package controller

import "sync"

// InFlight knows the operations under way by subject. The zero value is
// ready.
//
// A second call on a subject is answered Aborted rather than queued: the
// specification names that code for it, callers retry with back-off, and a
// slow backend would otherwise pile up calls whose callers have long gone.
type InFlight struct {
	mu sync.Mutex
	m  map[string]string
}

// Claim takes a subject for an operation, or returns Aborted naming the
// operation that has it. The claim ends with release.
func (f *InFlight) Claim(subject, op string) (release func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if other, ok := f.m[subject]; ok {
		return nil, Errorf(Aborted, "%s: %s is under way for %s", op, other, subject)
	}
	if f.m == nil {
		f.m = map[string]string{}
	}
	f.m[subject] = op
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.m, subject)
	}, nil
}
