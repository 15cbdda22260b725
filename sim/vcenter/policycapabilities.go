package vcenter

import (
	"slices"

	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// capability is one that the schema describes.
type capability struct {
	namespace, id, property string
	kind                    string // XSD type
	set                     bool   // of values
	allowed                 []types.AnyType
}

// vendor of a namespace.
// Unverified: the uuids of vendors.
var vendors = map[string]string{"VSAN": "com.vmware.storage.vsan", tagNamespace: "com.vmware.storage.tag"}

// capabilities are what rules can be made of: vSAN's, and one for each
// category of tags that can be on datastores.
func (p *policies) capabilities() []capability {
	out := []capability{
		{"VSAN", "hostFailuresToTolerate", "hostFailuresToTolerate", "XSD_INT", false, nil},
		{"VSAN", "stripeWidth", "stripeWidth", "XSD_INT", false, nil},
		{"VSAN", "forceProvisioning", "forceProvisioning", "XSD_BOOLEAN", false, nil},
		{"VSAN", "proportionalCapacity", "proportionalCapacity", "XSD_INT", false, nil},
		{"VSAN", "cacheReservation", "cacheReservation", "XSD_INT", false, nil},
	}
	t := p.v.tagging
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.core.Categories() {
		of, err := t.core.OfCategory(c.ID)
		if err != nil || len(c.Types) > 0 && !slices.Contains(c.Types, "Datastore") {
			continue
		}
		x := capability{tagNamespace, c.Name, tagProperty(c.Name), "XSD_STRING", true, nil}
		for _, tag := range of {
			x.allowed = append(x.allowed, tag.Name)
		}
		out = append(out, x)
	}
	return out
}

func described(label, key string) pbmtypes.PbmExtendedElementDescription {
	return pbmtypes.PbmExtendedElementDescription{Label: label, Summary: label, Key: key, MessageCatalogKeyPrefix: key}
}

func (c capability) metadata() pbmtypes.PbmCapabilityMetadata {
	var kind pbmtypes.BasePbmCapabilityTypeInfo = &pbmtypes.PbmCapabilityTypeInfo{TypeName: c.kind}
	prop := pbmtypes.PbmCapabilityPropertyMetadata{Id: c.property, Summary: described(c.id, c.property), Mandatory: true}
	if c.set {
		kind = &pbmtypes.PbmCapabilityGenericTypeInfo{PbmCapabilityTypeInfo: pbmtypes.PbmCapabilityTypeInfo{TypeName: c.kind}, GenericTypeName: string(pbmtypes.PbmBuiltinGenericTypeVMW_SET)}
		prop.AllowedValue = pbmtypes.PbmCapabilityDiscreteSet{Values: c.allowed}
	}
	prop.Type = kind
	return pbmtypes.PbmCapabilityMetadata{
		Id: pbmtypes.PbmCapabilityMetadataUniqueId{Namespace: c.namespace, Id: c.id}, Summary: described(c.id, c.id),
		PropertyMetadata: []pbmtypes.PbmCapabilityPropertyMetadata{prop},
	}
}

// byNamespace groups the capabilities of a vendor, or of all.
func (p *policies) byNamespace(vendor string) (names []string, of map[string][]pbmtypes.PbmCapabilityMetadata) {
	of = map[string][]pbmtypes.PbmCapabilityMetadata{}
	for _, c := range p.capabilities() {
		if vendor != "" && vendors[c.namespace] != vendor {
			continue
		}
		if of[c.namespace] == nil {
			names = append(names, c.namespace)
		}
		of[c.namespace] = append(of[c.namespace], c.metadata())
	}
	return names, of
}

func (p *policies) perCategory(names []string, of map[string][]pbmtypes.PbmCapabilityMetadata) (out []pbmtypes.PbmCapabilityMetadataPerCategory) {
	for _, n := range names {
		out = append(out, pbmtypes.PbmCapabilityMetadataPerCategory{SubCategory: n, CapabilityMetadata: of[n]})
	}
	return out
}

func vendorInfo(namespace string) (pbmtypes.PbmCapabilitySchemaVendorInfo, pbmtypes.PbmCapabilityNamespaceInfo) {
	return pbmtypes.PbmCapabilitySchemaVendorInfo{VendorUuid: vendors[namespace], Info: described(vendors[namespace], vendors[namespace])},
		pbmtypes.PbmCapabilityNamespaceInfo{Version: "2", Namespace: namespace}
}

func (m *profileManager) PbmFetchCapabilityMetadata(req *pbmtypes.PbmFetchCapabilityMetadata) soap.HasFault {
	if t := req.ResourceType; t != nil && t.ResourceType != storage {
		return &methods.PbmFetchCapabilityMetadataBody{Fault_: invalid("resourceType")}
	}
	return &methods.PbmFetchCapabilityMetadataBody{Res: &pbmtypes.PbmFetchCapabilityMetadataResponse{Returnval: m.p.perCategory(m.p.byNamespace(req.VendorUuid))}}
}

func (m *profileManager) PbmFetchCapabilitySchema(req *pbmtypes.PbmFetchCapabilitySchema) soap.HasFault {
	res := &pbmtypes.PbmFetchCapabilitySchemaResponse{}
	names, of := m.p.byNamespace(req.VendorUuid)
	for _, n := range names {
		s := pbmtypes.PbmCapabilitySchema{CapabilityMetadataPerCategory: m.p.perCategory([]string{n}, of)}
		s.VendorInfo, s.NamespaceInfo = vendorInfo(n)
		res.Returnval = append(res.Returnval, s)
	}
	return &methods.PbmFetchCapabilitySchemaBody{Res: res}
}

func (m *profileManager) PbmFetchVendorInfo(req *pbmtypes.PbmFetchVendorInfo) soap.HasFault {
	if t := req.ResourceType; t != nil && t.ResourceType != storage {
		return &methods.PbmFetchVendorInfoBody{Fault_: invalid("resourceType")}
	}
	info := pbmtypes.PbmCapabilityVendorResourceTypeInfo{ResourceType: storage}
	names, _ := m.p.byNamespace("")
	for _, n := range names {
		var x pbmtypes.PbmCapabilityVendorNamespaceInfo
		x.VendorInfo, x.NamespaceInfo = vendorInfo(n)
		info.VendorNamespaceInfo = append(info.VendorNamespaceInfo, x)
	}
	return &methods.PbmFetchVendorInfoBody{Res: &pbmtypes.PbmFetchVendorInfoResponse{Returnval: []pbmtypes.PbmCapabilityVendorResourceTypeInfo{info}}}
}
