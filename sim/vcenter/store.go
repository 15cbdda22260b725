package vcenter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/task"
)

// store answers the methods of a datastore. vcsim's look into a directory that
// stands for it.
type store struct {
	optOut // what they call takes the datastore's lock itself
	*simulator.Datastore
	v *VCenter
}

// Reference implements mo.Reference.
func (s *store) Reference() ref { return s.Self }

// look reads the datastore under its lock.
func (s *store) look(c *simulator.Context, read func(*mo.Datastore)) {
	c.WithLock(s.Datastore, func() { read(&s.Datastore.Datastore) })
}

// RefreshDatastore implements the method of the API: free space follows what
// was written.
func (s *store) RefreshDatastore(ctx *simulator.Context, _ *types.RefreshDatastore) soap.HasFault {
	reachable := false
	s.look(ctx, func(d *mo.Datastore) { reachable = d.Summary.Accessible })
	if !reachable {
		return &methods.RefreshDatastoreBody{Fault_: simulator.Fault("", &types.HostConfigFault{})}
	}
	s.v.face.RefreshSpace(s.Self.Value)
	return &methods.RefreshDatastoreBody{Res: &types.RefreshDatastoreResponse{}}
}

// RefreshDatastoreStorageInfo implements the method of the API.
func (s *store) RefreshDatastoreStorageInfo(ctx *simulator.Context, _ *types.RefreshDatastoreStorageInfo) soap.HasFault {
	s.v.face.RefreshSpace(s.Self.Value)
	return &methods.RefreshDatastoreStorageInfoBody{Res: &types.RefreshDatastoreStorageInfoResponse{}}
}

func (s *store) job(ctx *simulator.Context, op string) task.Job {
	j := task.Job{Call: task.Call{Op: op}, Entity: s.Self, Name: op, DescriptionID: "Datastore." + lower(strings.TrimSuffix(op, "_Task"))}
	s.look(ctx, func(d *mo.Datastore) { j.EntityName = d.Name })
	return j
}

// Modes of maintenance.
const (
	modeNormal   = string(types.DatastoreSummaryMaintenanceModeStateNormal)
	modeEntering = string(types.DatastoreSummaryMaintenanceModeStateEnteringMaintenance)
	modeIn       = string(types.DatastoreSummaryMaintenanceModeStateInMaintenance)
)

func (s *store) setMode(c *simulator.Context, mode string) {
	c.Update(s.Datastore, []types.PropertyChange{{Name: "summary.maintenanceMode", Val: mode}})
}

// DatastoreEnterMaintenanceMode implements the method of the API. The
// datastore takes nothing new from now on; the task ends when the last VM has
// left it. There is no Storage DRS that would move them.
func (s *store) DatastoreEnterMaintenanceMode(ctx *simulator.Context, _ *types.DatastoreEnterMaintenanceMode) soap.HasFault {
	normal := false
	ctx.WithLock(s.Datastore, func() {
		if m := s.Summary.MaintenanceMode; m == "" || m == modeNormal {
			normal = true
			s.setMode(ctx, modeEntering)
		}
	})
	if !normal {
		return &methods.DatastoreEnterMaintenanceModeBody{Fault_: simulator.Fault("", &types.InvalidState{})}
	}
	j := s.job(ctx, "DatastoreEnterMaintenanceMode")
	j.Cancelable = true
	j.Work = func(ctx context.Context, c *simulator.Context) (types.AnyType, error) {
		for {
			next := s.v.stir.next()
			over, in := false, false
			c.WithLock(s.Datastore, func() {
				over = s.Summary.MaintenanceMode != modeEntering
				if in = !over && len(s.Vm) == 0; in {
					s.setMode(c, modeIn)
				}
			})
			switch {
			case in:
				return nil, nil
			case over: // another call took it out again
				return nil, &task.Error{Fault: &types.LocalizedMethodFault{Fault: &types.RequestCanceled{}, LocalizedMessage: textCanceled}}
			}
			select {
			case <-next:
			case <-ctx.Done():
				c.WithLock(s.Datastore, func() {
					if s.Summary.MaintenanceMode == modeEntering {
						s.setMode(c, modeNormal)
					}
				})
				return nil, ctx.Err()
			}
		}
	}
	t := s.v.tasks.Start(ctx, j)
	return &methods.DatastoreEnterMaintenanceModeBody{Res: &types.DatastoreEnterMaintenanceModeResponse{Returnval: types.StoragePlacementResult{Task: &t}}}
}

// DatastoreExitMaintenanceModeTask implements DatastoreExitMaintenanceMode_Task.
func (s *store) DatastoreExitMaintenanceModeTask(ctx *simulator.Context, _ *types.DatastoreExitMaintenanceMode_Task) soap.HasFault {
	t := s.v.startTask(ctx, s.Datastore, s.job(ctx, "DatastoreExitMaintenanceMode_Task"), func(_ context.Context, c *simulator.Context) (types.AnyType, types.BaseMethodFault) {
		if m := s.Summary.MaintenanceMode; m == "" || m == modeNormal {
			return nil, &types.InvalidState{}
		}
		s.setMode(c, modeNormal)
		s.v.stir.beat() // for a task that would still enter
		return nil, nil
	})
	return &methods.DatastoreExitMaintenanceMode_TaskBody{Res: &types.DatastoreExitMaintenanceMode_TaskResponse{Returnval: t}}
}

