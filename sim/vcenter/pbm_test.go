package vcenter_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/pbm"
	"github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"

	"github.com/csilab/csilab/sim/vcenter"
)

// policyRig is a rig with a datastore of three types and a client of PBM.
type policyRig struct {
	*rig
	pbm *pbm.Client
}

func newPolicyRig(t *testing.T, policies ...vcenter.Policy) *policyRig {
	t.Helper()
	r := newRig(t, vcenter.Config{
		Datastores: []vcenter.Datastore{{Name: "vmfs"}, {Name: "vsan", Type: "vsan"}, {Name: "nfs", Type: "NFS"}},
		Policies:   append(vcenter.DefaultPolicies(), policies...),
	})
	pc, err := pbm.NewClient(r.ctx, r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	return &policyRig{r, pc}
}

func (r *policyRig) hub(name string) pbmtypes.PbmPlacementHub {
	return pbmtypes.PbmPlacementHub{HubType: "Datastore", HubId: r.datastoreRef(name).Value}
}

// compatible lists the datastores for a policy.
func (r *policyRig) compatible(id string) string {
	r.t.Helper()
	res, err := r.pbm.CheckRequirements(r.ctx, nil, nil, []pbmtypes.BasePbmPlacementRequirement{&pbmtypes.PbmPlacementCapabilityProfileRequirement{ProfileId: pbmtypes.PbmProfileId{UniqueId: id}}})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.names(res.CompatibleDatastores())
}

func (r *policyRig) names(hubs []pbmtypes.PbmPlacementHub) string {
	var out []string
	for _, n := range r.v.DatastoreNames() {
		if slices.Contains(hubs, r.hub(n)) {
			out = append(out, n)
		}
	}
	return strings.Join(out, " ")
}

func (r *policyRig) make(name string, capabilities ...pbm.Capability) (string, error) {
	r.t.Helper()
	spec, err := pbm.CreateCapabilityProfileSpec(pbm.CapabilityProfileCreateSpec{Name: name, SubProfileName: "rules", Category: "REQUIREMENT", CapabilityList: capabilities})
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := r.pbm.CreateProfile(r.ctx, *spec)
	if err != nil {
		return "", err
	}
	return id.UniqueId, nil
}

func rule(namespace, id, value, kind string) pbm.Capability {
	return pbm.Capability{ID: id, Namespace: namespace, PropertyList: []pbm.Property{{ID: id, Value: value, DataType: kind}}}
}

func tagRule(category, names, operator string) pbm.Capability {
	return pbm.Capability{ID: category, Namespace: "http://www.vmware.com/storage/tag", PropertyList: []pbm.Property{
		{ID: "com.vmware.storage.tag." + category + ".property", Value: names, DataType: "set", Operator: operator}}}
}

// The course of govmomi's own pbm/client_test.go.
func TestLifeOfPolicies(t *testing.T) {
	r := newPolicyRig(t)
	rtype := pbmtypes.PbmProfileResourceType{ResourceType: "STORAGE"}
	ids, err := r.pbm.QueryProfile(r.ctx, rtype, "REQUIREMENT")
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	for _, c := range []struct{ kind, category string }{{"STORAGE", "DATA_SERVICE_POLICY"}, {"NETWORK", "REQUIREMENT"}} {
		if ids, err := r.pbm.QueryProfile(r.ctx, pbmtypes.PbmProfileResourceType{ResourceType: c.kind}, c.category); err != nil || len(ids) != 0 {
			t.Errorf("%v: %v, %v", c, ids, err)
		}
	}
	vsan, err := r.make("Kubernetes-VSAN-TestPolicy", rule("VSAN", "hostFailuresToTolerate", "2", "int"), rule("VSAN", "stripeWidth", "1", "int"))
	if err != nil {
		t.Fatal(err)
	}
	both, err := r.make("Kubernetes-VSAN-SIOC-TestPolicy", rule("VSAN", "stripeWidth", "1", "int"), pbm.Capability{ID: "spm@DATASTOREIOCONTROL", Namespace: "spm",
		PropertyList: []pbm.Property{{ID: "limit", Value: "200", DataType: "int"}, {ID: "reservation", Value: "1000", DataType: "int"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{vsan, both} {
		if got := r.compatible(id); got != "vsan" {
			t.Errorf("compatible: %q", got)
		}
	}
	content, err := r.pbm.RetrieveContent(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: vsan}})
	if err != nil {
		t.Fatal(err)
	}
	p := content[0].(*pbmtypes.PbmCapabilityProfile)
	sub := p.Constraints.(*pbmtypes.PbmCapabilitySubProfileConstraints).SubProfiles
	if p.CreatedBy != `VSPHERE.LOCAL\administrator` || len(sub) != 1 || len(sub[0].Capability) != 2 || sub[0].Capability[0].Constraint[0].PropertyInstance[0].Value != int32(2) {
		t.Errorf("%+v", p)
	}
	if id, err := r.pbm.ProfileIDByName(r.ctx, "Kubernetes-VSAN-SIOC-TestPolicy"); err != nil || id != both {
		t.Errorf("by name: %v, %v", id, err)
	}
	if name, err := r.pbm.GetProfileNameByID(r.ctx, both); err != nil || name != "Kubernetes-VSAN-SIOC-TestPolicy" {
		t.Errorf("by id: %v, %v", name, err)
	}
	if m, err := r.pbm.ProfileMap(r.ctx); err != nil || m.Name["Lab Storage Policy"] == nil || len(m.Profile) != 4 {
		t.Errorf("map: %v, %v", m, err)
	}
	if m, err := r.pbm.DatastoreMap(r.ctx, r.Client.Client, r.ServiceContent.RootFolder); err != nil || len(m.PlacementHub) != 3 || m.Name[r.hub("nfs").HubId] != "nfs" {
		t.Errorf("datastores: %v, %v", m, err)
	}
	for name, c := range map[string]struct {
		err  error
		want types.BaseMethodFault
	}{
		"name taken":       {second(r.make("Lab Storage Policy", rule("VSAN", "stripeWidth", "1", "int"))), &pbmtypes.PbmDuplicateName{}},
		"no name":          {second(r.make("", rule("VSAN", "stripeWidth", "1", "int"))), &types.InvalidArgument{}},
		"no rules":         {second(r.make("x")), &types.InvalidArgument{}},
		"two vendors":      {second(r.make("x", rule("VSAN", "stripeWidth", "1", "int"), rule("VVOL", "x", "1", "int"))), &pbmtypes.PbmIncompatibleVendorSpecificRuleSet{}},
		"update none":      {r.pbm.UpdateProfile(r.ctx, pbmtypes.PbmProfileId{UniqueId: "x"}, pbmtypes.PbmCapabilityProfileUpdateSpec{Name: "y"}), &types.InvalidArgument{}},
		"update taken":     {r.pbm.UpdateProfile(r.ctx, pbmtypes.PbmProfileId{UniqueId: vsan}, pbmtypes.PbmCapabilityProfileUpdateSpec{Name: "Lab Storage Policy"}), &pbmtypes.PbmDuplicateName{}},
		"content of none":  {second(r.pbm.RetrieveContent(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: "x"}})), &types.InvalidArgument{}},
		"entities of none": {second(r.pbm.QueryAssociatedEntity(r.ctx, pbmtypes.PbmProfileId{UniqueId: "x"}, "")), &types.InvalidArgument{}},
	} {
		if !fault.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %T", name, c.err, c.want)
		}
	}
	// An update of the rules changes what is compatible.
	spec, err := pbm.CreateCapabilityProfileSpec(pbm.CapabilityProfileCreateSpec{Name: "x", CapabilityList: []pbm.Capability{tagRule("tier", "gold", "")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.pbm.UpdateProfile(r.ctx, pbmtypes.PbmProfileId{UniqueId: vsan}, pbmtypes.PbmCapabilityProfileUpdateSpec{Name: "renamed", Constraints: spec.Constraints}); err != nil {
		t.Fatal(err)
	}
	if got := r.compatible(vsan); got != "" {
		t.Errorf("after the update: %q", got)
	}
	out, err := r.pbm.DeleteProfile(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: vsan}, {UniqueId: both}, {UniqueId: "x"}, {UniqueId: "aa6d5a82-1c88-45da-85d3-3d74b91a5bad"}})
	if err != nil || len(out) != 4 || out[0].Fault != nil || out[1].Fault != nil || out[2].Fault == nil || out[3].Fault == nil {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := r.pbm.ProfileIDByName(r.ctx, "renamed"); err == nil {
		t.Error("a deleted policy is found")
	}
}

func second[T any](_ T, err error) error { return err }

func TestTagsDecideWhereAPolicyFits(t *testing.T) {
	r := newPolicyRig(t, vcenter.Policy{Name: "configured", Tags: []vcenter.TagRule{{Category: "tier", Names: []string{"gold"}}}})
	r.v.Tag("vmfs", "tier", "gold")
	r.v.Tag("nfs", "tier", "silver")
	r.v.Tag("nfs", "site", "a")
	configured, err := r.pbm.ProfileIDByName(r.ctx, "configured")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		rules []pbm.Capability
		want  string
	}{
		"one tag":        {[]pbm.Capability{tagRule("tier", "gold", "")}, "vmfs"},
		"either":         {[]pbm.Capability{tagRule("tier", "gold,silver", "")}, "vmfs nfs"},
		"not":            {[]pbm.Capability{tagRule("tier", "gold", "NOT")}, "vsan nfs"},
		"both rules":     {[]pbm.Capability{tagRule("tier", "silver", ""), tagRule("site", "a", "")}, "nfs"},
		"contradiction":  {[]pbm.Capability{tagRule("tier", "gold", ""), tagRule("site", "a", "")}, ""},
		"tag and vSAN":   {[]pbm.Capability{tagRule("tier", "gold", ""), rule("VSAN", "stripeWidth", "1", "int")}, ""},
		"unknown vendor": {[]pbm.Capability{rule("com.example", "x", "1", "int")}, ""},
		"no such tag":    {[]pbm.Capability{tagRule("tier", "bronze", "")}, ""},
	} {
		id, err := r.make(name, c.rules...)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.compatible(id); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := r.compatible(configured); got != "vmfs" {
		t.Errorf("of the configuration: %q", got)
	}
	if err := r.v.Tag("vsan", "tier", "gold"); err != nil {
		t.Fatal(err)
	}
	if err := r.v.Untag("vmfs", "tier", "gold"); err != nil {
		t.Fatal(err)
	}
	if got := r.compatible(configured); got != "vsan" {
		t.Errorf("after tags have moved: %q", got)
	}
	hubs, err := methods.PbmQueryMatchingHub(r.ctx, r.pbm, &pbmtypes.PbmQueryMatchingHub{This: r.pbm.ServiceContent.PlacementSolver, Profile: pbmtypes.PbmProfileId{UniqueId: configured}})
	if err != nil || r.names(hubs.Returnval) != "vsan" {
		t.Errorf("matching hubs: %v, %v", hubs, err)
	}
	spec, err := pbm.CreateCapabilityProfileSpec(pbm.CapabilityProfileCreateSpec{Name: "x", CapabilityList: []pbm.Capability{tagRule("site", "a", "")}})
	if err != nil {
		t.Fatal(err)
	}
	with, err := methods.PbmQueryMatchingHubWithSpec(r.ctx, r.pbm, &pbmtypes.PbmQueryMatchingHubWithSpec{This: r.pbm.ServiceContent.PlacementSolver, CreateSpec: *spec})
	if err != nil || r.names(with.Returnval) != "nfs" {
		t.Errorf("matching hubs of a spec: %v, %v", with, err)
	}
	checked, err := methods.PbmCheckCompatibilityWithSpec(r.ctx, r.pbm, &pbmtypes.PbmCheckCompatibilityWithSpec{This: r.pbm.ServiceContent.PlacementSolver, ProfileSpec: *spec, HubsToSearch: []pbmtypes.PbmPlacementHub{r.hub("vmfs"), {HubType: "Datastore", HubId: "nope"}}})
	if err != nil || len(checked.Returnval) != 2 || len(checked.Returnval[0].Error) == 0 || len(checked.Returnval[1].Error) == 0 {
		t.Errorf("compatibility of a spec: %v, %v", checked, err)
	}
	res, err := r.pbm.CheckRequirements(r.ctx, nil, nil, []pbmtypes.BasePbmPlacementRequirement{
		&pbmtypes.PbmPlacementCapabilityProfileRequirement{ProfileId: pbmtypes.PbmProfileId{UniqueId: configured}},
		&pbmtypes.PbmPlacementCapabilityConstraintsRequirement{Constraints: spec.Constraints},
	})
	if err != nil || len(res.CompatibleDatastores()) != 0 || len(res.NonCompatibleDatastores()) != 3 {
		t.Errorf("both requirements: %v, %v", res, err)
	}
	caps, err := r.pbm.FetchCapabilityMetadata(r.ctx, nil, "com.vmware.storage.tag")
	if err != nil || len(caps) != 1 || len(caps[0].CapabilityMetadata) != 2 || caps[0].CapabilityMetadata[0].Id.Id != "tier" {
		t.Errorf("capabilities %+v, %v", caps, err)
	}
	schema, err := methods.PbmFetchCapabilitySchema(r.ctx, r.pbm, &pbmtypes.PbmFetchCapabilitySchema{This: r.pbm.ServiceContent.ProfileManager})
	if err != nil || len(schema.Returnval) != 2 {
		t.Errorf("schema %+v, %v", schema, err)
	}
	vendors, err := methods.PbmFetchVendorInfo(r.ctx, r.pbm, &pbmtypes.PbmFetchVendorInfo{This: r.pbm.ServiceContent.ProfileManager})
	if err != nil || len(vendors.Returnval) != 1 || len(vendors.Returnval[0].VendorNamespaceInfo) != 2 {
		t.Errorf("vendors %+v, %v", vendors, err)
	}
}

// withPolicy makes a volume of a policy.
func (r *policyRig) withPolicy(name, policy, datastore string) string {
	r.t.Helper()
	spec := volumeSpec(name)
	spec.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: policy}}
	spec.Datastores = []types.ManagedObjectReference{r.datastoreRef(datastore)}
	task, err := r.cns.CreateVolume(r.ctx, []cnstypes.CnsVolumeCreateSpec{spec})
	res, _, err := r.result(r.ctx, task, err)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.VolumeId.Id
}

