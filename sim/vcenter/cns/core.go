// Package cns is the core of a vCenter's cloud native storage: block volumes,
// their snapshots, attachments and metadata. It is a deterministic state
// machine without I/O, goroutines or clock: ids and times are passed in,
// commands return a result or an *Error, and a refused command leaves the
// state as it was. It is not safe for concurrent use; its face serialises.
package cns

import (
	"maps"
	"slices"
	"strings"
)

// DefaultSnapshotLimit is how many snapshots a volume may have: vSphere's
// limit for the snapshot chain of a disk.
const DefaultSnapshotLimit = 32

// Core holds the state. Lookups never scan: every index is kept by the
// commands.
type Core struct {
	snapshotLimit int

	volumes map[string]*volume
	// order has all volumes by creation; deleted ones leave a nil behind until
	// half of it is nil, so that a delete costs no copy.
	order []*volume
	dead  int
	seq   uint64

	byName      map[string]set
	byDatastore map[string]set
	byCluster   map[string]set
	byVM        map[string]set          // attached volumes
	attachments map[string][]Attachment // of a volume, by VM

	pins   map[string][]string // VMs whose snapshots hold a disk
	pinsOf map[string][]string // disks that the snapshots of a VM hold

	clones map[string]set // linked clones, by the disk that they share blocks with

	disks      map[string]*volume // first class disks that are no volumes; their metadata is empty
	disksOn    map[string]set     // those, by datastore
	byTag      map[Tag]set        // disks of both kinds
	byPath     map[string]*volume // likewise, where the path is not the default one
	files      map[string]*file   // virtual disks that are no first class disks, by path
	fileIDs    map[string]*file   // those, by id
	shares     map[string]*volume // file shares that are no volumes; their metadata is empty
	datastores map[string]*store
}

// volume is a Volume and where it stands in the order.
type volume struct {
	Volume
	seq uint64
	pos int
}

type set map[*volume]struct{}

type store struct {
	Datastore
	usedMB        int64 // by volumes, disks and files
	provisionedMB int64 // to them: the sum of their capacities
}

// New returns an empty core. snapshotLimit 0 means DefaultSnapshotLimit.
func New(snapshotLimit int) *Core {
	if snapshotLimit == 0 {
		snapshotLimit = DefaultSnapshotLimit
	}
	return &Core{
		snapshotLimit: snapshotLimit,
		volumes:       map[string]*volume{},
		byName:        map[string]set{},
		byDatastore:   map[string]set{},
		byCluster:     map[string]set{},
		byVM:          map[string]set{},
		attachments:   map[string][]Attachment{},
		pins:          map[string][]string{},
		pinsOf:        map[string][]string{},
		clones:        map[string]set{},
		disks:         map[string]*volume{},
		disksOn:       map[string]set{},
		byTag:         map[Tag]set{},
		byPath:        map[string]*volume{},
		files:         map[string]*file{},
		fileIDs:       map[string]*file{},
		shares:        map[string]*volume{},
		datastores:    map[string]*store{},
	}
}

// PutDatastore tells the core about a datastore, or what changed about it.
// What volumes take of it is the core's own account, and whether it is Thick
// stays as it was at first.
func (c *Core) PutDatastore(d Datastore) {
	d.Hosts, d.FileServers = slices.Clone(d.Hosts), slices.Clone(d.FileServers)
	if s, ok := c.datastores[d.ID]; ok {
		thick, name := s.Thick, s.Name
		s.Datastore = d
		s.Thick = thick // disks are accounted for by it
		if name != d.Name {
			c.repath(s, name)
		}
		return
	}
	c.datastores[d.ID] = &store{Datastore: d}
}

// Datastore returns a datastore and the space that is free on it, in MB.
func (c *Core) Datastore(id string) (d Datastore, freeMB int64, ok bool) {
	s, ok := c.datastores[id]
	if !ok {
		return Datastore{}, 0, false
	}
	return s.Datastore, s.freeMB(), true
}

