package lockfile

// InUseError says that a process that lives has the lock.
type InUseError struct{ Process string } // its id

func (e *InUseError) Error() string { return "in use by process " + e.Process }
