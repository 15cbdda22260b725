package cnsface

import (
	"slices"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// SuspendedAttribute is the custom attribute by which CNS makes no more
// volumes on a datastore. The upstream driver (IsVolumeCreationSuspended) looks
// for it among the attributes' values.
const SuspendedAttribute = "cns.vmware.com/datastoreSuspended"

// Storage is what the inventory doesn't tell about a datastore.
type Storage struct {
	// Thick: disks take their whole size when they are made.
	Thick bool
	// FileServers are the addresses of its file servers, by which vSAN file
	// service exports shares, the primary one first. Without any it holds no
	// file volumes.
	FileServers []string
}

// Measures is what Disks may do besides: say how many bytes the content of an
// image and its snapshots takes. Without it thin disks stay empty.
type Measures interface {
	Allocated(id string) (int64, error)
}

// StorageChanged says that Config.Storage has something new to tell.
func (f *Face) StorageChanged() { f.inv.stale.Store(true) }

// refresh tells the core about the datastores as they are now, where anything
// has changed. Who changes one must use the registry's Update.
func (i *inventory) refresh(c *simulator.Context) {
	i.looking.Lock() // who comes meanwhile must not go on with what was before
	defer i.looking.Unlock()
	if !i.stale.Swap(false) {
		return
	}
	i.mu.Lock()
	refs := slices.Clone(i.datastores)
	i.mu.Unlock()
	up := map[string]bool{} // hosts that were looked at
	for _, ref := range refs {
		ds, ok := i.vim.Get(ref).(*simulator.Datastore)
		if !ok {
			continue
		}
		d := cns.Datastore{ID: ref.Value}
		var free int64
		var mounts []string
		c.WithLock(ds, func() {
			d.Name, d.URL, d.Type, d.CapacityMB = ds.Name, ds.Summary.Url, ds.Summary.Type, ds.Summary.Capacity>>20
			d.Inaccessible = !ds.Summary.Accessible
			d.Maintenance = ds.Summary.MaintenanceMode != "" && ds.Summary.MaintenanceMode != string(vim.DatastoreSummaryMaintenanceModeStateNormal)
			// Neither CNS nor its driver put first class disks on NFS 4.1
			// (kubernetes-sigs/vsphere-csi-driver#714).
			d.NoDisks = ds.Summary.Type == "NFS41"
			d.Suspended = slices.ContainsFunc(ds.CustomValue, func(v vim.BaseCustomFieldValue) bool {
				s, ok := v.(*vim.CustomFieldStringValue)
				return ok && s.Value == SuspendedAttribute
			})
			free = ds.Summary.FreeSpace >> 20
			for _, h := range ds.Host {
				if m := h.MountInfo; (m.Accessible == nil || *m.Accessible) && (m.Mounted == nil || *m.Mounted) {
					mounts = append(mounts, h.Key.Value)
				}
			}
			if len(ds.Host) > 0 && len(mounts) == 0 {
				d.Inaccessible = true
			}
		})
		for _, h := range mounts {
			known, seen := up[h]
			if !seen {
				known = i.connected(c, h)
				up[h] = known
			}
			if known {
				d.Hosts = append(d.Hosts, h)
			}
		}
		if len(mounts) > 0 && len(d.Hosts) == 0 {
			d.Inaccessible = true
		}
		if i.face.cfg.Storage != nil {
			s := i.face.cfg.Storage(ref.Value)
			d.Thick, d.FileServers = s.Thick, s.FileServers
		}
		i.face.mu.Lock()
		if old, _, known := i.face.core.Datastore(d.ID); known {
			d.ReservedMB = old.ReservedMB
		} else {
			d.ReservedMB = d.CapacityMB - free
		}
		i.face.core.PutDatastore(d)
		i.face.mu.Unlock()
	}
}

// connected says whether vCenter reaches a host: what only others mount is out
// of reach.
func (i *inventory) connected(c *simulator.Context, host string) bool {
	h, ok := i.vim.Get(vim.ManagedObjectReference{Type: "HostSystem", Value: host}).(*simulator.HostSystem)
	if !ok {
		return false
	}
	up := false
	c.WithLock(h, func() {
		up = h.Runtime.ConnectionState == "" || h.Runtime.ConnectionState == vim.HostSystemConnectionStateConnected
	})
	return up
}

// account shows in the inventory what is free on a datastore.
func (i *inventory) account(c *simulator.Context, datastore string) {
	ds, ok := i.vim.Get(vim.ManagedObjectReference{Type: "Datastore", Value: datastore}).(*simulator.Datastore)
	if !ok {
		return
	}
	c.WithLock(ds, func() {
		i.face.mu.Lock()
		s, known := i.face.core.Space(datastore)
		i.face.mu.Unlock()
		if !known {
			return
		}
		c.Update(ds, []vim.PropertyChange{
			{Name: "summary.freeSpace", Val: s.FreeMB << 20},
			{Name: "summary.uncommitted", Val: s.UncommittedMB << 20},
		})
		if ds.Info != nil {
			ds.Info.GetDatastoreInfo().FreeSpace = s.FreeMB << 20
		}
	})
}

// RefreshSpace looks how much content the disks on a datastore have, and shows
// what that leaves. A vCenter does so every half hour, and when it is asked to.
func (f *Face) RefreshSpace(datastore string) {
	c := f.inv.context()
	f.inv.refresh(c)
	f.mu.Lock()
	ids := f.core.DisksOn(datastore)
	f.mu.Unlock()
	for _, id := range ids {
		f.measure(id)
	}
	f.inv.account(c, datastore)
}

// measure looks how much content a disk has.
func (f *Face) measure(id string) {
	m, ok := f.cfg.Disks.(Measures)
	if !ok {
		return
	}
	n, err := m.Allocated(id)
	if err != nil {
		return // being deleted, or not made yet
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.core.Written(id, (n+1<<20-1)>>20); err != nil {
		f.log.Debug("a disk is gone while it is measured", "disk", id)
	}
}

// FillDatastore lets others than CNS take so much of a datastore that freeMB
// are left, or gives it back; less than nothing can't be left.
func (f *Face) FillDatastore(datastore string, freeMB int64) {
	c := f.inv.context()
	f.inv.refresh(c)
	f.mu.Lock()
	if d, _, ok := f.core.Datastore(datastore); ok {
		d.ReservedMB = 0
		f.core.PutDatastore(d)
		_, empty, _ := f.core.Datastore(datastore)
		d.ReservedMB = max(0, empty-max(0, freeMB))
		f.core.PutDatastore(d)
	}
	f.mu.Unlock()
	f.inv.account(c, datastore)
}