// vsanDefaultPolicy is the id that the policy has on every vCenter.
const vsanDefaultPolicy = "aa6d5a82-1c88-45da-85d3-3d74b91a5bad"

// TestDefaultPolicyOfDatastore: what is made without a policy gets that of the
// datastore, where it has one (vsphere-csi-driver#2180).
func TestDefaultPolicyOfDatastore(t *testing.T) {
	r := newPolicyRig(t)
	gold, err := r.make("gold", tagRule("tier", "gold", ""))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.v.Tag("vsan", "tier", "gold"); err != nil {
		t.Fatal(err)
	}
	on := func(name, datastore string) string {
		return r.made(blockVolume(name, 10, r.datastoreRef(datastore)))
	}
	before, plain := on("before", "vsan"), on("plain", "vmfs")
	if _, err := methods.PbmAssignDefaultRequirementProfile(r.ctx, r.pbm, &pbmtypes.PbmAssignDefaultRequirementProfile{This: r.pbm.ServiceContent.ProfileManager, Profile: pbmtypes.PbmProfileId{UniqueId: gold}, Datastores: []pbmtypes.PbmPlacementHub{r.hub("vsan")}}); err != nil {
		t.Fatal(err)
	}
	after := on("after", "vsan")
	for _, x := range []struct{ id, policy, compliance string }{
		{before, vsanDefaultPolicy, "compliant"}, {plain, "", "notApplicable"}, {after, gold, "compliant"},
	} {
		v := r.query(x.id)
		if v.StoragePolicyId != x.policy || v.ComplianceStatus != x.compliance {
			t.Errorf("%s: policy %q, %s, want %q, %s", v.Name, v.StoragePolicyId, v.ComplianceStatus, x.policy, x.compliance)
		}
	}
	task, err := r.fcd("disk", "vsan")
	if err != nil {
		t.Fatal(err)
	}
	info, err := task.WaitForResultEx(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	disk := pbmtypes.PbmServerObjectRef{ObjectType: "virtualDiskUUID", Key: info.Result.(types.VStorageObject).Config.Id.Id}
	if got, err := r.pbm.QueryAssociatedProfile(r.ctx, disk); err != nil || len(got) != 1 || got[0].UniqueId != gold {
		t.Errorf("a first class disk: %v, %v", got, err)
	}
}

// fcd makes a first class disk without a policy.
func (r *policyRig) fcd(name, datastore string) (*object.Task, error) {
	return vslm.NewObjectManager(r.Client.Client).CreateDisk(r.ctx, types.VslmCreateSpec{Name: name, CapacityInMB: 10,
		BackingSpec: &types.VslmCreateSpecDiskFileBackingSpec{VslmCreateSpecBackingSpec: types.VslmCreateSpecBackingSpec{Datastore: r.datastoreRef(datastore)}}})
}

func TestPoliciesInUse(t *testing.T) {
	r := newPolicyRig(t)
	if err := r.v.Tag("vmfs", "tier", "gold"); err != nil {
		t.Fatal(err)
	}
	gold, err := r.make("gold", tagRule("tier", "gold", ""))
	if err != nil {
		t.Fatal(err)
	}
	id := r.withPolicy("v", gold, "vmfs")
	plain := r.volume("plain")
	disk := func(id string) pbmtypes.PbmServerObjectRef {
		return pbmtypes.PbmServerObjectRef{ObjectType: "virtualDiskUUID", Key: id}
	}
	if got, err := r.pbm.QueryAssociatedProfile(r.ctx, disk(id)); err != nil || len(got) != 1 || got[0].UniqueId != gold {
		t.Errorf("profile of the volume: %v, %v", got, err)
	}
	if _, err := r.pbm.QueryAssociatedProfile(r.ctx, disk("nope")); !fault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("profile of nothing: %v", err)
	}
	if got, err := r.pbm.QueryAssociatedProfiles(r.ctx, []pbmtypes.PbmServerObjectRef{disk(id), disk(plain), disk("nope")}); err != nil || len(got) != 3 || len(got[0].ProfileId) != 1 || len(got[1].ProfileId) != 0 || got[2].Fault == nil {
		t.Errorf("profiles: %v, %v", got, err)
	}
	if got, err := r.pbm.QueryAssociatedEntity(r.ctx, pbmtypes.PbmProfileId{UniqueId: gold}, "virtualDiskUUID"); err != nil || len(got) != 1 || got[0].Key != id {
		t.Errorf("entities: %v, %v", got, err)
	}
	if got, err := r.pbm.QueryAssociatedEntity(r.ctx, pbmtypes.PbmProfileId{UniqueId: gold}, "virtualMachine"); err != nil || len(got) != 0 {
		t.Errorf("VMs: %v, %v", got, err)
	}
	if got, err := r.pbm.QueryAssociatedEntities(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: gold}}); err != nil || len(got) != 1 {
		t.Errorf("all entities: %v, %v", got, err)
	}
	// In use: refused.
	out, err := r.pbm.DeleteProfile(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: gold}})
	if err != nil || len(out) != 1 || out[0].Fault == nil || out[0].Fault.LocalizedMessage != "The resource 'gold' is in use." {
		t.Errorf("delete in use: %+v, %v", out, err)
	} else if _, ok := out[0].Fault.Fault.(*pbmtypes.PbmResourceInUse); !ok {
		t.Errorf("fault %T", out[0].Fault.Fault)
	}
	// The disk in a VM is the same object.
	vm := r.node("node-1")
	if _, err := r.attach(r.ctx, id, vm.Reference()); err != nil {
		t.Fatal(err)
	}
	var m mo.VirtualMachine
	if err := vm.Properties(r.ctx, vm.Reference(), []string{"config.hardware"}, &m); err != nil {
		t.Fatal(err)
	}
	key := ""
	for _, d := range m.Config.Hardware.Device {
		if d, ok := d.(*types.VirtualDisk); ok && d.VDiskId != nil {
			key = fmt.Sprintf("%s:%d", vm.Reference().Value, d.Key)
		}
	}
	if got, err := r.pbm.QueryAssociatedProfile(r.ctx, pbmtypes.PbmServerObjectRef{ObjectType: "virtualDiskId", Key: key}); err != nil || len(got) != 1 {
		t.Errorf("by the key of its disk: %v, %v", got, err)
	}
	// Compliance follows the tags.
	status := func() string {
		t.Helper()
		res, err := r.pbm.FetchComplianceResult(r.ctx, []pbmtypes.PbmServerObjectRef{disk(id), disk(plain)})
		if err != nil {
			t.Fatal(err)
		}
		machine := pbmtypes.PbmServerObjectRef{ObjectType: "virtualMachine", Key: vm.Reference().Value}
		roll, err := methods.PbmCheckRollupCompliance(r.ctx, r.pbm, &pbmtypes.PbmCheckRollupCompliance{This: r.pbm.ServiceContent.ComplianceManager, Entity: []pbmtypes.PbmServerObjectRef{machine}})
		if err != nil {
			t.Fatal(err)
		}
		by, err := methods.PbmQueryByRollupComplianceStatus(r.ctx, r.pbm, &pbmtypes.PbmQueryByRollupComplianceStatus{This: r.pbm.ServiceContent.ComplianceManager, Status: "nonCompliant"})
		if err != nil {
			t.Fatal(err)
		}
		// CNS says the same.
		for i, id := range []string{id, plain} {
			if got := r.query(id).ComplianceStatus; got != res[i].ComplianceStatus {
				t.Errorf("CNS says %s, PBM %s", got, res[i].ComplianceStatus)
			}
		}
		return fmt.Sprint(res[0].ComplianceStatus, " ", res[1].ComplianceStatus, " ", roll.Returnval[0].OverallComplianceStatus, " ", len(by.Returnval))
	}
	if got := status(); got != "compliant notApplicable compliant 0" {
		t.Error(got)
	}
	if err := r.v.Untag("vmfs", "tier", "gold"); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != "nonCompliant notApplicable nonCompliant 1" {
		t.Error(got)
	}
	check, err := methods.PbmCheckCompliance(r.ctx, r.pbm, &pbmtypes.PbmCheckCompliance{This: r.pbm.ServiceContent.ComplianceManager, Entities: []pbmtypes.PbmServerObjectRef{disk(plain)}, Profile: &pbmtypes.PbmProfileId{UniqueId: gold}})
	if err != nil || check.Returnval[0].ComplianceStatus != "nonCompliant" || !check.Returnval[0].Mismatch {
		t.Errorf("against another policy: %+v, %v", check, err)
	}
	if err := r.detach(r.ctx, id, vm.Reference()); err != nil {
		t.Fatal(err)
	}
	if err := r.delete(r.ctx, id); err != nil {
		t.Fatal(err)
	}
	if out, err := r.pbm.DeleteProfile(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: gold}}); err != nil || out[0].Fault != nil {
		t.Errorf("no longer in use: %+v, %v", out, err)
	}
}

