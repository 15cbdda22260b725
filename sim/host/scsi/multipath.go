package scsi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
)

// Map is a multipath map of device-mapper.
type Map struct {
	Minor    int
	Alias    string // mpatha
	WWID     string // without the 3 that stands for NAA
	Bytes    int64
	ReadOnly bool

	paths     []*Disk // by address
	broken    bool    // dmsetup remove --force has put the error target in
	noQueue   bool    // fail_if_no_path: the kernel's, until the next table
	disabled  bool    // multipathd's disablequeueing, until restorequeueing
	turns     int     // of the path checker that found no path while I/O waited
	suspended bool
}

// Name is the kernel's: dm-0.
func (m *Map) Name() string { return fmt.Sprintf("dm-%d", m.Minor) }

// Paths are the disks of the map.
func (m *Map) Paths() []*Disk { return slices.Clone(m.paths) }

// Maps are the maps by number.
func (s *Stack) Maps() []*Map {
	return slices.SortedFunc(maps.Values(s.maps), func(a, b *Map) int { return cmp.Compare(a.Minor, b.Minor) })
}

// Map finds a map by the kernel's name (dm-0), or nil.
func (s *Stack) Map(name string) *Map {
	if n, ok := mapMinor(name); ok {
		return s.maps[n]
	}
	return nil
}

// find takes what users type: alias, wwid (3…), or dm-N; with or without /dev/
// or /dev/mapper/.
func (s *Stack) find(name string) *Map {
	for _, dir := range []string{"/dev/mapper/", "/dev/"} {
		if len(name) > len(dir) && name[:len(dir)] == dir {
			name = name[len(dir):]
			break
		}
	}
	if m := s.Map(name); m != nil {
		return m
	}
	if len(name) > 1 && name[0] == '3' {
		if m := s.byWWID[name[1:]]; m != nil {
			return m
		}
	}
	for i, wwid := range s.bindings {
		if friendlyName(i) == name {
			return s.byWWID[wwid]
		}
	}
	return nil
}

// alias is the name that a unit has, and keeps, by /etc/multipath/bindings.
func (s *Stack) alias(wwid string) string {
	i := slices.Index(s.bindings, wwid)
	if i < 0 {
		i = len(s.bindings)
		s.bindings = append(s.bindings, wwid)
	}
	return friendlyName(i)
}

// pathAdded is multipathd's part when a disk appears (ev_add_path): it joins the
// map of its identity, or gets one, unless it is open itself. Others of that
// identity that have no map are taken along (adopt_paths): also those that were
// left over from a map that was removed. A disk of another size than the map is
// let go.
func (s *Stack) pathAdded(d *Disk) {
	m := s.byWWID[d.wwid]
	d.refused = false
	if s.node.InUse(d.Name) {
		return // device-mapper can't claim it
	}
	if m != nil {
		if m.broken {
			// Unverified: whether multipathd loads a new table over the error target.
			return
		}
		if m.Bytes != d.Bytes && d.Bytes != 0 {
			d.refused = true
			return
		}
		s.join(m, d)
		s.adopt(m)
		s.reload(m)
		return
	}
	if d.Bytes == 0 {
		return
	}
	n := 0
	for s.maps[n] != nil || s.node.Taken(fmt.Sprintf("dm-%d", n)) {
		n++
	}
	m = &Map{Minor: n, Alias: s.alias(d.wwid), WWID: d.wwid, Bytes: d.Bytes, ReadOnly: d.ReadOnly}
	s.maps[n], s.byWWID[m.WWID] = m, m
	s.join(m, d)
	s.adopt(m)
	s.tell(Add, KindMap, m.Name())
	s.claimMap(m)
	s.tell(Change, KindDisk, d.Name) // it has a holder
}

// adopt takes the other disks of a map's identity in that have none.
func (s *Stack) adopt(m *Map) {
	var left []*Disk
	for _, d := range s.disks {
		if d.inMap == nil && !d.refused && d.wwid == m.WWID && d.Bytes == m.Bytes && !s.node.InUse(d.Name) {
			left = append(left, d)
		}
	}
	slices.SortFunc(left, func(a, b *Disk) int { return compareAddresses(a.Address, b.Address) })
	for _, d := range left {
		s.join(m, d)
		m.ReadOnly = m.ReadOnly || d.ReadOnly
		s.tell(Change, KindDisk, d.Name)
	}
}

func (s *Stack) join(m *Map, d *Disk) {
	d.inMap = m
	m.paths = append(m.paths, d)
	slices.SortFunc(m.paths, func(a, b *Disk) int { return compareAddresses(a.Address, b.Address) })
}

