package cnsface

// DatastoreOf is the managed object id of the datastore that a volume, or a
// disk that CNS does not know, lies on; "" where there is none of that id.
func (f *Face) DatastoreOf(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v, err := f.core.Volume(id); err == nil {
		return v.Datastore
	}
	d, _, err := f.core.Disk(id)
	if err != nil {
		return ""
	}
	return d.Datastore
}

// PolicyOf is the storage policy of a volume or disk, "" where it has none.
func (f *Face) PolicyOf(id string) (policy string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if v, err := f.core.Volume(id); err == nil {
		return v.PolicyID, true
	}
	d, _, err := f.core.Disk(id)
	return d.PolicyID, err == nil
}

// UsersOf lists the ids of the volumes and disks that have a storage policy.
func (f *Face) UsersOf(policy string) (ids []string) {
	if policy == "" {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.core.Volumes() {
		if v.PolicyID == policy {
			ids = append(ids, v.ID)
		}
	}
	for _, d := range f.core.Disks() {
		if d.PolicyID == policy {
			ids = append(ids, d.ID)
		}
	}
	return ids
}