// Datastores returns all datastores, by id.
func (c *Core) Datastores() []Datastore {
	out := make([]Datastore, 0, len(c.datastores))
	for _, s := range c.datastores {
		out = append(out, s.Datastore)
	}
	slices.SortFunc(out, func(a, b Datastore) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// Volume returns a copy of a volume. Errors: NotFound.
func (c *Core) Volume(id string) (Volume, error) {
	v, ok := c.volumes[id]
	if !ok {
		return Volume{}, c.unknown(id)
	}
	return v.clone(), nil
}

// Attachment says who holds a volume; with several that share it, the first
// by VM id.
func (c *Core) Attachment(volume string) (Attachment, bool) {
	all := c.attachments[volume]
	if len(all) == 0 {
		return Attachment{}, false
	}
	return all[0], true
}

// AttachmentAt says how a VM holds a volume.
func (c *Core) AttachmentAt(volume, vm string) (Attachment, bool) {
	for _, a := range c.attachments[volume] {
		if a.VM == vm {
			return a, true
		}
	}
	return Attachment{}, false
}

// AttachmentsOf returns all attachments of a volume, by VM id: more than one
// where VMs share it.
func (c *Core) AttachmentsOf(volume string) []Attachment {
	return slices.Clone(c.attachments[volume])
}

// Volumes returns copies of all volumes, oldest first.
func (c *Core) Volumes() []Volume {
	out := make([]Volume, 0, len(c.volumes))
	for _, v := range c.order {
		if v != nil {
			out = append(out, v.clone())
		}
	}
	return out
}

// Attachments returns all attachments, by volume id, then VM.
func (c *Core) Attachments() []Attachment {
	out := make([]Attachment, 0, len(c.attachments))
	for _, id := range slices.Sorted(maps.Keys(c.attachments)) {
		out = append(out, c.attachments[id]...)
	}
	return out
}

// AttachedTo returns the attachments of a VM, by volume id.
func (c *Core) AttachedTo(vm string) []Attachment {
	var out []Attachment
	for v := range c.byVM[vm] {
		if a, ok := c.AttachmentAt(v.ID, vm); ok {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, func(a, b Attachment) int { return strings.Compare(a.Volume, b.Volume) })
	return out
}

// Snapshots returns all snapshots, by age of their volume, then their own.
func (c *Core) Snapshots() []Snapshot {
	var out []Snapshot
	for _, v := range c.order {
		if v != nil {
			out = append(out, v.Snapshots...)
		}
	}
	return out
}

func compare(a, b string) int { return strings.Compare(a, b) }

func add[K comparable](index map[K]set, key K, v *volume) {
	s, ok := index[key]
	if !ok {
		s = set{}
		index[key] = s
	}
	s[v] = struct{}{}
}

func drop[K comparable](index map[K]set, key K, v *volume) {
	s := index[key]
	delete(s, v)
	if len(s) == 0 {
		delete(index, key)
	}
}

// insert puts a volume into every index.
func (c *Core) insert(v *volume) {
	c.seq++
	v.seq = c.seq
	v.pos = len(c.order)
	c.order = append(c.order, v)
	c.volumes[v.ID] = v
	add(c.byName, v.Name, v)
	add(c.byDatastore, v.Datastore, v)
	for _, id := range v.Metadata.clusterIDs() {
		add(c.byCluster, id, v)
	}
}

// remove takes a volume out of every index.
func (c *Core) remove(v *volume) {
	for _, id := range v.Metadata.clusterIDs() {
		drop(c.byCluster, id, v)
	}
	drop(c.byDatastore, v.Datastore, v)
	drop(c.byName, v.Name, v)
	delete(c.volumes, v.ID)
	c.order[v.pos] = nil
	c.dead++
	if c.dead > 64 && c.dead > len(c.order)/2 {
		live := make([]*volume, 0, len(c.volumes))
		for _, v := range c.order {
			if v != nil {
				v.pos = len(live)
				live = append(live, v)
			}
		}
		c.order, c.dead = live, 0
	}
}
