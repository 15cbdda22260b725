package sim

// Mutants: ways to make a part of the lab wrong on purpose, so that a scenario
// can show that it would see it. Those that lie about one CSI call are fault
// rules with fault.Skip; these need more.

// MutateSoftMounts makes mounts of shares fail where their server does not answer.
func (l *Lab) MutateSoftMounts() {
	if b, ok := l.backend.(*hpe); ok {
		b.servers.GiveUp()
	}
}

// MutateSnapshotsLive makes every restored snapshot hold what its source
// holds at the time of the restore.
func (l *Lab) MutateSnapshotsLive() {
	l.disks.mu.Lock()
	defer l.disks.mu.Unlock()
	l.disks.liveSnapshots = true
}
