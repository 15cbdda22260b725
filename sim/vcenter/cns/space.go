package cns

// What a disk takes of its datastore. Disks of CNS are thin on VMFS, NFS and
// vSAN alike: a new one takes nothing but names, and what is provisioned may
// exceed what there is, until writes fill the datastore
// (kubernetes-sigs/vsphere-csi-driver#1210, #1478). A datastore that is Thick
// gives a disk its whole size when it is made. Snapshots share their disk's
// blocks and take nothing until something is written, on either.

// takesMB is what a disk takes of the datastore. A linked clone takes what was
// written to itself.
func (s *store) takesMB(d Disk) int64 {
	if d.LinkedTo == nil && (s.Thick || d.Provisioning != "" && d.Provisioning != Thin) {
		return max(d.CapacityMB, d.WrittenMB)
	}
	return d.WrittenMB
}

// freeMB is what is left. Writes to thin disks may have taken all of it.
func (s *store) freeMB() int64 { return max(0, s.CapacityMB-s.ReservedMB-s.usedMB) }

// charge books a disk on its datastore. Whatever changes size, content or
// place of a disk discharges it before and charges it afterwards.
func (c *Core) charge(d Disk) {
	s := c.datastores[d.Datastore]
	s.usedMB += s.takesMB(d)
	s.provisionedMB += d.CapacityMB
}

func (c *Core) discharge(d Disk) {
	s := c.datastores[d.Datastore]
	s.usedMB -= s.takesMB(d)
	s.provisionedMB -= d.CapacityMB
}

func (c *Core) resize(v *volume, capacityMB int64) {
	c.discharge(v.Disk)
	v.CapacityMB = capacityMB
	c.charge(v.Disk)
}

// Written says how much content a disk and its snapshots have, in MB. Errors:
// NotFound.
func (c *Core) Written(id string, mb int64) error {
	v, ok := c.disk(id)
	if !ok {
		return noDisk(id)
	}
	c.discharge(v.Disk)
	v.WrittenMB = max(0, mb)
	c.charge(v.Disk)
	return nil
}

// Space of a datastore, in MB.
type Space struct {
	CapacityMB int64
	FreeMB     int64
	// UncommittedMB is what thin disks may still grow by; it may exceed FreeMB.
	UncommittedMB int64
}

// Space returns the space of a datastore.
func (c *Core) Space(id string) (Space, bool) {
	s, ok := c.datastores[id]
	if !ok {
		return Space{}, false
	}
	return Space{CapacityMB: s.CapacityMB, FreeMB: s.freeMB(), UncommittedMB: max(0, s.provisionedMB-s.usedMB)}, true
}