// RenameTask implements Rename_Task. The URL stays; paths of what lies on the
// datastore begin with the new name.
func (s *store) RenameTask(ctx *simulator.Context, req *types.Rename_Task) soap.HasFault {
	j := s.job(ctx, "Rename_Task")
	j.Work = func(_ context.Context, c *simulator.Context) (types.AnyType, error) {
		if f := s.rename(c, req.NewName); f != nil {
			return nil, &task.Error{Fault: &types.LocalizedMethodFault{Fault: f, LocalizedMessage: textOf(f)}}
		}
		return nil, nil
	}
	t := s.v.tasks.Start(ctx, j)
	return &methods.Rename_TaskBody{Res: &types.Rename_TaskResponse{Returnval: t}}
}

func (s *store) rename(c *simulator.Context, to string) types.BaseMethodFault {
	if to == "" || len(to) > 80 || strings.ContainsAny(to, "/\\%[]") {
		return &types.InvalidName{Name: to, Entity: &s.Self}
	}
	s.v.renaming.Lock() // others' names are looked at one by one
	defer s.v.renaming.Unlock()
	for _, d := range s.v.inv.datastores {
		same := false
		if d.Self != s.Self && *d.Parent == *s.Parent {
			c.WithLock(d, func() { same = d.Name == to })
		}
		if same {
			return &types.DuplicateName{Name: to, Object: d.Self}
		}
	}
	var old string
	var vms []ref
	c.WithLock(s.Datastore, func() {
		old, vms = s.Name, slices.Clone(s.Vm)
		c.Update(s.Datastore, []types.PropertyChange{{Name: "name", Val: to}, {Name: "summary.name", Val: to}})
		if s.Info != nil {
			s.Info.GetDatastoreInfo().Name = to
		}
	})
	s.v.face.RefreshSpace(s.Self.Value) // and with that CNS knows the name
	s.v.repath(c, s.Self, vms, old, to)
	return nil
}

// repath gives the files of VMs on a datastore the paths of its new name.
func (v *VCenter) repath(c *simulator.Context, ds ref, vms []ref, old, now string) {
	move := func(p string) string {
		if rest, ok := strings.CutPrefix(p, "["+old+"] "); ok {
			return "[" + now + "] " + rest
		}
		return p
	}
	for _, r := range vms {
		vm, ok := v.vim.Get(r).(*simulator.VirtualMachine)
		if !ok {
			continue
		}
		c.WithLock(vm, func() {
			if vm.Config == nil {
				return
			}
			devices := slices.Clone(vm.Config.Hardware.Device)
			for i, d := range devices {
				disk, ok := d.(*types.VirtualDisk)
				if !ok {
					continue
				}
				b, ok := disk.Backing.(*types.VirtualDiskFlatVer2BackingInfo)
				if !ok || b.Datastore == nil || *b.Datastore != ds {
					continue
				}
				moved, backing := *disk, *b // whoever reads the old ones goes on undisturbed
				backing.FileName = move(b.FileName)
				moved.Backing = &backing
				devices[i] = &moved
			}
			files := vm.Config.Files
			files.VmPathName, files.SnapshotDirectory = move(files.VmPathName), move(files.SnapshotDirectory)
			files.SuspendDirectory, files.LogDirectory = move(files.SuspendDirectory), move(files.LogDirectory)
			c.Update(vm, []types.PropertyChange{
				{Name: "config.hardware.device", Val: devices},
				{Name: "config.files", Val: files},
				{Name: "summary.config.vmPathName", Val: files.VmPathName},
			})
		})
	}
}

// DatastoreAccessible cuts the path of a host to a datastore, or mends it;
// without a host, that of all hosts. A datastore that no host reaches is not
// accessible. Disks that are in use on it are not touched.
func (v *VCenter) DatastoreAccessible(name, host string, on bool) error {
	d, err := v.datastoreOf(name)
	if err != nil {
		return err
	}
	hosts := map[ref]string{}
	for _, z := range v.inv.zones {
		for i, h := range z.hosts {
			hosts[h.Self] = z.Hosts[i].Name
		}
	}
	found := host == ""
	ctx := v.internal()
	ctx.WithLock(d, func() {
		mounts, any := slices.Clone(d.Host), false
		for i := range mounts {
			m := &mounts[i]
			if host == "" || hosts[m.Key] == host {
				found = true
				m.MountInfo.Accessible, m.MountInfo.InaccessibleReason = types.NewBool(on), ""
				if !on {
					m.MountInfo.InaccessibleReason = string(types.HostMountInfoInaccessibleReasonAllPathsDown_Start)
				}
			}
			any = any || m.MountInfo.Accessible == nil || *m.MountInfo.Accessible
		}
		if found {
			ctx.Update(d, []types.PropertyChange{{Name: "host", Val: mounts}, {Name: "summary.accessible", Val: any}})
		}
	})
	if !found {
		return fmt.Errorf("vcenter: no host %q mounts datastore %q", host, name)
	}
	return nil
}

// FillDatastore lets others than CNS take so much of a datastore that
// freeBytes are left, or gives it back.
func (v *VCenter) FillDatastore(name string, freeBytes int64) error {
	d, err := v.datastoreOf(name)
	if err != nil {
		return err
	}
	if freeBytes < 0 {
		return fmt.Errorf("vcenter: datastore %q: freeBytes is %d, allowed are 0 and more", name, freeBytes)
	}
	v.face.FillDatastore(d.Self.Value, freeBytes>>20)
	return nil
}
