package cnsface

// Forget drops CNS's record of a volume, attached or not; its disk stays.
func (f *Face) Forget(id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.Mislay(id)
	return err
}
