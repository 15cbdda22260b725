package vcenter_test

import (
	"crypto/x509"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/sts"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"

	"github.com/csilab/csilab/sim/vcenter"
)

// TestCallsOfUpstream makes the calls by which the upstream driver looks
// around (kubernetes-sigs/vsphere-csi-driver pkg/common/cns-lib/vsphere,
// pkg/csi/service/common/authmanager.go).
func TestCallsOfUpstream(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true, Nodes: []vcenter.Node{{Name: "a", Zone: "z1"}, {Name: "b", Zone: "z2"}, {Name: "c", Zone: "z1"}},
		Datastores: []vcenter.Datastore{{Name: "shared"}, {Name: "in-z2", Zones: []string{"z2"}}}})
	c := login(t, v)
	ctx := t.Context()
	if a := c.ServiceContent.About; a.Version != "8.0.3" || a.ApiVersion != "8.0.3.0" || a.ApiType != "VirtualCenter" || a.InstanceUuid == "" {
		t.Errorf("about %+v", a)
	}
	f := find.NewFinder(c.Client)
	dc, err := f.DefaultDatacenter(ctx)
	if err != nil {
		t.Fatal(err)
	}
	f.SetDatacenter(dc)
	stores, err := f.DatastoreList(ctx, "*")
	if err != nil {
		t.Fatal(err)
	}
	var entities []types.ManagedObjectReference
	for _, s := range stores {
		entities = append(entities, s.Reference())
	}
	rights, err := methods.HasUserPrivilegeOnEntities(ctx, c.Client, &types.HasUserPrivilegeOnEntities{
		This: *c.ServiceContent.AuthorizationManager, Entities: entities, UserName: v.URL().User.Username(), PrivId: []string{"Datastore.FileManagement", "System.Read"},
	})
	if err != nil || len(rights.Returnval) != 2 || !rights.Returnval[0].PrivAvailability[0].IsGranted {
		t.Errorf("rights %+v, %v", rights, err)
	}
	// Which datastores does the host of each VM mount?
	for node, want := range map[string]string{"a": "shared", "b": "shared in-z2"} {
		r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, dc, strings.ToUpper(v.VMUUID(node)), true, nil)
		if err != nil || r == nil {
			t.Fatalf("%v %v", r, err)
		}
		host, err := object.NewVirtualMachine(c.Client, r.Reference()).HostSystem(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var h mo.HostSystem
		if err := host.Properties(ctx, host.Reference(), []string{"datastore", "vm", "runtime"}, &h); err != nil {
			t.Fatal(err)
		}
		var ds []mo.Datastore
		if err := property.DefaultCollector(c.Client).Retrieve(ctx, h.Datastore, []string{"summary", "info", "host", "customValue"}, &ds); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, d := range ds {
			names = append(names, d.Summary.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("host of %s mounts %q, want %q", node, got, want)
		}
		if h.Runtime.ConnectionState != types.HostSystemConnectionStateConnected || h.Runtime.InMaintenanceMode {
			t.Errorf("host %+v", h.Runtime)
		}
		up, err := mo.Ancestors(ctx, c.Client, c.ServiceContent.PropertyCollector, host.Reference())
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, e := range up {
			kinds = append(kinds, e.Self.Type)
		}
		if got := strings.Join(kinds, " "); got != "Folder Datacenter Folder ClusterComputeResource HostSystem" {
			t.Errorf("ancestors %s", got)
		}
	}
	vms, err := f.VirtualMachineList(ctx, "*")
	if err != nil || len(vms) != 3 {
		t.Errorf("VMs %v, %v", vms, err)
	}
	cv, err := view.NewManager(c.Client).CreateContainerView(ctx, c.ServiceContent.RootFolder, []string{"HostSystem"}, true)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []mo.HostSystem
	if err := cv.Retrieve(ctx, []string{"HostSystem"}, []string{"name", "summary.hardware.uuid"}, &hosts); err != nil || len(hosts) != 4 {
		t.Errorf("hosts %v, %v", hosts, err)
	}
	for _, path := range []string{"/sdk/vsanServiceVersions.xml", "/sdk/vimServiceVersions.xml"} {
		u := v.URL()
		u.User, u.Path = nil, path
		res, err := c.Client.Client.Client.Get(u.String())
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK || !strings.Contains(string(b), "8.0.3.0") {
			t.Errorf("%s: %d %s", path, res.StatusCode, b)
		}
	}
	// FCDs are CNS's too.
	vc, err := vslm.NewClient(ctx, c.Client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := vslm.NewGlobalObjectManager(vc).Retrieve(ctx, types.ID{Id: "x"}); !fault.Is(err, &types.NotFound{}) {
		t.Errorf("vslm: %v", err)
	}
	if _, err := object.NewDatastore(c.Client, types.ManagedObjectReference{Type: "Datastore", Value: "nope"}).ObjectName(ctx); !fault.Is(err, &types.ManagedObjectNotFound{}) {
		t.Errorf("a datastore that is not there: %v", err)
	}
}

func TestTokenLogin(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	ctx := t.Context()
	sc := soap.NewClient(v.URL(), true)
	vc, err := vim25.NewClient(ctx, sc)
	if err != nil {
		t.Fatal(err)
	}
	defer vc.CloseIdleConnections()
	tokens, err := sts.NewClient(ctx, vc)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tokens.Issue(ctx, sts.TokenRequest{Userinfo: v.URL().User})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Issue(ctx, sts.TokenRequest{Userinfo: url.UserPassword("administrator@vsphere.local", "wrong")}); err == nil {
		t.Error("a token for a wrong password")
	}
	m := session.NewManager(vc)
	if err := m.LoginByToken(vc.WithHeader(ctx, soap.Header{Security: signer})); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.GetCurrentTime(ctx, vc); err != nil {
		t.Error(err)
	}
	if err := m.Logout(ctx); err != nil {
		t.Error(err)
	}
	if _, err := methods.GetCurrentTime(ctx, vc); !fault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("after the logout: %v", err)
	}
}

func TestCertificateIsTrustedByWhoeverHasIt(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	ctx := t.Context()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(v.CA()) {
		t.Fatal("CA is no certificate")
	}
	for name, trust := range map[string]func(*soap.Client){
		"ca":         func(c *soap.Client) { c.DefaultTransport().TLSClientConfig.RootCAs = pool },
		"thumbprint": func(c *soap.Client) { c.SetThumbprint(v.URL().Host, v.Thumbprint()) },
	} {
		sc := soap.NewClient(v.URL(), false)
		trust(sc)
		vc, err := vim25.NewClient(ctx, sc)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		vc.CloseIdleConnections()
	}
	if _, err := vim25.NewClient(ctx, soap.NewClient(v.URL(), false)); err == nil {
		t.Error("trusted by one who does not have it")
	}
}
