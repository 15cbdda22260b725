package vcenter_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/pbm"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/view"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// asOther is a rig whose client is a user with a role.
func asOther(t *testing.T, role string) *rig {
	t.Helper()
	v := start(t, vcenter.Config{Nodes: nodes(2), Users: []vcenter.User{{Name: otherUser, Password: otherPassword, Role: role}}})
	gc, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cnsClient(t.Context(), gc)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{c, t, t.Context(), v}
}

// lacks says which privilege an error says is missing, and on what.
func lacks(err error) string {
	var np *types.NoPermission
	if _, ok := fault.As(err, &np); !ok {
		return fmt.Sprint(err)
	}
	return np.PrivilegeId + " on " + np.Object.Type
}

func (r *rig) ask(id string) error {
	_, err := r.cns.QueryVolume(r.ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
	return err
}

func TestDocumentedRoleIsEnoughForADriver(t *testing.T) {
	r := asOther(t, "CSI")
	if err := life(r.ctx, r.v, r.client); err != nil {
		t.Error(err)
	}
	if err := r.ask("x"); err != nil {
		t.Error(err)
	}
	pc, err := pbm.NewClient(r.ctx, r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pc.ProfileIDByName(r.ctx, r.v.Policy()); err != nil {
		t.Error(err)
	}
}

func TestMissingPrivilege(t *testing.T) {
	for _, c := range []struct {
		privilege, object string // taken away
		do                func(r *rig, id string) error
		want              string
	}{
		{"Datastore.FileManagement", "", func(r *rig, _ string) error { _, err := r.create(r.ctx, "x"); return err }, "Datastore.FileManagement on Datastore"},
		{"Datastore.FileManagement", "", func(r *rig, id string) error { return r.delete(r.ctx, id) }, "Datastore.FileManagement on Datastore"},
		{"Datastore.FileManagement", "", func(r *rig, id string) error {
			_, err := r.cns.ExtendVolume(r.ctx, []cnstypes.CnsVolumeExtendSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, CapacityInMb: 4096}})
			return err
		}, "Datastore.FileManagement on Datastore"},
		{"Datastore.FileManagement", "", func(r *rig, id string) error {
			_, err := r.cns.CreateSnapshots(r.ctx, []cnstypes.CnsSnapshotCreateSpec{{VolumeId: cnstypes.CnsVolumeId{Id: id}, Description: "s"}})
			return err
		}, "Datastore.FileManagement on Datastore"},
		{"Datastore.FileManagement", "datastore-2", func(r *rig, id string) error { return r.delete(r.ctx, id) }, "<nil>"},
		{"VirtualMachine.Config.AddExistingDisk", "", func(r *rig, id string) error {
			_, err := r.attach(r.ctx, id, r.node("node-1").Reference())
			return err
		}, "VirtualMachine.Config.AddExistingDisk on VirtualMachine"},
		{"VirtualMachine.Config.AddExistingDisk", "node-2", func(r *rig, id string) error {
			_, err := r.attach(r.ctx, id, r.node("node-1").Reference())
			return err
		}, "<nil>"},
		{"VirtualMachine.Config.AddRemoveDevice", "node-1", func(r *rig, id string) error {
			return r.detach(r.ctx, id, r.node("node-1").Reference())
		}, "VirtualMachine.Config.AddRemoveDevice on VirtualMachine"},
		{"Cns.Searchable", "", (*rig).ask, "Cns.Searchable on Folder"},
		{"StorageProfile.View", "", func(r *rig, _ string) error {
			pc, err := pbm.NewClient(r.ctx, r.Client.Client)
			if err != nil {
				return err
			}
			_, err = pc.ProfileIDByName(r.ctx, "x")
			return err
		}, "StorageProfile.View on Folder"},
		{"Sessions.TerminateSession", "", func(r *rig, _ string) error {
			return r.SessionManager.TerminateSession(r.ctx, []string{"x"})
		}, "Sessions.TerminateSession on Folder"},
		{"VirtualMachine.Interact.PowerOff", "", func(r *rig, _ string) error {
			_, err := r.node("node-1").PowerOff(r.ctx)
			return err
		}, "VirtualMachine.Interact.PowerOff on VirtualMachine"},
	} {
		t.Run(c.privilege+" "+c.object, func(t *testing.T) {
			r := asOther(t, "Admin")
			id := r.volume("v")
			if err := r.v.RevokePrivilege(otherUser, c.privilege, c.object); err != nil {
				t.Fatal(err)
			}
			if got := lacks(c.do(r, id)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
			if err := r.v.GrantPrivilege(otherUser, c.privilege, c.object); err != nil {
				t.Fatal(err)
			}
			if err := c.do(r, id); strings.Contains(lacks(err), c.privilege) {
				t.Errorf("given back: %v", err)
			}
		})
	}
}

// The upstream driver asks this at start and every five minutes.
func TestHasUserPrivilegeOnEntitiesTellsTheTruth(t *testing.T) {
	r := asOther(t, "CSI")
	if err := r.v.RevokePrivilege(otherUser, "Datastore.FileManagement", "datastore-2"); err != nil {
		t.Fatal(err)
	}
	f := find.NewFinder(r.Client.Client)
	stores, err := f.DatastoreList(r.ctx, r.v.Datacenter()+"/datastore/*")
	if err != nil {
		t.Fatal(err)
	}
	var entities []types.ManagedObjectReference
	for _, s := range stores {
		entities = append(entities, s.Reference())
	}
	m := object.NewAuthorizationManager(r.Client.Client)
	ask := func(user string) string {
		t.Helper()
		res, err := m.HasUserPrivilegeOnEntities(r.ctx, entities, user, []string{"Datastore.FileManagement", "System.Read", "no.such"})
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range res {
			var granted []string
			for _, p := range e.PrivAvailability {
				if p.IsGranted {
					granted = append(granted, p.PrivId)
				}
			}
			out = append(out, strings.Join(granted, "+"))
		}
		return strings.Join(out, " ")
	}
	for user, want := range map[string]string{
		otherUser:                     "Datastore.FileManagement+System.Read System.Read",
		`VSPHERE.LOCAL\k8s`:           "Datastore.FileManagement+System.Read System.Read",
		"administrator@vsphere.local": "Datastore.FileManagement+System.Read Datastore.FileManagement+System.Read",
		"nobody@vsphere.local":        " ",
	} {
		if got := ask(user); got != want {
			t.Errorf("%s: %q, want %q", user, got, want)
		}
	}
	all, err := m.FetchUserPrivilegeOnEntities(r.ctx, entities, otherUser)
	if err != nil || len(all) != 2 || !slices.Contains(all[0].Privileges, "Datastore.FileManagement") || slices.Contains(all[1].Privileges, "Datastore.FileManagement") {
		t.Errorf("%v, %v", all, err)
	}
	us, err := r.SessionManager.UserSession(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	own, err := methods.HasPrivilegeOnEntities(r.ctx, r.Client, &types.HasPrivilegeOnEntities{This: m.Reference(), Entity: entities, SessionId: us.Key, PrivId: []string{"Datastore.FileManagement"}})
	if err != nil || !own.Returnval[0].PrivAvailability[0].IsGranted || own.Returnval[1].PrivAvailability[0].IsGranted {
		t.Errorf("%+v, %v", own, err)
	}
}

// A user without a permission at all does not get in; one that may see a part
// sees that part.
func TestWhatAUserSees(t *testing.T) {
	v := start(t, vcenter.Config{Nodes: nodes(2), Users: []vcenter.User{{Name: otherUser, Password: otherPassword}}})
	if _, err := loginAs(t, v, otherUser, otherPassword); lacks(err) != "System.View on Folder" {
		t.Errorf("log-in without any permission: %v", err)
	}
	for _, o := range []string{"datastore-1", "node-2", v.Datacenter()} {
		if err := v.GrantRole(otherUser, "ReadOnly", o); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []string{"node-1", "datastore-2"} {
		if err := v.GrantRole(otherUser, "NoAccess", o); err != nil {
			t.Fatal(err)
		}
	}
	c, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	f := find.NewFinder(c.Client)
	stores, err := f.DatastoreList(ctx, v.Datacenter()+"/datastore/*")
	if err != nil || len(stores) != 1 || stores[0].Name() != "datastore-1" {
		t.Errorf("datastores %v, %v", stores, err)
	}
	cv, err := view.NewManager(c.Client).CreateContainerView(ctx, c.ServiceContent.RootFolder, []string{"VirtualMachine"}, true)
	if err != nil {
		t.Fatal(err)
	}
	var vms []mo.VirtualMachine
	if err := cv.Retrieve(ctx, []string{"VirtualMachine"}, []string{"name"}, &vms); err != nil || len(vms) != 1 || vms[0].Name != "node-2" {
		t.Errorf("VMs %v, %v", vms, err)
	}
	for node, want := range map[string]bool{"node-1": false, "node-2": true} {
		r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, nil, v.VMUUID(node), true, nil)
		if err != nil || (r != nil) != want {
			t.Errorf("%s found: %v, %v", node, r, err)
		}
	}
	// Asked for by reference: the property is missing.
	admin := login(t, v)
	hidden, err := object.NewSearchIndex(admin.Client).FindByUuid(ctx, nil, v.VMUUID("node-1"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	var vm mo.VirtualMachine
	if err := property.DefaultCollector(c.Client).RetrieveOne(ctx, hidden.Reference(), []string{"config"}, &vm); err == nil || !fault.Is(err, &types.NoPermission{}) {
		t.Errorf("properties of a hidden VM: %v", err)
	}
	if err := v.RevokeRole(otherUser, "node-1"); err != nil {
		t.Fatal(err)
	}
	if err := property.DefaultCollector(c.Client).RetrieveOne(ctx, hidden.Reference(), []string{"config"}, &vm); err != nil {
		t.Errorf("inherited from the datacenter: %v", err)
	}
}

// Without System.Read on the root a driver makes volumes and can't read the
// results of its tasks (vsphere-csi-driver#101).
func TestTaskResultsNeedRead(t *testing.T) {
	v := start(t, vcenter.Config{Nodes: nodes(1), Users: []vcenter.User{{Name: otherUser, Password: otherPassword}}})
	if err := v.GrantRole(otherUser, "Admin", v.Datacenter()); err != nil {
		t.Fatal(err)
	}
	gc, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cnsClient(t.Context(), gc)
	if err != nil {
		t.Fatal(err)
	}
	task, err := c.cns.CreateVolume(t.Context(), []cnstypes.CnsVolumeCreateSpec{volumeSpec("v")})
	if err != nil {
		t.Fatal(err)
	}
	var tm mo.Task
	if err := property.DefaultCollector(c.Client.Client).RetrieveOne(t.Context(), task.Reference(), []string{"info"}, &tm); !fault.Is(err, &types.NoPermission{}) {
		t.Errorf("info of the task: %v", err)
	}
	admin, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := object.NewTask(admin.Client.Client, task.Reference()).WaitForResultEx(t.Context()); err != nil || len(v.Volumes()) != 1 {
		t.Errorf("%v, volumes %v", err, v.Volumes())
	}
}

func TestRolesAndPermissionsOverTheAPI(t *testing.T) {
	r := newRig(t, vcenter.Config{Users: []vcenter.User{{Name: otherUser, Password: otherPassword, Groups: []string{"Storage Admins"}}}})
	m := object.NewAuthorizationManager(r.Client.Client)
	id, err := m.AddRole(r.ctx, "disks", []string{"Datastore.FileManagement"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.AddRole(r.ctx, "disks", nil); !fault.Is(err, &types.AlreadyExists{}) {
		t.Errorf("twice: %v", err)
	}
	if _, err := m.AddRole(r.ctx, "x", []string{"No.Such"}); !fault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("unknown privilege: %v", err)
	}
	if err := m.RemoveRole(r.ctx, -1, false); !fault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("a role of the system: %v", err)
	}
	if err := m.UpdateRole(r.ctx, id, "disks2", []string{"Datastore.FileManagement", "Cns.Searchable"}); err != nil {
		t.Fatal(err)
	}
	roles, err := m.RoleList(r.ctx)
	if err != nil || roles.ByName("disks2") == nil || !slices.Contains(roles.ByName("disks2").Privilege, "System.Read") || roles.ById(-1).Name != "Admin" {
		t.Errorf("roles: %v", err)
	}
	root := r.ServiceContent.RootFolder
	group := types.Permission{Principal: `VSPHERE.LOCAL\Storage Admins`, Group: true, RoleId: id, Propagate: true}
	if err := m.SetEntityPermissions(r.ctx, root, []types.Permission{group}); err != nil {
		t.Fatal(err)
	}
	nobody := group
	nobody.Principal = `VSPHERE.LOCAL\nobody`
	if err := m.SetEntityPermissions(r.ctx, root, []types.Permission{nobody}); !fault.Is(err, &types.UserNotFound{}) {
		t.Errorf("permission of nobody: %v", err)
	}
	node := r.node("node-1")
	ps, err := m.RetrieveEntityPermissions(r.ctx, node.Reference(), true)
	if err != nil || len(ps) != 2 || ps[1].Principal != `VSPHERE.LOCAL\storage admins` || *ps[1].Entity != root {
		t.Errorf("permissions %+v, %v", ps, err)
	}
	if all, err := m.RetrieveAllPermissions(r.ctx); err != nil || len(all) != 2 {
		t.Errorf("all: %v, %v", all, err)
	}
	if of, err := m.RetrieveRolePermissions(r.ctx, id); err != nil || len(of) != 1 {
		t.Errorf("of the role: %v, %v", of, err)
	}
	// The user is in the group.
	c, err := loginAs(t, r.v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	other, err := cnsClient(r.ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.create(r.ctx, "v"); err != nil {
		t.Error(err)
	}
	if _, err := object.NewAuthorizationManager(c.Client).AddRole(r.ctx, "mine", nil); lacks(err) != "Authorization.ModifyRoles on Folder" {
		t.Errorf("a role by the user: %v", err)
	}
	if err := m.RemoveRole(r.ctx, id, true); !fault.Is(err, &types.RemoveFailed{}) {
		t.Errorf("a role in use: %v", err)
	}
	if err := m.RemoveEntityPermission(r.ctx, root, `VSPHERE.LOCAL\Storage Admins`, true); err != nil {
		t.Fatal(err)
	}
	if err := m.RemoveEntityPermission(r.ctx, root, `VSPHERE.LOCAL\Administrators`, true); !fault.Is(err, &types.AuthMinimumAdminPermission{}) {
		t.Errorf("the last administrator: %v", err)
	}
	if err := m.RemoveRole(r.ctx, id, true); err != nil {
		t.Error(err)
	}
}

func TestGrantErrors(t *testing.T) {
	v := start(t, withOther())
	for what, err := range map[string]error{
		"user":      v.GrantRole("nobody@x", "Admin", ""),
		"role":      v.GrantRole(otherUser, "floppy", ""),
		"object":    v.GrantRole(otherUser, "Admin", "/DC0/vm/nope"),
		"name":      v.GrantRole(otherUser, "Admin", "nope"),
		"privilege": v.RevokePrivilege(otherUser, "No.Such", ""),
		"none":      v.RevokeRole(otherUser, "datastore-1"),
		"group":     v.AddUser(vcenter.User{Name: "no domain"}),
		"bad role":  v.AddUser(vcenter.User{Name: "a@b", Role: "floppy"}),
		"twice":     v.AddUser(vcenter.User{Name: otherUser}),
		"gone":      v.RemoveUser("nobody@x"),
		"AddRole":   v.AddRole("Admin"),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "vcenter: ") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := v.AddRole("mine", "Cns.Searchable"); err != nil {
		t.Error(err)
	}
	if err := v.GrantRole(otherUser, "mine", "/DC0/vm/node-1"); err != nil {
		t.Error(err)
	}
	// The administrator can be restricted as well: its own permission goes
	// before that of its group.
	if err := v.RevokePrivilege("administrator@vsphere.local", "Cns.Searchable", ""); err != nil {
		t.Fatal(err)
	}
	c, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{c, t, t.Context(), v}
	if got := lacks(r.ask("x")); got != "Cns.Searchable on Folder" {
		t.Error(got)
	}
}

// TestAccessSideBySide turns everything about access while a restricted user
// works: no race, no lock that stays, and in the end it can work again.
func TestAccessSideBySide(t *testing.T) {
	r := asOther(t, "CSI")
	admin := newTagger(t, r.v)
	ctx := r.ctx
	var wg sync.WaitGroup
	loop := func(f func()) {
		wg.Go(func() {
			for range 20 {
				f()
			}
		})
	}
	loop(func() {
		_ = r.v.RevokePrivilege(otherUser, "Cns.Searchable", "")
		_ = r.v.GrantRole(otherUser, "ReadOnly", "node-1")
		_ = r.v.GrantPrivilege(otherUser, "Cns.Searchable", "")
		_ = r.v.RevokeRole(otherUser, "node-1")
	})
	loop(func() {
		_ = r.v.Tag("datastore-1", "c", "t")
		_, _ = admin.GetTagsForCategory(ctx, "c")
		_ = r.v.Untag("datastore-1", "c", "t")
	})
	loop(func() { _ = r.v.LockAccount(otherUser); _ = r.v.SessionList(); _ = r.v.UnlockAccount(otherUser) })
	for i := range 6 {
		_ = r.ask("x")
		if id, err := r.create(ctx, fmt.Sprint("v-", i)); err == nil {
			_ = r.delete(ctx, id)
		}
		_, _ = find.NewFinder(r.Client.Client).VirtualMachineList(ctx, r.v.Datacenter()+"/vm/*")
		if i == 3 {
			r.v.KillSessionsOf(otherUser)
		}
	}
	wg.Wait()
	if err := r.Login(ctx, url.UserPassword(otherUser, otherPassword)); err != nil {
		t.Fatal(err)
	}
	c, err := cnsClient(ctx, r.Client)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&rig{c, t, ctx, r.v}).ask("x"); err != nil {
		t.Error(err)
	}
}

// newTagger logs in as the administrator.
func newTagger(t *testing.T, v *vcenter.VCenter) *tags.Manager {
	t.Helper()
	rc := rest.NewClient(login(t, v).Client)
	if err := rc.Login(t.Context(), v.URL().User); err != nil {
		t.Fatal(err)
	}
	return tags.NewManager(rc)
}