func TestDefaultPolicies(t *testing.T) {
	r := newPolicyRig(t)
	pm := r.pbm.ServiceContent.ProfileManager
	def := func(store string) string {
		t.Helper()
		res, err := methods.PbmQueryDefaultRequirementProfile(r.ctx, r.pbm, &pbmtypes.PbmQueryDefaultRequirementProfile{This: pm, Hub: r.hub(store)})
		if err != nil {
			t.Fatal(err)
		}
		if res.Returnval == nil {
			return ""
		}
		return res.Returnval.UniqueId
	}
	const vsanDefault = vsanDefaultPolicy
	if def("vsan") != vsanDefault || def("vmfs") != "" {
		t.Errorf("defaults %q and %q", def("vsan"), def("vmfs"))
	}
	own, err := r.make("own", rule("VSAN", "stripeWidth", "2", "int"))
	if err != nil {
		t.Fatal(err)
	}
	assign := func(id string, stores ...string) error {
		var hubs []pbmtypes.PbmPlacementHub
		for _, s := range stores {
			hubs = append(hubs, r.hub(s))
		}
		_, err := methods.PbmAssignDefaultRequirementProfile(r.ctx, r.pbm, &pbmtypes.PbmAssignDefaultRequirementProfile{This: pm, Profile: pbmtypes.PbmProfileId{UniqueId: id}, Datastores: hubs})
		return err
	}
	if err := assign(own, "vsan", "vmfs"); !fault.Is(err, &pbmtypes.PbmLegacyHubsNotSupported{}) {
		t.Errorf("default of VMFS: %v", err)
	}
	if err := assign(own, "vsan"); err != nil || def("vsan") != own {
		t.Errorf("%v, %q", err, def("vsan"))
	}
	if out, err := r.pbm.DeleteProfile(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: own}}); err != nil || out[0].Fault == nil {
		t.Errorf("deleted while it is a default: %+v, %v", out, err)
	}
	all, err := methods.PbmQueryDefaultRequirementProfiles(r.ctx, r.pbm, &pbmtypes.PbmQueryDefaultRequirementProfiles{This: pm, Datastores: []pbmtypes.PbmPlacementHub{r.hub("vsan"), r.hub("nfs")}})
	if err != nil || len(all.Returnval) != 2 || all.Returnval[0].DefaultProfile.GetPbmProfile().Name != "own" || all.Returnval[1].DefaultProfile != nil {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := methods.PbmResetDefaultRequirementProfile(r.ctx, r.pbm, &pbmtypes.PbmResetDefaultRequirementProfile{This: pm}); err != nil || def("vsan") != vsanDefault {
		t.Errorf("reset: %v, %q", err, def("vsan"))
	}
	found, err := methods.PbmFindApplicableDefaultProfile(r.ctx, r.pbm, &pbmtypes.PbmFindApplicableDefaultProfile{This: pm, Datastores: []pbmtypes.PbmPlacementHub{r.hub("vsan")}})
	if err != nil || len(found.Returnval) != 1 || found.Returnval[0].GetPbmProfile().ProfileId.UniqueId != vsanDefault {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := methods.PbmQueryDefaultRequirementProfiles(r.ctx, r.pbm, &pbmtypes.PbmQueryDefaultRequirementProfiles{This: pm, Datastores: []pbmtypes.PbmPlacementHub{{HubType: "Datastore", HubId: "nope"}}}); !fault.Is(err, &pbmtypes.PbmNonExistentHubs{}) {
		t.Errorf("no such hub: %v", err)
	}
	space, err := methods.PbmQuerySpaceStatsForStorageContainer(r.ctx, r.pbm, &pbmtypes.PbmQuerySpaceStatsForStorageContainer{This: pm,
		Datastore: pbmtypes.PbmServerObjectRef{ObjectType: "datastore", Key: r.hub("vsan").HubId}, CapabilityProfileId: []pbmtypes.PbmProfileId{{UniqueId: own}}})
	if err != nil || len(space.Returnval) != 2 || space.Returnval[0].PhysicalTotalInMB != 1<<20 {
		t.Errorf("%+v, %v", space, err)
	}
	if _, err := methods.PbmResetVSanDefaultProfile(r.ctx, r.pbm, &pbmtypes.PbmResetVSanDefaultProfile{This: pm}); err != nil {
		t.Error(err)
	}
}

// As in the tests of govmomi's pbm about names for Kubernetes and encryption.
func TestNamesAndFilters(t *testing.T) {
	r := newPolicyRig(t)
	details, err := r.pbm.QueryProfileDetails(r.ctx, "REQUIREMENT", true)
	if err != nil || len(details.Returnval) != 2 {
		t.Fatal(details, err)
	}
	for i, want := range []string{"vsan-default-storage-policy", "lab-storage-policy"} {
		if got := details.Returnval[i].Profile.GetPbmCapabilityProfile().K8sCompliantName; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	id, err := r.make("(a) B_", rule("VSAN", "stripeWidth", "1", "int"))
	if err != nil {
		t.Fatal(err)
	}
	profile := func() *pbmtypes.PbmCapabilityProfile {
		t.Helper()
		c, err := r.pbm.RetrieveContent(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: id}})
		if err != nil {
			t.Fatal(err)
		}
		return c[0].(*pbmtypes.PbmCapabilityProfile)
	}
	if got := profile().K8sCompliantName; got != "0-a-b-0" {
		t.Errorf("%q", got)
	}
	if err := r.pbm.UpdateK8sCompliantNames(r.ctx, id, "other", nil); err == nil {
		t.Error("the name is changed")
	}
	if err := r.pbm.UpdateK8sCompliantNames(r.ctx, id, "0-a-b-0", []string{"0-a-b-0"}); err == nil {
		t.Error("a name twice")
	}
	if err := r.pbm.UpdateK8sCompliantNames(r.ctx, id, "0-a-b-0", []string{"old"}); err != nil || !reflect.DeepEqual(profile().OtherK8sCompliantNames, []string{"old"}) {
		t.Errorf("%v, %v", err, profile().OtherK8sCompliantNames)
	}
	if err := r.pbm.ResolveK8sCompliantNames(r.ctx); err != nil || !slices.Contains(profile().OtherK8sCompliantNames, "0-a-b-0-latebinding") {
		t.Errorf("%v, %v", err, profile().OtherK8sCompliantNames)
	}
	if ok, err := r.pbm.SupportsEncryption(r.ctx, id); err != nil || ok {
		t.Errorf("encryption: %v, %v", ok, err)
	}
	if _, err := r.pbm.SupportsEncryption(r.ctx, "invalid"); err == nil || err.Error() != "ServerFaultCode: Invalid profile ID" || !fault.Is(err, &types.RuntimeFault{}) {
		t.Errorf("encryption of nothing: %v", err)
	}
	crypt, err := r.make("crypt", rule("vmwarevmcrypt@ENCRYPTION", "AllowCleartextFilters", "false", "string"))
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := r.pbm.SupportsEncryption(r.ctx, crypt); err != nil || !ok {
		t.Errorf("encryption: %v, %v", ok, err)
	}
	kinds, err := methods.PbmFetchResourceType(r.ctx, r.pbm, &pbmtypes.PbmFetchResourceType{This: r.pbm.ServiceContent.ProfileManager})
	if err != nil || len(kinds.Returnval) != 1 {
		t.Errorf("%v, %v", kinds, err)
	}
}
