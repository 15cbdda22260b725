package cns

// PlanUnregister checks whether Unregister would succeed.
func (c *Core) PlanUnregister(id string) (Volume, error) {
	v, ok := c.live(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	// The API lists InvalidState among its faults. Unverified: that it means
	// this.
	if a, ok := c.Attachment(id); ok {
		return Volume{}, &Error{Kind: InvalidState, Field: "volumeId", Value: id, Holder: a.VM, Reason: "a VM holds the volume"}
	}
	return v.clone(), nil
}

// Unregister makes CNS forget a volume. Its disk stays with all that it has,
// snapshots too, and Create can register it again. Errors: NotFound,
// NotRegistered, InvalidState (a VM holds it).
func (c *Core) Unregister(id string) (Disk, error) {
	if _, err := c.PlanUnregister(id); err != nil {
		return Disk{}, err
	}
	v := c.volumes[id]
	c.remove(v)
	v.Metadata = Metadata{}
	c.putDisk(v)
	return v.Disk.clone(), nil
}
