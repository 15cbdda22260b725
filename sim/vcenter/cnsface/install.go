package cnsface

import (
	"errors"
	"fmt"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// manager is the CnsVolumeManager object: vcsim finds the method of a request
// by its name.
type manager struct {
	vim.ManagedObjectReference
	f *Face
}

// Lock and Unlock opt out of vcsim's lock around every call: calls to CNS run
// side by side.
func (*manager) Lock()   {}
func (*manager) Unlock() {}

func (f *Face) install(s *simulator.Service) error {
	if f.inv != nil {
		return errors.New("cnsface: already installed")
	}
	if s == nil || s.Context == nil || s.Context.Map == nil {
		return errors.New("cnsface: the service has no inventory")
	}
	if f.tasks = f.cfg.Tasks; f.tasks == nil {
		var err error
		f.tasks, err = task.New(s, task.Config{First: f.cfg.FirstTask, Keep: f.cfg.KeepTasks, Latency: f.cfg.Latency, OnTask: f.cfg.OnTask, Log: f.log})
		if err != nil {
			return fmt.Errorf("cnsface: %w", err)
		}
	}
	f.inv = newInventory(f, s)
	f.inv.start()
	f.inv.refresh(f.inv.context())
	if f.cfg.State != nil {
		if err := f.restore(*f.cfg.State); err != nil {
			return err
		}
	}
	f.installDisks(s)
	r := simulator.NewRegistry()
	r.Namespace = govcns.Namespace
	r.Path = govcns.Path
	r.Put(&manager{govcns.CnsVolumeManagerInstance, f})
	r.Put(&debugManager{govcns.CnsDebugManagerInstance, f})
	s.RegisterSDK(r)
	return nil
}

// restore takes over the volumes of an earlier run and plugs those that were
// attached into the VMs of this one. A VM that is no more has let go of its own.
func (f *Face) restore(s cns.State) error {
	attachments := s.Attachments
	s.Attachments = nil
	f.mu.Lock()
	err := f.core.Restore(&s)
	f.mu.Unlock()
	if err != nil {
		return fmt.Errorf("cnsface: %w", err)
	}
	c := f.inv.context()
	touched := map[string]bool{}
	for _, v := range s.Volumes {
		touched[v.Datastore] = true
	}
	for _, d := range s.Disks {
		touched[d.Datastore] = true
	}
	for _, x := range s.Files {
		touched[x.Datastore] = true
	}
	for ds := range touched {
		f.inv.account(c, ds)
	}
	for _, a := range attachments {
		m, err := f.inv.look(c, vim.ManagedObjectReference{Type: "VirtualMachine", Value: a.VM})
		if err != nil {
			f.log.Info("an attachment was not restored", "volume", a.Volume, "vm", a.VM, "err", err)
			continue
		}
		view := m.VM
		view.State, view.Tracks = cns.PoweredOn, true // it has the disk already, whatever its state is
		spec := cns.AttachSpec{Volume: a.Volume, VM: view, DiskUUID: a.DiskUUID, Slot: &a.Slot, Mode: a.Mode, Sharing: a.Sharing, Disk: true}
		f.mu.Lock()
		v, _, verr := f.core.Disk(a.Volume)
		at, add, perr := f.core.PlanAttach(spec)
		if perr != nil { // the controller is not there (yet): any slot will do
			spec.Slot = nil
			at, add, perr = f.core.PlanAttach(spec)
		}
		f.mu.Unlock()
		if err := errors.Join(verr, perr); err != nil {
			f.log.Info("an attachment was not restored", "volume", a.Volume, "vm", a.VM, "err", err)
			continue
		}
		if f.cfg.Hardware != nil {
			if err := f.cfg.Hardware.Attach(f.ctx, m.uuid, undash(a.DiskUUID), a.Volume); err != nil {
				f.log.Warn("a disk was not plugged in again", "volume", a.Volume, "vm", a.VM, "err", err)
			}
		}
		f.inv.plug(c, m, v, at, add)
	}
	return nil
}
