package vcenter

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/simulator/esx"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/authz"
)

// access says who may do what where: the core of authorization with the
// vCenter's accounts and inventory. It is asked once per call, before the
// method takes any lock.
type access struct {
	v *VCenter

	mu   sync.Mutex
	core *authz.Core
	// all remembers who is administrator of everything: nearly all callers.
	all map[principal]bool
	gen uint64 // of core, when all was filled
}

func newAccess(v *VCenter) *access {
	var roles []authz.Role
	for _, r := range esx.RoleList {
		roles = append(roles, authz.Role{ID: r.RoleId, Name: r.Name, Privileges: slices.Clone(r.Privilege)})
	}
	a := &access{v: v, core: authz.New(v.content.RootFolder.String(), roles), all: map[principal]bool{}}
	domain := parsePrincipal(v.cfg.User).Domain
	_ = a.core.Set(v.content.RootFolder.String(), []authz.Permission{
		{Principal: authz.Administrators(domain), Group: true, Role: authz.Admin, Propagate: true},
	})
	return a
}

func (a *access) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.all)
}

func (a *access) who(p principal) authz.Who {
	return authz.Who{User: p, Groups: a.v.accounts.groups(p)}
}

// everything says whether a user may do everything everywhere.
func (a *access) everything(p principal) bool {
	a.mu.Lock()
	if g := a.core.Generation(); g != a.gen {
		clear(a.all)
		a.gen = g
	}
	all, ok := a.all[p]
	a.mu.Unlock()
	if ok {
		return all
	}
	w := a.who(p)
	a.mu.Lock()
	defer a.mu.Unlock()
	all = a.core.Everything(w)
	if a.core.Generation() == a.gen {
		a.all[p] = all
	}
	return all
}

// roles lists those that a user has on an object of the vCenter.
func (a *access) roles(p principal, e ref) []int32 {
	w, paths := a.who(p), a.paths(e)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Effective(w, paths)
}

// leadsTo says whether an object lies on the way from the root to one that the
// user has a permission on: such are seen by name, or clients could not find
// what they may use (govmomi's Finder asks for all ancestors of what it finds
// and never ends where one is missing).
// Unverified: that a vCenter tells no more of them than name and parent.
func (a *access) leadsTo(p principal, e ref) bool {
	w := a.who(p)
	a.mu.Lock()
	var to []ref
	for _, perm := range a.core.All() {
		var r ref
		if w.Applies(perm) && a.core.Has([]int32{perm.Role}, "System.View") && r.FromString(perm.Entity) {
			to = append(to, r)
		}
	}
	a.mu.Unlock()
	for _, r := range to {
		for _, path := range a.paths(r) {
			if slices.Contains(path, e.String()) {
				return true
			}
		}
	}
	return false
}

func (a *access) has(roles []int32, privilege string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Has(roles, privilege)
}

func (a *access) allowed(p principal, e ref, privilege string) bool {
	return a.everything(p) || a.has(a.roles(p, e), privilege)
}

// privileges lists all that a user has on an object.
func (a *access) privileges(p principal, e ref) []string {
	roles := a.roles(p, e)
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.core.Union(roles)
}

// paths leads from an object to the root of the inventory. What is not part of
// the inventory (managers, tasks) belongs to the root; a task to its entity.
func (a *access) paths(e ref) authz.Paths {
	ctx := a.v.internal()
	root := a.v.content.RootFolder
	if t := a.v.vim.Get(e); t != nil && e.Type == "Task" {
		ctx.WithLock(t, func() {
			// Tasks are of several types here; all have the field.
			if info, ok := reflect.Indirect(reflect.ValueOf(t)).FieldByName("Info").Interface().(types.TaskInfo); ok && info.Entity != nil {
				e = *info.Entity
			}
		})
	}
	if _, ok := a.v.vim.Get(e).(mo.Entity); !ok {
		return authz.Paths{{root.String()}}
	}
	var pool *ref
	if vm, ok := a.v.vim.Get(e).(*simulator.VirtualMachine); ok {
		ctx.WithLock(vm, func() { pool = vm.ResourcePool })
	}
	paths := authz.Paths{a.up(ctx, e)}
	if pool != nil {
		paths = append(paths, append([]string{e.String()}, a.up(ctx, *pool)...))
	}
	return paths
}

// up lists an entity and what holds it, up to the root.
func (a *access) up(ctx *simulator.Context, e ref) []string {
	var path []string
	for range 64 { // deeper than any inventory; a ring must not hold us
		path = append(path, e.String())
		o, ok := a.v.vim.Get(e).(mo.Entity)
		if !ok {
			return path
		}
		var parent *ref
		ctx.WithLock(o, func() { parent = o.Entity().Parent })
		if parent == nil {
			return path
		}
		e = *parent
	}
	return path
}

// need is a privilege that a call takes on an object.
type need struct {
	on        ref
	privilege string
}

// check says what a user lacks, or nil.
func (a *access) check(p principal, needs []need) types.BaseMethodFault {
	if len(needs) == 0 || a.everything(p) {
		return nil
	}
	for _, n := range needs {
		if !a.has(a.roles(p, n.on), n.privilege) {
			return noPermission(n)
		}
	}
	return nil
}

func noPermission(n need) *types.NoPermission {
	on := n.on
	return &types.NoPermission{Object: &on, PrivilegeId: n.privilege,
		MissingPrivileges: []types.NoPermissionEntityPrivileges{{Entity: on, PrivilegeIds: []string{n.privilege}}}}
}

// csiRole is the role that has what the documentation of the vSphere CSI
// driver asks for, in all the roles that it names (vSphere Storage,
// "Cloud Native Storage roles and privileges"). The vCenter of a lab has it
// once a user was given it.
const csiRole = "CSI"

