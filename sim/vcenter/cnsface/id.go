package cnsface

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// ids mints the ids of volumes and snapshots. An id is a pure function of the
// seed, what it is for, and how often that was asked for before: not of the
// order in which goroutines come by.
type ids struct {
	seed uint64

	mu    sync.Mutex
	names map[uint64]uint32            // by hash of a volume's name: a collision only skips a number
	snaps map[string]map[string]uint32 // by volume, then description
}

func (i *ids) digest(kind string, parts ...any) [32]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%d|cns|%s|%q", i.seed, kind, parts))
}

// volume mints the id of the next volume of this name.
func (i *ids) volume(name string) string {
	h := fnv.New64a()
	h.Write([]byte(name))
	i.mu.Lock()
	if i.names == nil {
		i.names = map[uint64]uint32{}
	}
	i.names[h.Sum64()]++
	n := i.names[h.Sum64()]
	i.mu.Unlock()
	return uuid(i.digest("volume", name, n))
}

// snapshot mints the id of the next snapshot of a volume with this description.
func (i *ids) snapshot(volume, description string) string {
	i.mu.Lock()
	if i.snaps == nil {
		i.snaps = map[string]map[string]uint32{}
	}
	m := i.snaps[volume]
	if m == nil {
		m = map[string]uint32{}
		i.snaps[volume] = m
	}
	m[description]++
	n := m[description]
	i.mu.Unlock()
	return uuid(i.digest("snapshot", volume, description, n))
}

// forget drops what is kept about a volume that is gone.
func (i *ids) forget(volume string) {
	i.mu.Lock()
	delete(i.snaps, volume)
	i.mu.Unlock()
}

// disk is the page 83 id of a volume's disk, dashed as a VM's hardware shows
// it. A disk keeps it for life, whichever VM it is plugged into. All of
// VMware's begin with 6000c29.
func (i *ids) disk(volume string) string {
	d := i.digest("disk", volume)
	return dash("6000c29" + hex.EncodeToString(d[:])[:25])
}

// changeID is the changed block tracking id of a snapshot: the disk's
// generation, then a number that grows with each snapshot, as VMFS writes it.
func (i *ids) changeID(s cns.Snapshot) string {
	d := i.digest("cbt", s.Volume)
	var b strings.Builder
	for n, x := range d[:16] {
		switch {
		case n == 8:
			b.WriteByte('-')
		case n > 0:
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%02x", x)
	}
	return fmt.Sprintf("%s/%d", b.String(), s.Change)
}

// uuid makes a version 4 uuid of a digest.
func uuid(d [32]byte) string {
	d[6] = d[6]&0x0f | 0x40
	d[8] = d[8]&0x3f | 0x80
	return dash(hex.EncodeToString(d[:16]))
}

func dash(h string) string {
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

// isUUID says whether s is a dashed uuid in lower case.
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return false
		}
	}
	return true
}
