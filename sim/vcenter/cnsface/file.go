package cnsface

import (
	"strings"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
	vsanfs "github.com/vmware/govmomi/vsan/vsanfs/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// Keys of a share's access points (CNS API reference,
// CnsVsanFileShareBackingDetails.accessPoints).
const (
	accessNFS3  = "NFSv3"
	accessNFS41 = "NFSv4.1"
)

// fileSpec reads what file volume to make: a new share, or of a share that is
// there, which backingFileId names.
func (f *Face) fileSpec(s cnstypes.CnsVolumeCreateSpec) (cns.CreateSpec, error) {
	spec := cns.CreateSpec{Name: s.Name, Share: &cns.ShareSpec{}}
	details, ok := s.BackingObjectDetails.(*cnstypes.CnsVsanFileShareBackingDetails)
	if !ok || details == nil {
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "backingObjectDetails", Reason: "a file volume needs CnsVsanFileShareBackingDetails"}
	}
	spec.CapacityMB = details.CapacityInMb
	if id := details.BackingFileId; id != "" {
		if !strings.HasPrefix(id, cns.SharePrefix) {
			id = cns.SharePrefix + id
		}
		spec.Share.Existing = id
	}
	switch x := s.CreateSpec.(type) {
	case nil:
	case *cnstypes.CnsVSANFileCreateSpec:
		if x != nil {
			spec.Share.SoftQuotaMB = x.SoftQuotaInMb
			spec.Share.Permissions = permissions(x.Permission)
		}
	default:
		return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "createSpec", Reason: "a file volume takes CnsVSANFileCreateSpec"}
	}
	for _, ds := range s.Datastores {
		spec.Datastores = append(spec.Datastores, ds.Value)
	}
	policy, err := f.policyOf(s.Profile)
	if err != nil {
		return spec, err
	}
	spec.PolicyID = policy
	if s.VolumeId != nil && s.VolumeId.Id != "" {
		if id, ok := strings.CutPrefix(s.VolumeId.Id, cns.SharePrefix); !ok || !isUUID(id) {
			return spec, &cns.Error{Kind: cns.InvalidArgument, Field: "volumeId", Value: s.VolumeId.Id, Reason: "allowed is file: and a uuid in lower case"}
		}
		spec.ID, spec.CallerID = s.VolumeId.Id, true
	}
	if s.VolumeSource != nil {
		return spec, &cns.Error{Kind: cns.NotSupported, Field: "volumeSource", Reason: "a file volume is made empty"}
	}
	spec.Metadata, err = metadata(s.Metadata)
	return spec, err
}

func permissions(ps []vsanfs.VsanFileShareNetPermission) (out []cns.NetPermission) {
	for _, p := range ps {
		out = append(out, cns.NetPermission{IPs: p.Ips, Access: cns.Access(p.Permissions), AllowRoot: p.AllowRoot})
	}
	return out
}

// shareDetails are the backing details of a file volume with their type on the
// wire, and with the permissions, which govmomi v0.56.0 has no field for.
type shareDetails struct {
	*cnstypes.CnsVsanFileShareBackingDetails
	permission []netPermission
}

type netPermission struct {
	IPs       string     `xml:"ips"`
	Access    cns.Access `xml:"permissions,omitempty"`
	AllowRoot bool       `xml:"allowRoot"`
}

// MarshalXML implements govmomi's xml.Marshaler.
func (d shareDetails) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	start.Attr = append(start.Attr, xml.Attr{Name: xml.Name{Local: "xsi:type"}, Value: "CnsVsanFileShareBackingDetails"})
	return e.EncodeElement(struct {
		*cnstypes.CnsVsanFileShareBackingDetails
		Permission []netPermission `xml:"permission,omitempty"`
	}{d.CnsVsanFileShareBackingDetails, d.permission}, start)
}

// shareWire describes the share of a file volume. The paths have the forms of
// vSAN file service: NFS 4.1 clients mount <primary>:/vsanfs/<share> and are
// referred to the server that has it, NFS 3 clients ask that one. Unverified:
// that the share's name is the uuid.
func shareWire(v cns.Volume) shareDetails {
	name := strings.TrimPrefix(v.ID, cns.SharePrefix)
	d := shareDetails{CnsVsanFileShareBackingDetails: &cnstypes.CnsVsanFileShareBackingDetails{
		CnsFileBackingDetails: cnstypes.CnsFileBackingDetails{
			CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: v.CapacityMB},
			BackingFileId:           name,
		},
		Name: name,
		AccessPoints: []vim.KeyValue{
			{Key: accessNFS3, Value: v.Share.Server + ":/" + name},
			{Key: accessNFS41, Value: v.Share.Primary + ":/vsanfs/" + name},
		},
	}}
	for _, p := range v.Share.Permissions {
		d.permission = append(d.permission, netPermission(p))
	}
	return d
}

// Shares returns the shares of file volumes, and those that no volume has.
func (f *Face) Shares() (out []cns.Volume) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, v := range f.core.Volumes() {
		if v.Share != nil {
			out = append(out, v)
		}
	}
	return append(out, f.core.Shares()...)
}

// Access is the access points of a file volume by protocol.
func Access(v cns.Volume) []vim.KeyValue { return shareWire(v).AccessPoints }

// CnsConfigureVolumeACLs adds permissions to the share of a file volume, or
// takes them away.
func (m *manager) CnsConfigureVolumeACLs(ctx *simulator.Context, req *cnstypes.CnsConfigureVolumeACLs) soap.HasFault {
	task := plain(m.f, ctx, "CnsConfigureVolumeACLs", req.ACLConfigSpecs,
		func(s cnstypes.CnsVolumeACLConfigureSpec) string { return s.VolumeId.Id }, m.f.configureACL)
	return &methods.CnsConfigureVolumeACLsBody{Res: &cnstypes.CnsConfigureVolumeACLsResponse{Returnval: task}}
}

func (f *Face) configureACL(s cnstypes.CnsVolumeACLConfigureSpec) error {
	var updates []cns.ACLUpdate
	for _, x := range s.AccessControlSpecList {
		updates = append(updates, cns.ACLUpdate{Permissions: permissions(x.Permission), Delete: x.Delete})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.core.ConfigureACL(s.VolumeId.Id, updates)
	return err
}