var csiPrivileges = []string{
	"Cns.Searchable", "Datastore.FileManagement", "Host.Config.Storage", "StorageProfile.View",
	"VirtualMachine.Config.AddExistingDisk", "VirtualMachine.Config.AddRemoveDevice",
}

// AddRole makes a role of privileges, as vSphere names them, e.g.
// Datastore.FileManagement. System.View and System.Read are in every role.
func (v *VCenter) AddRole(name string, privileges ...string) error {
	v.access.mu.Lock()
	defer v.access.mu.Unlock()
	_, err := v.access.core.AddRole(name, privileges)
	return wrap(err)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("vcenter: %w", err)
	}
	return nil
}

// GrantRole gives a user a role on an object of the inventory and all below
// it, in place of one that it had there. The object is an inventory path, or
// the name of a datastore or of a node; "" is the root.
func (v *VCenter) GrantRole(user, role, object string) error {
	e, err := v.object(object)
	if err != nil {
		return err
	}
	if err := v.accounts.edit(user, func(*account) {}); err != nil {
		return err
	}
	v.access.mu.Lock()
	defer v.access.mu.Unlock()
	c := v.access.core
	r, ok := c.Role(role)
	if !ok && role == csiRole {
		if _, err := c.AddRole(csiRole, csiPrivileges); err != nil {
			return wrap(err)
		}
		r, ok = c.Role(role)
	}
	if !ok {
		var names []string
		for _, r := range c.Roles() {
			names = append(names, r.Name)
		}
		return fmt.Errorf("vcenter: no role %q; there are %q and %q", role, names, csiRole)
	}
	return wrap(c.Set(e.String(), []authz.Permission{{Principal: parsePrincipal(user), Role: r.ID, Propagate: true}}))
}

// RevokeRole takes a user's own permission on an object away. What it has from
// above then counts.
func (v *VCenter) RevokeRole(user, object string) error {
	e, err := v.object(object)
	if err != nil {
		return err
	}
	v.access.mu.Lock()
	defer v.access.mu.Unlock()
	return wrap(v.access.core.Remove(e.String(), parsePrincipal(user), false))
}

// RevokePrivilege takes a privilege from a user on an object and all below it;
// see GrantRole for objects. With "" it is gone everywhere. It works as an
// administrator would do it: the user gets a role of its own there, without
// the privilege.
func (v *VCenter) RevokePrivilege(user, privilege, object string) error {
	return v.alter(user, privilege, object, false)
}

// GrantPrivilege gives a user a privilege on an object and all below it, the
// counterpart of RevokePrivilege.
func (v *VCenter) GrantPrivilege(user, privilege, object string) error {
	return v.alter(user, privilege, object, true)
}

func (v *VCenter) alter(user, privilege, object string, grant bool) error {
	e, err := v.object(object)
	if err != nil {
		return err
	}
	if err := v.accounts.edit(user, func(*account) {}); err != nil {
		return err
	}
	who := parsePrincipal(user)
	// Where the user's permissions change: on the object, and where it has
	// some of its own below it.
	entities := []ref{e}
	v.access.mu.Lock()
	if !slices.Contains(v.access.core.Privileges(), privilege) {
		v.access.mu.Unlock()
		return fmt.Errorf("vcenter: no privilege %q", privilege)
	}
	all := v.access.core.All()
	v.access.mu.Unlock()
	for _, p := range all {
		var r ref
		if p.Group || p.Principal != who || !r.FromString(p.Entity) || r == e {
			continue
		}
		if slices.ContainsFunc(v.access.paths(r), func(path []string) bool { return slices.Contains(path, e.String()) }) {
			entities = append(entities, r)
		}
	}
	for _, e := range entities {
		privileges := v.access.privileges(who, e)
		if grant {
			privileges = append(privileges, privilege)
		} else {
			privileges = slices.DeleteFunc(privileges, func(p string) bool { return p == privilege })
		}
		if err := v.access.own(who, e, privileges); err != nil {
			return err
		}
	}
	return nil
}

// own gives a user a role of its own on an entity, with just these privileges.
func (a *access) own(who principal, e ref, privileges []string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := fmt.Sprintf("%s on %s", who, e.Value)
	if n := len(name) - authz.MaxRoleName; n > 0 {
		name = name[n:]
	}
	r, ok := a.core.Role(name)
	id, err := r.ID, error(nil)
	if ok {
		err = a.core.UpdateRole(id, name, privileges)
	} else {
		id, err = a.core.AddRole(name, privileges)
	}
	if err != nil {
		return wrap(err)
	}
	return wrap(a.core.Set(e.String(), []authz.Permission{{Principal: who, Role: id, Propagate: true}}))
}

// object finds an object by inventory path, datastore name or node name.
func (v *VCenter) object(name string) (ref, error) {
	switch {
	case name == "", name == "/":
		return v.content.RootFolder, nil
	case strings.HasPrefix(name, "/"):
		si, ok := v.vim.Get(*v.content.SearchIndex).(*simulator.SearchIndex)
		if !ok {
			return ref{}, errors.New("vcenter: no SearchIndex")
		}
		found, ok := si.FindByInventoryPath(v.internal(), &types.FindByInventoryPath{InventoryPath: name}).(*methods.FindByInventoryPathBody)
		if ok && found.Res != nil && found.Res.Returnval != nil {
			return *found.Res.Returnval, nil
		}
		return ref{}, fmt.Errorf("vcenter: nothing at inventory path %q", name)
	}
	for _, d := range v.inv.datastores {
		if d.Name == name {
			return d.Self, nil
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if vm := v.inv.vms[name]; vm != nil {
		return vm.Self, nil
	}
	return ref{}, fmt.Errorf("vcenter: no datastore or node %q; an inventory path begins with /", name)
}
