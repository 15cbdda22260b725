package cns

import (
	"fmt"
	"maps"
	"path"
	"strings"
)

// putDisk takes up a disk that is no volume.
func (c *Core) putDisk(v *volume) {
	c.disks[v.ID] = v
	add(c.disksOn, v.Datastore, v)
}

// dropDisk takes a disk that is no volume out of the indexes; its backing stays.
func (c *Core) dropDisk(v *volume) {
	delete(c.disks, v.ID)
	drop(c.disksOn, v.Datastore, v)
}

// appear accounts for a new backing, vanish for one that is deleted.
func (c *Core) appear(v *volume) {
	c.charge(v.Disk)
	c.indexBacking(v)
}

func (c *Core) vanish(v *volume) {
	c.discharge(v.Disk)
	c.unindexBacking(v)
}

// indexBacking makes a disk findable by its path, its tags and what it is a
// linked clone of. A path that leads to the disk's id needs no index.
func (c *Core) indexBacking(v *volume) {
	if v.DiskPath != c.defaultPath(v.Datastore, v.ID) {
		c.byPath[v.DiskPath] = v
	}
	for _, t := range v.Tags {
		add(c.byTag, t, v)
	}
	c.link(v)
}

func (c *Core) unindexBacking(v *volume) {
	if c.byPath[v.DiskPath] == v {
		delete(c.byPath, v.DiskPath)
	}
	for _, t := range v.Tags {
		drop(c.byTag, t, v)
	}
	c.unlink(v)
}

// repath gives what lies on a datastore the paths of its new name.
func (c *Core) repath(s *store, old string) {
	move := func(p string) string { return "[" + s.Name + "]" + strings.TrimPrefix(p, "["+old+"]") }
	for _, on := range []set{c.byDatastore[s.ID], c.disksOn[s.ID]} {
		for v := range on {
			if v.Share != nil {
				continue
			}
			if c.byPath[v.DiskPath] == v {
				delete(c.byPath, v.DiskPath)
			}
			v.DiskPath = move(v.DiskPath)
			if !v.Lost && v.DiskPath != c.defaultPath(v.Datastore, v.ID) {
				c.byPath[v.DiskPath] = v
			}
		}
	}
	for path, f := range maps.Clone(c.files) {
		if f.Datastore == s.ID {
			delete(c.files, path)
			f.Path = move(path)
			c.files[f.Path] = f
		}
	}
}

// defaultPath is where the backing of a first class disk lies unless it was
// made elsewhere.
func (c *Core) defaultPath(datastore, id string) string {
	return c.fcdPath(datastore, BackingName(id))
}

func (c *Core) fcdPath(datastore, name string) string {
	return "[" + c.datastores[datastore].Name + "] fcd/" + name + ".vmdk"
}

// freePath is where a new backing lies that nobody has chosen a place for: at
// its default path, or beside it where another disk has taken that.
// Unverified: the name that the real one gives it then.
func (c *Core) freePath(datastore, id string) string {
	p := c.defaultPath(datastore, id)
	for i := 1; c.occupied(p); i++ {
		p = c.fcdPath(datastore, fmt.Sprintf("%s_%d", BackingName(id), i))
	}
	return p
}

func (c *Core) occupied(diskPath string) bool {
	_, disk := c.at(diskPath)
	_, file := c.files[diskPath]
	return disk || file
}

// at finds the disk whose backing is at a path.
func (c *Core) at(diskPath string) (*volume, bool) {
	if v, ok := c.byPath[diskPath]; ok {
		return v, true
	}
	name, ok := strings.CutSuffix(path.Base(diskPath), ".vmdk")
	if !ok {
		return nil, false
	}
	v, ok := c.disk(diskOfName(name))
	return v, ok && v.DiskPath == diskPath
}

// DiskAt finds the first class disk whose backing lies at a datastore path,
// e.g. "[ds] fcd/<BackingName>.vmdk".
func (c *Core) DiskAt(diskPath string) (Disk, bool) {
	v, ok := c.at(diskPath)
	if !ok {
		return Disk{}, false
	}
	return v.Disk.clone(), true
}

// checkPath says whether a new backing may lie at a path of a datastore.
func (c *Core) checkPath(s *store, diskPath string) error {
	bad := func(reason string) error {
		return &Error{Kind: InvalidPath, Field: "path", Value: diskPath, Reason: reason}
	}
	rel, ok := strings.CutPrefix(diskPath, "["+s.Name+"] ")
	switch {
	case !ok:
		return bad("allowed is [" + s.Name + "] and a path")
	case !strings.HasSuffix(rel, ".vmdk") || rel == ".vmdk":
		return bad("allowed is the path of a .vmdk")
	case path.Clean(rel) != rel || strings.HasPrefix(rel, "/") || strings.HasPrefix(rel, "../"):
		return bad("allowed is a clean relative path")
	case len(rel) > MaxPath:
		return bad(fmt.Sprintf("allowed are %d bytes", MaxPath))
	}
	if v, ok := c.at(diskPath); ok {
		return &Error{Kind: FileExists, Field: "path", Value: diskPath, Holder: v.ID, Reason: "a first class disk lies there"}
	}
	if f, ok := c.files[diskPath]; ok {
		return &Error{Kind: FileExists, Field: "path", Value: diskPath, Holder: f.ID, Reason: "a virtual disk lies there"}
	}
	return nil
}

// MaxPath is how many bytes the path of a backing on its datastore has at most.
// Unverified: the real limit.
const MaxPath = 255
