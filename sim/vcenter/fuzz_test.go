package vcenter

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi/vim25/soap"
)

const envelopeOf = `<?xml version="1.0" encoding="UTF-8"?><Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body>%s</Body></Envelope>`

// FuzzRequest throws bytes at the endpoints, in a session and without one.
func FuzzRequest(f *testing.F) {
	v, err := New(context.Background(), Config{Nodes: []Node{{Name: "node-1"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(v.Close)
	s := v.sessions.open(parsePrincipal(v.cfg.User), v.cfg.User, "", "", "")
	for _, body := range []string{
		`<CurrentTime xmlns="urn:vim25"><_this type="ServiceInstance">ServiceInstance</_this></CurrentTime>`,
		`<Login xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this><userName>a</userName><password>b</password></Login>`,
		`<RetrievePropertiesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this><specSet><propSet><type>VirtualMachine</type><pathSet>config.hardware</pathSet></propSet><objectSet><obj type="VirtualMachine">vm-1</obj><selectSet/></objectSet></specSet><options/></RetrievePropertiesEx>`,
		`<CnsCreateVolume xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this><createSpecs><name>x</name><volumeType>BLOCK</volumeType><backingObjectDetails xmlns:XMLSchema-instance="http://www.w3.org/2001/XMLSchema-instance" XMLSchema-instance:type="CnsBlockBackingDetails"><capacityInMb>1</capacityInMb></backingObjectDetails></createSpecs></CnsCreateVolume>`,
		`<CnsCreateVolume xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this><createSpecs><name>x</name><volumeType>FILE</volumeType><backingObjectDetails xmlns:XMLSchema-instance="http://www.w3.org/2001/XMLSchema-instance" XMLSchema-instance:type="CnsVsanFileShareBackingDetails"><capacityInMb>1</capacityInMb><backingFileId>x</backingFileId></backingObjectDetails></createSpecs></CnsCreateVolume>`,
		`<CnsConfigureVolumeACLs xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this><ACLConfigSpecs><volumeId><id>file:x</id></volumeId><accessControlSpecList><netPermission><ips>10.0.0.1-10.0.0.9</ips></netPermission><delete>true</delete></accessControlSpecList></ACLConfigSpecs></CnsConfigureVolumeACLs>`,
		`<VsanClusterGetConfig xmlns="urn:vsan"><_this type="VsanVcClusterConfigSystem">vsan-cluster-config-system</_this><cluster type="ClusterComputeResource">x</cluster></VsanClusterGetConfig>`,
		`<VsanClusterReconfig xmlns="urn:vsan"><_this type="VsanVcClusterConfigSystem">vsan-cluster-config-system</_this><cluster type="Datastore">x</cluster></VsanClusterReconfig>`,
		`<DatastoreEnterMaintenanceMode xmlns="urn:vim25"><_this type="Datastore">x</_this></DatastoreEnterMaintenanceMode>`,
		`<Rename_Task xmlns="urn:vim25"><_this type="Datastore">x</_this><newName>[]</newName></Rename_Task>`,
		`<SetField xmlns="urn:vim25"><_this type="CustomFieldsManager">CustomFieldsManager</_this><entity type="Datastore">x</entity><key>1</key><value></value></SetField>`,
		`<CnsAttachVolume xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this><attachSpecs><volumeId><id>x</id></volumeId><vm type="VirtualMachine">vm-nope</vm></attachSpecs></CnsAttachVolume>`,
		`<PbmCheckCompatibility xmlns="urn:pbm"><_this type="PbmPlacementSolver">placementSolver</_this><profile><uniqueId>x</uniqueId></profile></PbmCheckCompatibility>`,
		`<ReconfigVM_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-32</_this><spec><uuid>4201aaaa-bbbb-4ccc-8ddd-eeeeffff0000</uuid><deviceChange><operation>add</operation><fileOperation>create</fileOperation><device xmlns:XMLSchema-instance="http://www.w3.org/2001/XMLSchema-instance" XMLSchema-instance:type="VirtualDisk"><key>-1</key><backing XMLSchema-instance:type="VirtualDiskFlatVer2BackingInfo"><fileName></fileName><diskMode>persistent</diskMode></backing><controllerKey>1000</controllerKey><unitNumber>-1</unitNumber><capacityInKB>1024</capacityInKB></device></deviceChange></spec></ReconfigVM_Task>`,
		`<CreateVM_Task xmlns="urn:vim25"><_this type="Folder">group-2</_this><config><name>x</name><files><vmPathName>[datastore-1]</vmPathName></files></config><pool type="ResourcePool">resgroup-8</pool></CreateVM_Task>`,
		`<CloneVM_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-32</_this><folder type="Folder">group-2</folder><name>y</name><spec><location/><template>false</template><powerOn>true</powerOn></spec></CloneVM_Task>`,
		`<RelocateVM_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-32</_this><spec><host type="HostSystem">host-18</host></spec></RelocateVM_Task>`,
		`<CreateSnapshot_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-32</_this><name>s</name><memory>false</memory><quiesce>false</quiesce></CreateSnapshot_Task>`,
		`<RevertToSnapshot_Task xmlns="urn:vim25"><_this type="VirtualMachineSnapshot">snapshot-1</_this></RevertToSnapshot_Task>`,
		`<RegisterVM_Task xmlns="urn:vim25"><_this type="Folder">group-2</_this><path>[datastore-1] node-1/node-1.vmx</path><asTemplate>false</asTemplate></RegisterVM_Task>`,
		`<EnterMaintenanceMode_Task xmlns="urn:vim25"><_this type="HostSystem">host-18</_this><timeout>1</timeout></EnterMaintenanceMode_Task>`,
		`<PbmCreate xmlns="urn:pbm"><_this type="PbmProfileProfileManager">ProfileManager</_this><createSpec><name>x</name><resourceType><resourceType>STORAGE</resourceType></resourceType><constraints xmlns:XMLSchema-instance="http://www.w3.org/2001/XMLSchema-instance" XMLSchema-instance:type="PbmCapabilitySubProfileConstraints"><subProfiles><name>r</name></subProfiles></constraints></createSpec></PbmCreate>`,
		`<PbmDelete xmlns="urn:pbm"><_this type="PbmProfileProfileManager">ProfileManager</_this><profileId><uniqueId>x</uniqueId></profileId></PbmDelete>`,
		`<PbmCheckCompliance xmlns="urn:pbm"><_this type="PbmComplianceManager">complianceManager</_this><entities><objectType>virtualDiskId</objectType><key>vm-1:2000</key></entities></PbmCheckCompliance>`,
		`<HasUserPrivilegeOnEntities xmlns="urn:vim25"><_this type="AuthorizationManager">AuthorizationManager</_this><entities type="Folder">group-d1</entities><userName>a@b</userName><privId>System.View</privId></HasUserPrivilegeOnEntities>`,
		`<SetEntityPermissions xmlns="urn:vim25"><_this type="AuthorizationManager">AuthorizationManager</_this><entity type="Folder">group-d1</entity><permission><principal>x</principal><group>true</group><roleId>-1</roleId><propagate>true</propagate></permission></SetEntityPermissions>`,
		`<UpdateAuthorizationRole xmlns="urn:vim25"><_this type="AuthorizationManager">AuthorizationManager</_this><roleId>-1</roleId><newName>x</newName></UpdateAuthorizationRole>`,
		`<CloneSession xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this><cloneTicket>x</cloneTicket></CloneSession>`,
		`<ImpersonateUser xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this><userName>x@y</userName></ImpersonateUser>`,
		`<ManagedObjectReference xmlns="urn:vim25"/>`, `<Folder/>`, `<`, ``,
		`<WaitForUpdatesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this><version></version></WaitForUpdatesEx>`,
	} {
		for i := range uint8(4) {
			f.Add(i, i%2 == 0, bytes.Replace([]byte(envelopeOf), []byte("%s"), []byte(body), 1))
		}
		f.Add(uint8(0), true, []byte(body))
	}
	const xsi = `xmlns:XMLSchema-instance="http://www.w3.org/2001/XMLSchema-instance" XMLSchema-instance:type=`
	spec := `<spec><name>d</name><backingSpec ` + xsi + `"VslmCreateSpecDiskFileBackingSpec"><datastore type="Datastore">` + v.inv.datastores[0].Self.Value + `</datastore><path>../x</path></backingSpec><capacityInMB>1</capacityInMB></spec>`
	for _, call := range [][2]string{ // at /vslm/sdk, with the session in the header
		{"VslmCreateDisk_Task", spec},
		{"VslmCreateDisk_Task", strings.Replace(spec, "../x", "", 1)},
		{"VslmCreateDisk_Task", `<spec><name>d</name><backingSpec ` + xsi + `"VslmCreateSpecRawDiskMappingBackingSpec"></backingSpec><capacityInMB>-1</capacityInMB></spec>`},
		{"VslmRegisterDisk", `<path>https://h/folder/a.vmdk?dcPath=DC0&amp;dsName=datastore-1</path>`},
		{"VslmListVStorageObjectForSpec", `<query><queryField>capacity</queryField><queryOperator>equals</queryOperator><queryValue>1</queryValue></query><maxResult>1</maxResult>`},
		{"VslmQueryChangedDiskAreas", `<id><id>x</id></id><snapshotId><id>y</id></snapshotId><startOffset>-1</startOffset><changeId>*</changeId>`},
		{"VslmAttachDisk_Task", `<id><id>x</id></id><vm type="VirtualMachine">vm-nope</vm><controllerKey>-1</controllerKey><unitNumber>-1</unitNumber>`},
		{"VslmUpdateVStorageObjectMetadata_Task", `<id><id>x</id></id><metadata><key></key><value></value></metadata><deleteKeys>a</deleteKeys>`},
		{"VslmSetVStorageObjectControlFlags", `<id><id>x</id></id><controlFlags>nope</controlFlags>`},
	} {
		f.Add(uint8(3), true, []byte(`<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Header><vcSessionCookie>COOKIE</vcSessionCookie></Header><Body><`+call[0]+
			` xmlns="urn:vslm"><_this type="VslmVStorageObjectManager">VStorageObjectManager</_this>`+call[1]+`</`+call[0]+`></Body></Envelope>`))
	}
	for _, body := range []string{
		`<CreateDisk_Task xmlns="urn:vim25"><_this type="VcenterVStorageObjectManager">VStorageObjectManager</_this>` + spec + `</CreateDisk_Task>`,
		`<CreateVirtualDisk_Task xmlns="urn:vim25"><_this type="VirtualDiskManager">virtualDiskManager</_this><name>[datastore-1] a/b.vmdk</name><spec ` + xsi + `"FileBackedVirtualDiskSpec"><diskType>thin</diskType><adapterType>x</adapterType><capacityKb>9223372036854775807</capacityKb></spec></CreateVirtualDisk_Task>`,
		`<CopyVirtualDisk_Task xmlns="urn:vim25"><_this type="VirtualDiskManager">virtualDiskManager</_this><sourceName>[x</sourceName><destName>] y</destName></CopyVirtualDisk_Task>`,
		`<QueryVirtualDiskUuid xmlns="urn:vim25"><_this type="VirtualDiskManager">virtualDiskManager</_this><name>[] </name></QueryVirtualDiskUuid>`,
		`<AttachDisk_Task xmlns="urn:vim25"><_this type="VirtualMachine">vm-1</_this><diskId><id>x</id></diskId><datastore type="Datastore">x</datastore></AttachDisk_Task>`,
	} {
		f.Add(uint8(0), true, bytes.Replace([]byte(envelopeOf), []byte("%s"), []byte(body), 1))
	}
	paths := []string{"/sdk", "/vsanHealth", "/pbm", "/vslm/sdk"}
	f.Fuzz(func(t *testing.T, path uint8, in bool, body []byte) {
		if bytes.Contains(body, []byte("WaitForUpdates")) && !bytes.Contains(body, []byte("<version></version>")) {
			t.Skip("may wait")
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, paths[int(path)%len(paths)], bytes.NewReader(body))
		if in {
			if v.sessions.get(s.cookie) == nil {
				s = v.sessions.open(parsePrincipal(v.cfg.User), v.cfg.User, "", "", "") // the last input logged out
			}
			r.Body = io.NopCloser(bytes.NewReader(bytes.ReplaceAll(body, []byte("COOKIE"), []byte(s.cookie))))
			r.AddCookie(&http.Cookie{Name: soap.SessionCookieName, Value: s.cookie})
		}
		w := httptest.NewRecorder()
		done := make(chan struct{})
		go func() { defer close(done); v.serve(w, r) }()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("hangs")
		}
		switch w.Code {
		case http.StatusOK, http.StatusInternalServerError, http.StatusBadRequest:
		default:
			t.Errorf("status %d", w.Code)
		}
		if w.Body.Len() == 0 {
			t.Error("an empty reply")
		}
	})
}

func FuzzTokenRequest(f *testing.F) {
	f.Add([]byte(`<a><UsernameToken><Username>u</Username><Password Type="x">p</Password></UsernameToken></a>`))
	f.Add([]byte(`<UsernameToken><Username>`))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseTokenRequest(b) })
}

// FuzzREST throws methods, paths and bodies at the REST API, in a session.
func FuzzREST(f *testing.F) {
	v, err := New(context.Background(), Config{Nodes: []Node{{Name: "node-1", Zone: "a"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(v.Close)
	log := func() string {
		return v.sessions.openREST(account{who: parsePrincipal(v.cfg.User)}, "", "")
	}
	id := log()
	for _, p := range []string{"category", "category/id:x", "tag", "tag/id:x?~action=list-tags-for-category", "tag-association?~action=list-attached-tags",
		"tag-association/id:x?~action=attach", "tag-association?~action=attach-multiple-tags-to-object"} {
		for _, b := range []string{``, `null`, `{}`, `{"create_spec":{"name":"n","description":"","cardinality":"SINGLE","associable_types":[],"category_id":"x"}}`,
			`{"object_id":{"type":"Datastore","id":"x"},"tag_ids":["x"],"object_ids":[{"type":"","id":""}]}`, `{"object_id":null}`, `[`} {
			f.Add("POST", taggingREST+p, []byte(b))
			f.Add("PATCH", taggingREST+p, []byte(b))
		}
		f.Add("GET", taggingAPI+p, []byte(nil))
		f.Add("DELETE", taggingAPI+p, []byte(nil))
	}
	f.Add("POST", "/api/session", []byte(nil))
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		r, err := http.NewRequest(method, path, bytes.NewReader(body))
		if err != nil || !strings.HasPrefix(r.URL.Path, "/rest/") && !strings.HasPrefix(r.URL.Path, "/api/") {
			t.Skip("no request")
		}
		if _, ok := v.sessions.rest(id); !ok {
			id = log()
		}
		r.Header.Set(sessionHeader, id)
		w := httptest.NewRecorder()
		v.serve(w, r)
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable {
			t.Errorf("status %d", w.Code)
		}
	})
}
