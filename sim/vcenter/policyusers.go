package vcenter

import (
	"slices"
	"strconv"
	"strings"

	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

func itoa(n int64) string { return strconv.FormatInt(n, 10) }

// object is a volume or disk as PBM names it: first class disks by id, file
// shares by theirs.
func (p *policies) object(id string) pbmtypes.PbmServerObjectRef {
	kind := pbmtypes.PbmObjectTypeVirtualDiskUUID
	if strings.HasPrefix(id, "file:") {
		kind = pbmtypes.PbmObjectTypeFileShareId
	}
	return pbmtypes.PbmServerObjectRef{ObjectType: string(kind), Key: id, ServerUuid: p.v.content.About.InstanceUuid}
}

// volumeOf finds the volume that an object is: a disk by id, or a disk of a VM
// as <vm>:<key>.
func (p *policies) volumeOf(o pbmtypes.PbmServerObjectRef) string {
	switch o.ObjectType {
	case string(pbmtypes.PbmObjectTypeVirtualDiskUUID), string(pbmtypes.PbmObjectTypeFileShareId):
		return o.Key
	case string(pbmtypes.PbmObjectTypeVirtualDiskId):
		vm, key, _ := strings.Cut(o.Key, ":")
		for k, id := range p.disksOf(vm) {
			if k == key {
				return id
			}
		}
	}
	return ""
}

// disksOf lists the volumes in a VM by device key.
func (p *policies) disksOf(vm string) map[string]string {
	out := map[string]string{}
	obj, ok := p.v.vim.Get(ref{Type: "VirtualMachine", Value: vm}).(*simulator.VirtualMachine)
	if !ok {
		return out
	}
	ctx := p.v.internal()
	ctx.WithLock(obj, func() {
		if obj.Config == nil {
			return
		}
		for _, d := range obj.Config.Hardware.Device {
			if disk, ok := d.(*types.VirtualDisk); ok && disk.VDiskId != nil {
				out[itoa(int64(disk.Key))] = disk.VDiskId.Id
			}
		}
	})
	return out
}

// profileOf lists the policies of an object. Errors: the object does not exist.
func (p *policies) profileOf(o pbmtypes.PbmServerObjectRef) ([]pbmtypes.PbmProfileId, *types.LocalizedMethodFault) {
	bad := &types.LocalizedMethodFault{Fault: &types.InvalidArgument{InvalidProperty: "entity"}, LocalizedMessage: textOf(&types.InvalidArgument{InvalidProperty: "entity"})}
	switch o.ObjectType {
	case string(pbmtypes.PbmObjectTypeVirtualMachine), string(pbmtypes.PbmObjectTypeVirtualMachineAndDisks):
		if p.v.vim.Get(ref{Type: "VirtualMachine", Value: o.Key}) == nil {
			return nil, bad
		}
		var out []pbmtypes.PbmProfileId
		if o.ObjectType == string(pbmtypes.PbmObjectTypeVirtualMachineAndDisks) {
			for _, id := range p.disksOf(o.Key) {
				if policy, ok := p.v.face.PolicyOf(id); ok && policy != "" && !slices.Contains(out, pbmtypes.PbmProfileId{UniqueId: policy}) {
					out = append(out, pbmtypes.PbmProfileId{UniqueId: policy})
				}
			}
		}
		return out, nil
	case string(pbmtypes.PbmObjectTypeDatastore):
		if _, ok := p.store(pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: o.Key}); !ok {
			return nil, bad
		}
		return nil, nil
	}
	policy, ok := p.v.face.PolicyOf(p.volumeOf(o))
	switch {
	case !ok:
		return nil, bad
	case policy == "":
		return nil, nil
	}
	return []pbmtypes.PbmProfileId{{UniqueId: policy}}, nil
}

func (m *profileManager) PbmQueryAssociatedProfile(req *pbmtypes.PbmQueryAssociatedProfile) soap.HasFault {
	ids, f := m.p.profileOf(req.Entity)
	if f != nil {
		return &methods.PbmQueryAssociatedProfileBody{Fault_: simulator.Fault("", f.Fault)}
	}
	return &methods.PbmQueryAssociatedProfileBody{Res: &pbmtypes.PbmQueryAssociatedProfileResponse{Returnval: ids}}
}

func (m *profileManager) PbmQueryAssociatedProfiles(req *pbmtypes.PbmQueryAssociatedProfiles) soap.HasFault {
	res := &pbmtypes.PbmQueryAssociatedProfilesResponse{}
	for _, o := range req.Entities {
		ids, f := m.p.profileOf(o)
		res.Returnval = append(res.Returnval, pbmtypes.PbmQueryProfileResult{Object: o, ProfileId: ids, Fault: f})
	}
	return &methods.PbmQueryAssociatedProfilesBody{Res: res}
}

// users lists the objects of a policy, of one type or all.
func (p *policies) users(id, kind string) (out []pbmtypes.PbmServerObjectRef) {
	for _, v := range p.v.face.UsersOf(id) {
		if o := p.object(v); kind == "" || kind == o.ObjectType {
			out = append(out, o)
		}
	}
	return out
}

func (m *profileManager) PbmQueryAssociatedEntity(req *pbmtypes.PbmQueryAssociatedEntity) soap.HasFault {
	if !m.p.exists(req.Profile.UniqueId) {
		return &methods.PbmQueryAssociatedEntityBody{Fault_: invalid("profile")}
	}
	return &methods.PbmQueryAssociatedEntityBody{Res: &pbmtypes.PbmQueryAssociatedEntityResponse{Returnval: m.p.users(req.Profile.UniqueId, req.EntityType)}}
}

func (m *profileManager) PbmQueryAssociatedEntities(req *pbmtypes.PbmQueryAssociatedEntities) soap.HasFault {
	ids := req.Profiles
	if len(ids) == 0 {
		for _, x := range m.p.all() {
			ids = append(ids, pbmtypes.PbmProfileId{UniqueId: x.ID})
		}
	}
	res := &pbmtypes.PbmQueryAssociatedEntitiesResponse{}
	for _, id := range ids {
		if !m.p.exists(id.UniqueId) {
			return &methods.PbmQueryAssociatedEntitiesBody{Fault_: invalid("profiles")}
		}
		for _, o := range m.p.users(id.UniqueId, "") {
			res.Returnval = append(res.Returnval, pbmtypes.PbmQueryProfileResult{Object: o, ProfileId: []pbmtypes.PbmProfileId{id}})
		}
	}
	return &methods.PbmQueryAssociatedEntitiesBody{Res: res}
}
