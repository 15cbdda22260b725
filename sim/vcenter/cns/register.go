package cns

// planRegisterPath makes a volume of the disk at a path. Unlike by its id, one
// that is a volume already is always refused with that (govmomi#1943).
func (c *Core) planRegisterPath(v Volume, s CreateSpec) (Plan, error) {
	if d, ok := c.at(s.DiskPath); ok {
		if s.CallerID && s.ID != d.ID {
			return Plan{}, &Error{Kind: InvalidArgument, Field: "volumeId", Value: s.ID, Holder: d.ID, Reason: "the disk at the path has another id"}
		}
		s.DiskID, s.Again = d.ID, false
		return c.planRegister(v, s)
	}
	f, ok := c.files[s.DiskPath]
	if !ok {
		err := noFile(s.DiskPath)
		err.Field = "backingDiskUrlPath"
		return Plan{}, err
	}
	id := f.ID
	if s.CallerID && s.ID != id {
		if c.Taken(s.ID) {
			return Plan{}, &Error{Kind: AlreadyExists, Field: "volumeId", Value: s.ID, Holder: s.ID, Reason: "a volume or disk has this id"}
		}
		id = s.ID
	}
	v.Disk = Disk{ID: id, Name: v.Name, Datastore: f.Datastore, CapacityMB: f.CapacityMB, PolicyID: v.PolicyID,
		DiskPath: f.Path, Created: f.Created, Provisioning: f.Provisioning, Flags: v.Flags}
	return Plan{Volume: v}, nil // nothing was placed
}

// Backing finds the content of what lies at a path: the id of its image.
func (c *Core) Backing(path string) (id string, ok bool) {
	if d, ok := c.at(path); ok {
		return d.ID, true
	}
	if f, ok := c.files[path]; ok {
		return f.ID, true
	}
	return "", false
}
