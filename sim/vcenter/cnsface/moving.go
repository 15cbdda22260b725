package cnsface

import (
	"sync"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// moves knows the volumes that are being moved to another datastore, from the
// call on until its task has ended. Meanwhile CNS refuses what would change
// the disk, instead of waiting as it does otherwise (CNS API reference;
// unverified: the cause that it names).
type moves struct {
	mu sync.Mutex
	m  map[string]*move
}

type move struct{ task string }

// enter notes that a volume is being moved. It returns nil when it is already.
func (s *moves) enter(volume string) *move {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[volume] != nil {
		return nil
	}
	if s.m == nil {
		s.m = map[string]*move{}
	}
	x := &move{}
	s.m[volume] = x
	return x
}

func (s *moves) name(x *move, task string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.task = task
}

func (s *moves) leave(volume string, x *move) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[volume] == x {
		delete(s.m, volume)
	}
}

// check refuses what needs a volume that is being moved. Errors: Busy.
func (s *moves) check(volume string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.m[volume]; x != nil {
		return &cns.Error{Kind: cns.Busy, Field: "volumeId", Value: volume, Holder: x.task, Reason: "the volume is being relocated"}
	}
	return nil
}

// changesDisk are the operations that a volume is not free for while it moves.
var changesDisk = map[string]bool{
	"CnsAttachVolume": true, "CnsDetachVolume": true, "CnsDeleteVolume": true, "CnsExtendVolume": true,
	"CnsCreateSnapshots": true, "CnsDeleteSnapshots": true, "CnsReconfigVolumePolicy": true,
	"CnsUnregisterVolume": true, "CnsUpdateVolumeCrypto": true,
}
