package vcenter

import (
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/types"

	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// DatastoreInfo describes a datastore as it is now.
type DatastoreInfo struct {
	Datacenter string
	Name       string // as in DatastoreNames: with the datacenter where that is not the first
	Ref        string // managed object id
	Type       string
	URL        string
	// CapacityBytes and FreeBytes as the summary shows them.
	CapacityBytes, FreeBytes int64
	Accessible               bool
	// Maintenance is the mode of the summary: normal, enteringMaintenance, inMaintenance.
	Maintenance string
	Hosts       []string // that mount it
}

// DatastoreList describes all datastores, in the order of the configuration.
func (v *VCenter) DatastoreList() []DatastoreInfo {
	var out []DatastoreInfo
	for _, d := range v.inv.datastores {
		i := DatastoreInfo{Name: v.inv.labels[d.Self], Ref: d.Self.Value, Datacenter: v.nameOf(v.datacenterOf(d.Self))}
		var hosts []ref
		ctx := v.internal()
		ctx.WithLock(d, func() {
			s := d.Summary
			i.Type, i.URL, i.CapacityBytes, i.FreeBytes, i.Accessible, i.Maintenance = s.Type, s.Url, s.Capacity, s.FreeSpace, s.Accessible, s.MaintenanceMode
			for _, h := range d.Host {
				hosts = append(hosts, h.Key)
			}
		})
		for _, h := range hosts {
			i.Hosts = append(i.Hosts, v.nameOf(h))
		}
		out = append(out, i)
	}
	return out
}

// nameOf is the name of a datacenter or host; the reference's value when there
// is no such thing.
func (v *VCenter) nameOf(r ref) string {
	switch o := v.vim.Get(r).(type) {
	case *simulator.Datacenter:
		return o.Name
	case *simulator.HostSystem:
		return o.Name
	}
	return r.Value
}

// AttachmentInfo is a disk of CNS in a VM.
type AttachmentInfo struct {
	core.Attachment
	VMName string // of the VM, which is the node's
}

// Attachments lists what is attached, by volume id.
func (v *VCenter) Attachments() []AttachmentInfo {
	var out []AttachmentInfo
	for _, a := range v.face.Attachments() {
		out = append(out, AttachmentInfo{a, v.nodeName(ref{Type: "VirtualMachine", Value: a.VM})})
	}
	return out
}

// TaskInfo describes a task without the types of the API.
type TaskInfo struct {
	ID, Op, Volume, Snapshot, VMName, Entity string
	State                                    string // queued, running, success, error
	Progress                                 int32
	OpID                                     string // of the call that started it
	User                                     string
	Queued                                   time.Time
	Completed                                *time.Time
	Error                                    string
}

// TaskList describes the tasks that clients can see, oldest first.
func (v *VCenter) TaskList() []TaskInfo {
	var out []TaskInfo
	for _, t := range v.Tasks() {
		i := TaskInfo{ID: t.Info.Key, Op: t.Op, Volume: t.Volume, Snapshot: t.Snapshot, Entity: t.Info.EntityName, State: string(t.Info.State),
			Progress: t.Info.Progress, OpID: t.Info.ActivationId, Queued: t.Info.QueueTime.UTC(), Completed: t.Info.CompleteTime}
		if t.VM != "" {
			i.VMName = v.nodeName(ref{Type: "VirtualMachine", Value: t.VM})
		}
		if u, ok := t.Info.Reason.(*types.TaskReasonUser); ok {
			i.User = u.UserName
		}
		if e := t.Info.Error; e != nil {
			i.Error = strings.TrimSpace(e.LocalizedMessage)
		}
		out = append(out, i)
	}
	return out
}
