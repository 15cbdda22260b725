package csp

import (
	"time"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// joining is a volume that is to be in a remote copy group.
type joining struct {
	name string  // its virtual volume
	r    *record // Replica is set once it is in
	err  error
}

// batch is volumes that join a group together, so that it stops once for all of
// them (allow_batch_replicated_volume_creation). Who comes first waits for
// others, and does it for all.
type batch struct {
	members []*joining
	done    chan struct{}
}

// batchKey is what volumes must have in common.
type batchKey struct {
	array   *wsapi.Client
	group   string
	devices string
}

// inBatch puts a volume in a group together with others that are asked for
// within the window (SCOD: ten seconds). Unverified: whether the real window
// begins with the first volume.
func (s *Server) inBatch(c *call, d ReplicationDevice, group string, j *joining) error {
	key := batchKey{c.array, group, j.r.Config["replication_devices"]}
	s.batches.mu.Lock()
	b := s.batches.open[key]
	first := b == nil
	if first {
		b = &batch{done: make(chan struct{})}
		if s.batches.open == nil {
			s.batches.open = map[batchKey]*batch{}
		}
		s.batches.open[key] = b
	}
	b.members = append(b.members, j)
	s.batches.mu.Unlock()
	if !first {
		select {
		case <-b.done:
			return j.err
		case <-c.ctx.Done(): // the first one goes on with it
			return failed("waiting for others to join remote copy group "+group, c.ctx.Err())
		}
	}
	t := time.NewTimer(s.cfg.BatchWindow)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.ctx.Done():
	}
	s.batches.mu.Lock()
	delete(s.batches.open, key)
	s.batches.mu.Unlock()
	s.together(c, d, group, b.members)
	close(b.done)
	return j.err
}
