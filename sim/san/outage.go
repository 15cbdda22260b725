package san

import (
	"fmt"
	"time"

	"github.com/csilab/csilab/sim/array"
)

// refreshAll looks at all sessions anew. The lock is held.
func (s *SAN) refreshAll(concerns func(*session) bool) {
	for _, n := range s.nodes {
		for _, x := range n.sessions {
			if concerns(x) {
				s.refresh(x)
			}
		}
	}
}

func (s *SAN) portOf(arrayName string, pos array.PortPos) (*port, error) {
	a, err := s.array(arrayName)
	if err != nil {
		return nil, err
	}
	if p := a.ports[pos]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("san: array %q has no port %s for hosts over FC or iSCSI", arrayName, pos)
}

// PortDown takes the link of a port away, for all nodes, or gives it back.
// Errors: no such array or port.
func (s *SAN) PortDown(arrayName string, pos array.PortPos, down bool) error {
	p, err := s.portOf(arrayName, pos)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := array.LinkReady
	if down {
		state = array.LinkLossSync
	}
	if err := p.a.core.SetLink(pos, state); err != nil {
		return fmt.Errorf("san: array %q: %w", arrayName, err)
	}
	s.refreshAll(func(x *session) bool { return x.port == p })
	return nil
}

// PathDown cuts a node off from a port, or connects it again. Errors: no such
// array or port.
func (s *SAN) PathDown(nodeName, arrayName string, pos array.PortPos, down bool) error {
	p, err := s.portOf(arrayName, pos)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node(nodeName)
	if down {
		n.down[p] = true
	} else {
		delete(n.down, p)
	}
	s.refreshAll(func(x *session) bool { return x.port == p && x.node == n })
	return nil
}

// NodeCut cuts a node off from all ports, or connects it again.
func (s *SAN) NodeCut(nodeName string, cut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node(nodeName)
	n.cut = cut
	s.refreshAll(func(x *session) bool { return x.node == n })
}

// ArrayDown lets an array be lost, ports and REST API with its sessions, or come
// back. Arrays that
// it is paired with learn of it at once, from the quorum witness: with Peer
// Persistence they take over the volumes of which they have all that was
// written. When it comes back nothing fails back by itself: see Recover.
// Errors: no such array, and of the state directory.
func (s *SAN) ArrayDown(name string, down bool) error {
	a, err := s.array(name)
	if err != nil {
		return err
	}
	s.mu.RLock()
	reachable := !down && !a.apiDown
	s.mu.RUnlock()
	a.server.SetReachable(reachable)
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		if a.down == down {
			return nil, nil
		}
		a.down = down
		if down {
			a.endSessions()
		}
		s.refreshAll(func(x *session) bool { return x.port.a == a })
		var ops []array.ContentOp
		for _, t := range a.core.Targets() {
			b := s.byName[t.Name]
			var more []array.ContentOp
			var err error
			switch {
			case down:
				more, err = b.core.Lost(now, a.name)
			case !b.down && !a.cut[b.name]:
				more, err = b.core.Connect(now, a.name, true)
			}
			ops = append(ops, more...)
			if err != nil {
				return ops, err
			}
		}
		return ops, nil
	})
}

// LinkDown takes the remote copy link between two paired arrays away, or gives
// it back. Started groups stop; nothing starts again by itself. Errors: no such
// arrays or pair, and of the state directory.
func (s *SAN) LinkDown(one, other string, down bool) error {
	a, err := s.array(one)
	if err != nil {
		return err
	}
	b, err := s.array(other)
	if err != nil {
		return err
	}
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		up := !down && !a.down && !b.down
		ops, err := a.core.Connect(now, b.name, up)
		if err == nil {
			a.cut[b.name], b.cut[a.name] = down, down
		}
		return ops, err
	})
}

// FailBack gives the groups that an array holds in the wrong direction their
// natural one again: what an administrator does once they are up to date after
// Recover. Errors: those of array.RestoreGroup, RCOPY_GROUP_IS_BUSY before that.
func (s *SAN) FailBack(name string) error {
	return s.primaries(name, func(a *Array, now time.Time, g array.Group) ([]array.ContentOp, error) {
		if !g.Reversed {
			return nil, nil
		}
		return a.core.RestoreGroup(now, g.Name)
	})
}

// Recover makes the other side of all groups that failed over to an array
// secondary again, and lets it be brought up to date: what an administrator does
// once the lost array is back. Errors: those of array.Recover.
func (s *SAN) Recover(name string) error {
	return s.primaries(name, func(a *Array, now time.Time, g array.Group) ([]array.ContentOp, error) {
		if !g.Reversed || g.State == array.GroupIsStarted {
			return nil, nil
		}
		_, ops, err := a.core.Recover(now, g.Name)
		return ops, err
	})
}

// StartGroups starts the groups of which an array is the primary, and which have
// stopped: what an administrator does after an outage that no failover followed.
// Errors: those of array.StartGroup.
func (s *SAN) StartGroups(name string) error {
	return s.primaries(name, func(a *Array, now time.Time, g array.Group) ([]array.ContentOp, error) {
		if g.State == array.GroupIsStarted || len(g.Volumes) == 0 {
			return nil, nil
		}
		_, ops, err := a.core.StartGroup(now, g.Name)
		return ops, err
	})
}

// primaries does something to each group of which an array is the primary.
func (s *SAN) primaries(name string, do func(*Array, time.Time, array.Group) ([]array.ContentOp, error)) error {
	a, err := s.array(name)
	if err != nil {
		return err
	}
	return a.Change(func(now time.Time) ([]array.ContentOp, error) {
		var ops []array.ContentOp
		for _, g := range a.core.Groups() {
			if g.Role != array.Primary {
				continue
			}
			more, err := do(a, now, g)
			ops = append(ops, more...)
			if err != nil {
				return ops, err
			}
		}
		return ops, nil
	})
}

// IsCut says whether a node is cut off from all ports: see NodeCut.
func (s *SAN) IsCut(nodeName string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := s.nodes[nodeName]
	return n != nil && n.cut
}
