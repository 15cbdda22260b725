package cns

// Mislay drops the record of a volume, whoever has it, as a CNS does whose
// database is restored from before the volume was made
// (kubernetes-sigs/vsphere-csi-driver#1274). Its disk stays where it is with
// all that it has, and Create can register it. Errors: NotFound,
// NotRegistered, NotSupported (file volumes have no disk).
func (c *Core) Mislay(id string) (Disk, error) {
	v, ok := c.live(id)
	if !ok {
		if v != nil && v.Share != nil {
			return Disk{}, &Error{Kind: NotSupported, Field: "volumeId", Value: id, Reason: "a file volume has no disk"}
		}
		return Disk{}, c.unknown(id)
	}
	c.remove(v)
	v.Metadata = Metadata{}
	c.putDisk(v)
	return v.Disk.clone(), nil
}
