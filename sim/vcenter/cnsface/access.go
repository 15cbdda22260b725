package cnsface

// DatastoreOf is the managed object id of the datastore that a volume, or a
// disk that CNS does not know, lies on; "" where there is none of that id.
func (f *Face) DatastoreOf(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, _, err := f.core.Disk(id)
	if err != nil {
		return ""
	}
	return d.Datastore
}