// reload is a new table for the map: read-only when a path is.
func (s *Stack) reload(m *Map) {
	ro := false
	for _, d := range m.paths {
		ro = ro || d.ReadOnly
		s.tell(Change, KindDisk, d.Name)
	}
	if len(m.paths) > 0 {
		m.ReadOnly = ro
	}
	if !m.disabled && s.reaches(m) {
		// Unverified: that a table that is loaded while no path works leaves the
		// queue off where somebody has switched it off.
		m.noQueue = false
	}
	s.tell(Change, KindMap, m.Name())
}

// pathRemoved is multipathd's part when a disk goes (ev_remove_path). A map
// without a path goes too, unless it is open.
func (s *Stack) pathRemoved(d *Disk) {
	m := d.inMap
	if m == nil {
		return
	}
	s.leave(d)
	if len(m.paths) == 0 && !s.node.InUse(m.Name()) {
		s.removeMap(m)
		return
	}
	s.reload(m)
}

// leave takes a disk out of its map.
func (s *Stack) leave(d *Disk) {
	if m := d.inMap; m != nil {
		d.inMap = nil
		m.paths = slices.DeleteFunc(m.paths, func(x *Disk) bool { return x == d })
		s.tell(Change, KindDisk, d.Name)
	}
}

// removeMap makes device-mapper forget a map that isn't open.
func (s *Stack) removeMap(m *Map) {
	for _, d := range m.Paths() {
		s.leave(d)
	}
	s.disclaim(m.Name())
	delete(s.maps, m.Minor)
	delete(s.byWWID, m.WWID)
	s.tell(Remove, KindMap, m.Name())
}

// Flush removes a map that isn't open (multipath -f, dmsetup remove). What the
// page cache has is written first. Errors: EBUSY, ErrQueued (what is to be
// written waits for a path).
func (s *Stack) Flush(m *Map) error {
	if s.node.InUse(m.Name()) {
		return syscall.EBUSY
	}
	if errors.Is(s.node.Flush(m.Name()), ErrQueued) {
		return ErrQueued
	}
	switch { // others may have done something meanwhile
	case s.maps[m.Minor] != m:
		return nil
	case s.node.InUse(m.Name()):
		return syscall.EBUSY
	}
	s.removeMap(m)
	return nil
}

// Break is dmsetup remove --force: I/O fails from then on, and the map goes
// unless it is open. Errors: EBUSY.
func (s *Stack) Break(m *Map) error {
	m.broken = true
	for _, d := range m.Paths() {
		s.leave(d)
	}
	if s.node.InUse(m.Name()) {
		s.tell(Change, KindMap, m.Name())
		return syscall.EBUSY
	}
	s.removeMap(m)
	return nil
}

// errSizes: the paths of a map don't agree about the size, or aren't there.
var errSizes = errors.New("multipath: paths disagree about the size")

// Resize gives a map the size that its paths have (multipathd resize map); they
// must have been rescanned. Errors: errSizes.
func (s *Stack) Resize(m *Map) error {
	if len(m.paths) == 0 || m.broken {
		return errSizes
	}
	size := m.paths[0].Bytes
	for _, d := range m.paths {
		if d.Bytes != size || size == 0 {
			return errSizes
		}
	}
	if size != m.Bytes {
		m.Bytes = size
		s.tell(Change, KindMap, m.Name())
	}
	return nil
}

// Coalesce is multipath without a map, or multipathd reconfigure: every disk
// that has no map gets one, or joins it.
func (s *Stack) Coalesce() {
	for _, d := range s.Disks() {
		if d.inMap == nil {
			s.pathAdded(d)
		}
	}
}

// Condition of a map's paths, in groups: those that do I/O, then standby. A
// group is as multipath -ll shows it.
type group struct {
	prio  int
	paths []*Disk
}

// groups sorts the paths by their priority.
func (s *Stack) groups(m *Map) []group {
	byPrio := map[int][]*Disk{}
	for _, d := range m.Paths() {
		p := s.priority(d)
		if d.inMap == m {
			byPrio[p] = append(byPrio[p], d)
		}
	}
	var out []group
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(byPrio))) {
		out = append(out, group{p, byPrio[p]})
	}
	return out
}

// Bindings is the text of /etc/multipath/bindings.
func (s *Stack) Bindings() []byte {
	out := []byte("# Multipath bindings, Version : 1.0\n# NOTE: this file is automatically maintained by the multipath program.\n")
	for i, wwid := range s.bindings {
		out = fmt.Appendf(out, "%s 3%s\n", friendlyName(i), wwid)
	}
	return out
}
