package cns

// AttachSpec says which disk of which VM a volume shall become.
type AttachSpec struct {
	Volume   string
	VM       VM // as the inventory has it now
	DiskUUID string
	Slot     *Slot // nil: any
}

// PlanAttach checks whether Attach would succeed, and says where the disk
// goes and whether a controller has to be added for it.
func (c *Core) PlanAttach(s AttachSpec) (a Attachment, addController bool, err error) {
	v, ok := c.volumes[s.Volume]
	if !ok {
		return Attachment{}, false, c.unknown(s.Volume)
	}
	// The same VM again is in use as well: that is how a client whose reply was
	// lost learns of it (kubernetes-sigs/vsphere-csi-driver#570, #1175).
	if old, ok := c.attachments[s.Volume]; ok {
		return Attachment{}, false, &Error{Kind: InUse, Field: "volumeId", Value: s.Volume, Holder: old.VM, Reason: "a VM holds the volume"}
	}
	// kubernetes-sigs/vsphere-csi-driver#1590. A VM that is off takes a disk:
	// govmomi's cns/client_test.go attaches to one that was never on.
	if s.VM.State == Suspended {
		return Attachment{}, false, &Error{Kind: InvalidState, Field: "vm", Value: s.VM.ID, Holder: s.VM.Name, Reason: "the VM is " + string(s.VM.State)}
	}
	ds := c.datastores[v.Datastore]
	if ds.Inaccessible || !ds.Mounts(s.VM.Host) {
		return Attachment{}, false, &Error{Kind: Inaccessible, Field: "vm", Value: s.VM.ID, Holder: ds.Name,
			Reason: "the host of the VM doesn't reach the datastore of the volume"}
	}
	slot, addController, err := pick(s.VM, s.Slot)
	if err != nil {
		return Attachment{}, false, err
	}
	return Attachment{Volume: s.Volume, VM: s.VM.ID, DiskUUID: s.DiskUUID, Slot: slot}, addController, nil
}

// Attach gives a volume to a VM. Errors: NotFound, InUse (held by this or
// another VM), InvalidState, Inaccessible, NoSlot, InvalidArgument (slot).
func (c *Core) Attach(s AttachSpec) (Attachment, error) {
	a, _, err := c.PlanAttach(s)
	if err != nil {
		return Attachment{}, err
	}
	c.hold(a)
	return a, nil
}

func (c *Core) hold(a Attachment) {
	c.attachments[a.Volume] = &a
	v, _ := c.disk(a.Volume)
	add(c.byVM, a.VM, v)
}

// PlanDetach checks whether Detach would succeed; held says whether there is
// anything to do. A volume that no VM holds passes, one that another VM holds
// is the caller's mistake.
func (c *Core) PlanDetach(id string, vm VM) (a Attachment, held bool, err error) {
	if _, ok := c.volumes[id]; !ok {
		return Attachment{}, false, c.unknown(id)
	}
	old, ok := c.attachments[id]
	if !ok {
		return Attachment{}, false, nil
	}
	if old.VM != vm.ID {
		return Attachment{}, false, &Error{Kind: InvalidArgument, Field: "vm", Value: vm.ID, Holder: old.VM, Reason: "another VM holds the volume"}
	}
	// Unverified: the disks of a suspended VM can't be changed.
	if vm.State == Suspended {
		return Attachment{}, false, &Error{Kind: InvalidState, Field: "vm", Value: vm.ID, Holder: vm.Name, Reason: "the VM is suspended"}
	}
	return *old, true, nil
}

// Detach takes a volume from a VM. Errors: NotFound, InvalidArgument (another
// VM holds it), InvalidState.
func (c *Core) Detach(id string, vm VM) (a Attachment, held bool, err error) {
	a, held, err = c.PlanDetach(id, vm)
	if err == nil && held {
		c.release(id)
	}
	return a, held, err
}

func (c *Core) release(id string) {
	v, _ := c.disk(id)
	drop(c.byVM, c.attachments[id].VM, v)
	delete(c.attachments, id)
}

// Sync makes the attachments of a VM agree with its hardware, which is the
// truth: what is in hw and free is taken up, what is not in hw is let go.
// It returns what was let go. Disks in hw that are no first class disks, or that another
// VM holds by the core's account, are passed over.
func (c *Core) Sync(vm string, hw []Attachment) (lost []Attachment) {
	there := make(map[string]bool, len(hw))
	for _, a := range hw {
		there[a.Volume] = true
	}
	for _, a := range c.AttachedTo(vm) {
		if !there[a.Volume] {
			c.release(a.Volume)
			lost = append(lost, a)
		}
	}
	for _, a := range hw {
		_, known := c.disk(a.Volume)
		_, held := c.attachments[a.Volume]
		if known && !held {
			a.VM = vm
			c.hold(a)
		}
	}
	return lost
}
