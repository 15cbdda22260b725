package cns

import (
	"fmt"
	"slices"
	"strings"
)

// State is all that a core knows about volumes, as plain data. Datastores are
// not part of it: they come from the inventory.
type State struct {
	Volumes     []Volume     `json:"volumes,omitempty"` // oldest first
	Attachments []Attachment `json:"attachments,omitempty"`
	Disks       []Disk       `json:"disks,omitempty"`
	Files       []File       `json:"files,omitempty"`
	Shares      []Volume     `json:"shares,omitempty"`
}

// State returns a copy of the state.
func (c *Core) State() *State {
	return &State{Volumes: c.Volumes(), Attachments: c.Attachments(), Disks: c.Disks(), Files: c.Files(), Shares: c.Shares()}
}

// disks are all disks, volumes or not.
func (s *State) disks() []Disk {
	all := slices.Clone(s.Disks)
	for _, v := range s.Volumes {
		all = append(all, v.Disk)
	}
	return all
}

// Restore fills an empty core. The datastores must have been put before.
// Errors name what doesn't fit; then the core is as it was.
func (c *Core) Restore(s *State) error {
	if len(c.volumes)+len(c.disks)+len(c.files)+len(c.shares) > 0 {
		return fmt.Errorf("cns: restore: the core is not empty")
	}
	ids := map[string]bool{}
	check := func(kind, id, datastore string, capacityMB int64) error {
		if id == "" || ids[id] {
			return fmt.Errorf("cns: restore: %s %q: empty id, or id given twice", kind, id)
		}
		ids[id] = true
		if _, ok := c.datastores[datastore]; !ok {
			return fmt.Errorf("cns: restore: %s %q: no datastore %q", kind, id, datastore)
		}
		if capacityMB <= 0 {
			return fmt.Errorf("cns: restore: %s %q: capacity %d MB", kind, id, capacityMB)
		}
		return nil
	}
	for _, v := range s.Volumes {
		if err := check("volume", v.ID, v.Datastore, v.CapacityMB); err != nil {
			return err
		}
	}
	for _, d := range s.Disks {
		if err := check("disk", d.ID, d.Datastore, d.CapacityMB); err != nil {
			return err
		}
	}
	snapshots := map[Source]bool{}
	for _, d := range s.disks() {
		for _, x := range d.Snapshots {
			snapshots[Source{d.ID, x.ID}] = true
		}
	}
	for _, d := range s.disks() {
		if src := d.LinkedTo; src != nil && !snapshots[*src] {
			return fmt.Errorf("cns: restore: linked clone %q: no snapshot %q of %q", d.ID, src.Snapshot, src.Volume)
		}
	}
	paths := map[string]bool{}
	for _, f := range s.Files {
		if err := check("file", f.ID, f.Datastore, f.CapacityMB); err != nil {
			return err
		}
		if f.Path == "" || paths[f.Path] {
			return fmt.Errorf("cns: restore: file %q: empty path, or path given twice", f.Path)
		}
		paths[f.Path] = true
	}
	for _, v := range s.Shares {
		if err := check("share", v.ID, v.Datastore, v.CapacityMB); err != nil {
			return err
		}
		if v.Share == nil {
			return fmt.Errorf("cns: restore: share %q: no share", v.ID)
		}
	}
	for _, v := range s.Volumes {
		if v.Lost || v.Share != nil {
			delete(ids, v.ID) // has nothing that could be attached
		}
	}
	for _, v := range s.Shares {
		delete(ids, v.ID)
	}
	for _, f := range s.Files {
		delete(ids, f.ID)
	}
	held := map[string][]Attachment{}
	for _, a := range s.Attachments {
		if !ids[a.Volume] {
			return fmt.Errorf("cns: restore: attachment of %q: no such disk", a.Volume)
		}
		for _, b := range held[a.Volume] {
			if a.VM == b.VM || a.share() == "" || a.share() != b.share() {
				return fmt.Errorf("cns: restore: attachment of %q: attached twice", a.Volume)
			}
		}
		held[a.Volume] = append(held[a.Volume], a)
	}
	// A datastore may have had another name: paths begin with that of now.
	here := func(datastore, path string) string {
		if i := strings.Index(path, "]"); i >= 0 && strings.HasPrefix(path, "[") {
			return "[" + c.datastores[datastore].Name + path[i:]
		}
		return path
	}
	for _, v := range s.Volumes {
		x := &volume{Volume: v.clone()}
		x.DiskPath = here(v.Datastore, v.DiskPath)
		c.insert(x)
		switch {
		case v.Share != nil:
			c.charge(x.Disk)
		case !v.Lost:
			c.appear(x)
		}
	}
	for _, d := range s.Disks {
		x := &volume{Volume: Volume{Disk: d.clone()}}
		x.DiskPath = here(d.Datastore, d.DiskPath)
		c.putDisk(x)
		c.appear(x)
	}
	for _, f := range s.Files {
		f.Path = here(f.Datastore, f.Path)
		c.putFile(&file{f})
	}
	for _, v := range s.Shares {
		c.shares[v.ID] = &volume{Volume: v.clone()}
		c.charge(v.Disk)
	}
	for _, a := range s.Attachments {
		c.hold(a)
	}
	return nil
}
