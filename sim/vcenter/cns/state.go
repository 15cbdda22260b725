package cns

import "fmt"

// State is all that a core knows about volumes, as plain data. Datastores are
// not part of it: they come from the inventory.
type State struct {
	Volumes     []Volume     `json:"volumes,omitempty"` // oldest first
	Attachments []Attachment `json:"attachments,omitempty"`
	Disks       []Disk       `json:"disks,omitempty"`
}

// State returns a copy of the state.
func (c *Core) State() *State {
	return &State{Volumes: c.Volumes(), Attachments: c.Attachments(), Disks: c.Disks()}
}

// Restore fills an empty core. The datastores must have been put before.
// Errors name what doesn't fit; then the core is as it was.
func (c *Core) Restore(s *State) error {
	if len(c.volumes)+len(c.disks) > 0 {
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
	held := map[string]bool{}
	for _, a := range s.Attachments {
		if !ids[a.Volume] || held[a.Volume] {
			return fmt.Errorf("cns: restore: attachment of %q: no such disk, or attached twice", a.Volume)
		}
		held[a.Volume] = true
	}
	for _, v := range s.Volumes {
		c.insert(&volume{Volume: v.clone()})
		c.datastores[v.Datastore].usedMB += v.CapacityMB
	}
	for _, d := range s.Disks {
		c.disks[d.ID] = &volume{Volume: Volume{Disk: d.clone()}}
		c.datastores[d.Datastore].usedMB += d.CapacityMB
	}
	for _, a := range s.Attachments {
		c.hold(a)
	}
	return nil
}
