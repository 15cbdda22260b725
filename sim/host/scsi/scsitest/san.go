// Package scsitest is a storage network for tests of the SCSI side of a node: a
// table of what is exported where, and of which paths are up. It knows nothing
// of arrays (package sim/san does).
package scsitest

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
)

// SAN implements scsi.SAN.
type SAN struct {
	Store disk.Store

	mu      sync.Mutex
	ports   []scsi.Target
	chap    map[string]scsi.CHAP
	down    map[pathKey]bool
	logins  map[pathKey]bool
	luns    map[lunKey]scsi.LUN
	standby map[scsi.Target]bool
}

type pathKey struct {
	initiator string // "": all
	target    scsi.Target
}

type lunKey struct {
	initiator string
	target    scsi.Target
	number    int
}

// New returns a network over ports, with content in a store.
func New(store disk.Store, ports ...scsi.Target) *SAN {
	return &SAN{Store: store, ports: ports, chap: map[string]scsi.CHAP{}, down: map[pathKey]bool{},
		logins: map[pathKey]bool{}, luns: map[lunKey]scsi.LUN{}, standby: map[scsi.Target]bool{}}
}

// Ports makes n ports of an array: iSCSI at 10.0.0.1:3260 and on, or FC.
func Ports(p scsi.Protocol, n int) []scsi.Target {
	var out []scsi.Target
	for i := range n {
		t := scsi.Target{Protocol: p}
		if p == scsi.ISCSI {
			t.Name = fmt.Sprintf("iqn.2000-05.com.3pardata:2%d210002ac012345", i)
			t.Portal, t.Tag = fmt.Sprintf("10.0.0.%d:3260", i+1), 21+i
		} else {
			t.Name, t.Node = fmt.Sprintf("2%d210002ac012345", i), "2ff70002ac012345"
		}
		out = append(out, t)
	}
	return out
}

// WWN of the volume with an id, in the form of this kind of array.
func WWN(id string) string { return fmt.Sprintf("60002ac%025x", []byte(id))[:32] }

// Volume makes a volume: an image with the id's name.
func (s *SAN) Volume(id string, bytes int64) error { return s.Store.Create(id, bytes) }

// Export gives a volume to an initiator, as a LUN at all ports or at those named.
func (s *SAN) Export(id, initiator string, number int, at ...scsi.Target) error {
	info, err := s.Store.Stat(id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(at) == 0 {
		at = s.ports
	}
	for _, t := range at {
		s.luns[lunKey{initiator, t, number}] = scsi.LUN{Number: number, WWN: WWN(id), Vendor: "3PARdata", Product: "VV", Bytes: info.Size, Image: id}
	}
	return nil
}

// Change alters a LUN at all ports where it is exported.
func (s *SAN) Change(initiator string, number int, do func(*scsi.LUN)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, l := range s.luns {
		if k.initiator == initiator && k.number == number {
			do(&l)
			s.luns[k] = l
		}
	}
}

// Standby makes a port refuse I/O (ALUA), or take it again.
func (s *SAN) Standby(t scsi.Target, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standby[t] = on
}

// Grow enlarges a volume.
func (s *SAN) Grow(id string, bytes int64) error {
	if err := s.Store.Grow(id, bytes); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, l := range s.luns {
		if l.Image == id {
			l.Bytes = bytes
			s.luns[k] = l
		}
	}
	return nil
}

// Unexport takes a LUN away at all ports.
func (s *SAN) Unexport(initiator string, number int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range s.luns {
		if k.initiator == initiator && k.number == number {
			delete(s.luns, k)
		}
	}
}

// Down cuts a path, or heals it. initiator "": those of all.
func (s *SAN) Down(initiator string, t scsi.Target, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down[pathKey{initiator, t}] = down
}

// RequireCHAP makes targets want it of an initiator.
func (s *SAN) RequireCHAP(initiator string, c scsi.CHAP) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chap[initiator] = c
}

// Logins says at how many ports an initiator is logged in.
func (s *SAN) Logins(initiator string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for k := range s.logins {
		if k.initiator == initiator {
			n++
		}
	}
	return n
}

func (s *SAN) isDown(initiator string, t scsi.Target) bool {
	return s.down[pathKey{"", t}] || s.down[pathKey{initiator, t}]
}

// Discover implements scsi.SAN.
func (s *SAN) Discover(_ context.Context, initiator, portal string) ([]scsi.Target, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answers := false
	var out []scsi.Target
	for _, t := range s.ports {
		if t.Protocol == scsi.ISCSI {
			out = append(out, t)
			answers = answers || t.Portal == portal && !s.isDown(initiator, t)
		}
	}
	if !answers {
		return nil, scsi.ErrUnreachable
	}
	return out, nil
}

// Targets implements scsi.SAN.
func (s *SAN) Targets(wwpn string) []scsi.Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []scsi.Target
	for _, t := range s.ports {
		if t.Protocol == scsi.FC && !s.isDown(wwpn, t) {
			out = append(out, t)
		}
	}
	return out
}

// Login implements scsi.SAN.
func (s *SAN) Login(_ context.Context, initiator string, t scsi.Target, c scsi.CHAP) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.ports, t) || s.isDown(initiator, t) {
		return scsi.ErrUnreachable
	}
	if want, ok := s.chap[initiator]; ok && want != c {
		return scsi.ErrAuthentication
	}
	s.logins[pathKey{initiator, t}] = true
	return nil
}

// Logout implements scsi.SAN.
func (s *SAN) Logout(initiator string, t scsi.Target) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.logins, pathKey{initiator, t})
}

// LUNs implements scsi.SAN.
func (s *SAN) LUNs(initiator string, t scsi.Target) ([]scsi.LUN, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDown(initiator, t) || !s.logins[pathKey{initiator, t}] {
		return nil, scsi.ErrUnreachable
	}
	var out []scsi.LUN
	for k, l := range s.luns {
		if k.initiator == initiator && k.target == t {
			l.Standby = s.standby[t]
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b scsi.LUN) int { return cmp.Compare(a.Number, b.Number) })
	return out, nil
}

// Open implements scsi.SAN.
func (s *SAN) Open(image string) (disk.Image, error) { return s.Store.Open(image) }
