package record

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
)

// Memory keeps records for as long as the value lives.
type Memory struct {
	mu sync.Mutex
	m  map[string]Record
}

// NewMemory returns an empty store.
func NewMemory() *Memory { return &Memory{m: map[string]Record{}} }

// Get implements Store.
func (s *Memory) Get(ctx context.Context, key string) (Record, error) {
	if err := check(ctx, key); err != nil {
		return Record{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.m[key]
	if !ok {
		return Record{}, ErrNotFound
	}
	r.Params = maps.Clone(r.Params)
	return r, nil
}

// Put implements Store.
func (s *Memory) Put(ctx context.Context, r Record) error {
	if err := check(ctx, r.Key); err != nil {
		return err
	}
	r.Params = maps.Clone(r.Params)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[r.Key] = r
	return nil
}

// Delete implements Store.
func (s *Memory) Delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, key)
	return nil
}

// List implements Store; the order is that of the keys.
func (s *Memory) List(ctx context.Context) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Record, 0, len(s.m))
	for _, r := range s.m {
		r.Params = maps.Clone(r.Params)
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return out, nil
}
