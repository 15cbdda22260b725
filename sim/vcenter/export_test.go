package vcenter

// Watched counts what filters hold on to.
func Watched(v *VCenter) int {
	v.watch.mu.Lock()
	defer v.watch.mu.Unlock()
	return len(v.watch.byRef) + len(v.watch.deep)
}
