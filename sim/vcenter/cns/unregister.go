package cns

import "fmt"

// PlanUnregister checks whether Unregister would succeed.
func (c *Core) PlanUnregister(id string, plain bool) (Volume, error) {
	v, ok := c.live(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	// The API lists InvalidState among its faults. Unverified: that it means
	// this.
	if a, ok := c.Attachment(id); ok {
		return Volume{}, &Error{Kind: InvalidState, Field: "volumeId", Value: id, Holder: a.VM, Reason: "a VM holds the volume"}
	}
	if !plain {
		return v.clone(), nil
	}
	if v.LinkedTo != nil {
		return Volume{}, &Error{Kind: NotSupported, Field: "volumeId", Value: id, Holder: v.LinkedTo.Volume, Reason: "a linked clone has no backing of its own"}
	}
	if n := len(v.Snapshots); n > 0 {
		return Volume{}, &Error{Kind: HasSnapshots, Field: "volumeId", Value: id, Holder: v.Snapshots[n-1].ID,
			Reason: fmt.Sprintf("the volume has %d snapshots", n)}
	}
	// Its disk is changed, and with that the datastore is written to.
	if err := c.detached(v); err != nil {
		return Volume{}, err
	}
	if err := c.reachable(v); err != nil {
		return Volume{}, err
	}
	return v.clone(), nil
}

// Unregister makes CNS forget a volume. Its disk stays with all that it has,
// snapshots too, and Create can register it again. With plain it is no first
// class disk any more either. Errors: NotFound, NotRegistered, InvalidState (a
// VM holds it); with plain HasSnapshots, NotSupported (linked clone), Pinned and Inaccessible.
func (c *Core) Unregister(id string, plain bool) (Disk, error) {
	old, err := c.PlanUnregister(id, plain)
	if err != nil {
		return Disk{}, err
	}
	v := c.volumes[id]
	c.remove(v)
	v.Metadata = Metadata{}
	c.putDisk(v)
	if plain {
		if _, err := c.Demote(id); err != nil { // can't be: it was planned
			return Disk{}, err
		}
	}
	return old.Disk, nil
}
