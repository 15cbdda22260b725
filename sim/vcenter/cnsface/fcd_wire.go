package cnsface

import (
	"strings"

	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// storageObject is a first class disk as the API shows it, with who holds it.
func (f *Face) storageObject(c *simulator.Context, d cns.Disk, holders []cns.Attachment) vim.VStorageObject {
	b := &vim.BaseConfigInfoDiskFileBackingInfo{ProvisioningType: string(d.Provisioning)}
	if d.Provisioning == "" {
		b.ProvisioningType = string(cns.Thin)
	}
	b.FilePath, b.BackingObjectId = d.DiskPath, d.ID
	b.Datastore = vim.ManagedObjectReference{Type: "Datastore", Value: d.Datastore}
	b.KeyId = cryptoKey(d.Key)
	o := vim.VStorageObject{Config: vim.VStorageObjectConfigInfo{CapacityInMB: d.CapacityMB, ConsumptionType: []string{"disk"}}}
	o.Config.Id = vim.ID{Id: d.ID}
	o.Config.Name = d.Name
	o.Config.CreateTime = d.Created
	o.Config.KeepAfterDeleteVm = vim.NewBool(d.Flags.KeepAfterDeleteVM)
	o.Config.RelocationDisabled = vim.NewBool(d.Flags.DisableRelocation)
	o.Config.NativeSnapshotSupported = vim.NewBool(false)
	o.Config.ChangedBlockTrackingEnabled = vim.NewBool(d.Flags.ChangedBlockTracking)
	o.Config.Metadata = keyValues(d.Values)
	o.Config.Backing = b
	if d.LinkedTo != nil {
		o.Config.LinkedCloneParentId = &vim.ID{Id: d.LinkedTo.Volume}
	}
	for _, a := range holders {
		// Unverified: that a consumer goes by its BIOS uuid; vcsim says so.
		if m, err := f.inv.look(c, vim.ManagedObjectReference{Type: "VirtualMachine", Value: a.VM}); err == nil {
			o.Config.ConsumerId = append(o.Config.ConsumerId, vim.ID{Id: m.uuid})
		}
	}
	return o
}

// disk reads a disk and who holds it; on says where it must lie, "" anywhere.
func (f *Face) disk(id, on string) (cns.Disk, []cns.Attachment, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, _, err := f.core.Disk(id)
	if err != nil {
		return d, nil, err
	}
	if on != "" && d.Datastore != on {
		return d, nil, &cns.Error{Kind: cns.NotFound, Field: "id", Value: id, Reason: "the disk lies on " + d.Datastore}
	}
	return d, f.core.AttachmentsOf(id), nil
}

// object reads a disk as the API shows it.
func (f *Face) object(c *simulator.Context, id, on string) (vim.VStorageObject, error) {
	d, holders, err := f.disk(id, on)
	if err != nil {
		return vim.VStorageObject{}, err
	}
	return f.storageObject(c, d, holders), nil
}

func keyValues(ls []cns.Label) []vim.KeyValue {
	var out []vim.KeyValue
	for _, l := range ls {
		out = append(out, vim.KeyValue{Key: l.Key, Value: l.Value})
	}
	return out
}

func labels(kvs []vim.KeyValue) []cns.Label {
	var out []cns.Label
	for _, kv := range kvs {
		out = append(out, cns.Label{Key: kv.Key, Value: kv.Value})
	}
	return out
}

func idList(ids []string) []vim.ID {
	var out []vim.ID
	for _, id := range ids {
		out = append(out, vim.ID{Id: id})
	}
	return out
}

// newKey is the key that a specification of a new disk names, none for none.
// Errors: InvalidArgument (no key, or nothing that a new disk can be told).
func newKey(s vim.BaseCryptoSpec) (cns.Key, error) {
	if s == nil {
		return cns.Key{}, nil
	}
	what, key, err := cryptOf(s)
	if err == nil && what != "" && (what != cns.Encrypt || key.ID == "") {
		err = &cns.Error{Kind: cns.InvalidArgument, Field: "crypto", Value: string(what), Reason: "a new disk can only be encrypted, with a key"}
	}
	return key, err
}

// backing is where a specification wants a disk.
type backing struct {
	datastore    string
	path         string // relative; "" means the default
	provisioning cns.Provisioning
}

// backingOf reads the backing of a specification for a disk with an id.
// Errors: InvalidArgument, NotSupported.
func backingOf(s vim.BaseVslmCreateSpecBackingSpec, id string) (backing, error) {
	var out backing
	switch x := s.(type) {
	case *vim.VslmCreateSpecDiskFileBackingSpec:
		out.provisioning = cns.Provisioning(x.ProvisioningType)
	case *vim.VslmCreateSpecBackingSpec:
	case *vim.VslmCreateSpecRawDiskMappingBackingSpec:
		return out, &cns.Error{Kind: cns.NotSupported, Field: "spec.backingSpec", Value: "raw disk mapping", Reason: "raw disk mappings are not simulated"}
	default:
		return out, &cns.Error{Kind: cns.InvalidArgument, Field: "spec.backingSpec", Reason: "missing"}
	}
	b := s.GetVslmCreateSpecBackingSpec()
	if b == nil || b.Datastore.Type != "Datastore" {
		return out, &cns.Error{Kind: cns.InvalidArgument, Field: "spec.backingSpec.datastore", Reason: "allowed is a datastore"}
	}
	out.datastore, out.path = b.Datastore.Value, filePath(b.Path, id)
	return out, nil
}

// filePath is the file that a path in a specification means for a disk with an
// id: "Relative location in the specified datastore where disk needs to be
// created" (VslmCreateSpecBackingSpec). Unverified: that it may name the file;
// vcsim takes it for one.
func filePath(path, id string) string {
	path = strings.Trim(path, "/")
	if path != "" && !strings.HasSuffix(path, ".vmdk") {
		path += "/" + cns.BackingName(id) + ".vmdk"
	}
	return path
}
