package sim

// PurgeTask takes a task out of the vCenters, as an administrator does with one
// that never ends, so that who asks for it hears that it is not known. It says
// whether there was one.
func (l *Lab) PurgeTask(id string) bool {
	b, ok := l.backend.(*vsphere)
	if !ok {
		return false
	}
	n := 0
	for _, s := range b.sites {
		n += s.PurgeTasks(id)
	}
	return n > 0
}
