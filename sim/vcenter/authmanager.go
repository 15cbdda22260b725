package vcenter

import (
	"errors"
	"strings"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/authz"
)

// authManager is the AuthorizationManager as a session sees it. vcsim's grants
// everybody everything.
type authManager struct {
	optOut
	a    *access
	ss   *sessions
	s    *session
	self ref
}

func (m *authManager) Reference() ref { return m.self }

// Get implements the interface by which vcsim's property collector asks for
// an object whose properties are made on demand.
func (m *authManager) Get() mo.Reference {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	o := &mo.AuthorizationManager{Self: m.self}
	for _, r := range m.a.core.Roles() {
		o.RoleList = append(o.RoleList, types.AuthorizationRole{
			RoleId: r.ID, System: r.System, Name: r.Name, Privilege: r.Privileges,
			Info: &types.Description{Label: r.Name, Summary: r.Name},
		})
	}
	for _, id := range m.a.core.Privileges() {
		p := types.AuthorizationPrivilege{PrivId: id, Name: id, OnParent: false}
		if i := strings.LastIndexByte(id, '.'); i >= 0 {
			p.PrivGroupName, p.Name = id[:i], id[i+1:]
		}
		o.PrivilegeList = append(o.PrivilegeList, p)
	}
	return o
}

// fault maps a refusal of the core to the wire.
func authFault(err error) *soap.Fault {
	var e *authz.Error
	if !errors.As(err, &e) {
		return simulator.Fault("", &types.InvalidArgument{})
	}
	var f types.BaseMethodFault
	switch e.Kind {
	case authz.NotFound:
		f = &types.NotFound{}
	case authz.Exists:
		f = &types.AlreadyExists{Name: e.Value}
	case authz.InUse:
		f = &types.RemoveFailed{}
	case authz.LastAdmin:
		f = &types.AuthMinimumAdminPermission{}
	default:
		f = &types.InvalidArgument{InvalidProperty: e.Field}
	}
	return simulator.Fault("", f)
}

// do runs a command of the core.
func (m *authManager) do(f func(c *authz.Core) error) *soap.Fault {
	m.a.mu.Lock()
	defer m.a.mu.Unlock()
	if err := f(m.a.core); err != nil {
		return authFault(err)
	}
	return nil
}

func (m *authManager) AddAuthorizationRole(req *types.AddAuthorizationRole) soap.HasFault {
	var id int32
	if f := m.do(func(c *authz.Core) (err error) { id, err = c.AddRole(req.Name, req.PrivIds); return err }); f != nil {
		return &methods.AddAuthorizationRoleBody{Fault_: f}
	}
	return &methods.AddAuthorizationRoleBody{Res: &types.AddAuthorizationRoleResponse{Returnval: id}}
}

func (m *authManager) UpdateAuthorizationRole(req *types.UpdateAuthorizationRole) soap.HasFault {
	privileges := req.PrivIds
	if privileges == nil {
		privileges = []string{}
	}
	if f := m.do(func(c *authz.Core) error { return c.UpdateRole(req.RoleId, req.NewName, privileges) }); f != nil {
		return &methods.UpdateAuthorizationRoleBody{Fault_: f}
	}
	return &methods.UpdateAuthorizationRoleBody{Res: &types.UpdateAuthorizationRoleResponse{}}
}

func (m *authManager) RemoveAuthorizationRole(req *types.RemoveAuthorizationRole) soap.HasFault {
	if f := m.do(func(c *authz.Core) error { return c.RemoveRole(req.RoleId, req.FailIfUsed) }); f != nil {
		return &methods.RemoveAuthorizationRoleBody{Fault_: f}
	}
	return &methods.RemoveAuthorizationRoleBody{Res: &types.RemoveAuthorizationRoleResponse{}}
}

func (m *authManager) MergePermissions(req *types.MergePermissions) soap.HasFault {
	if f := m.do(func(c *authz.Core) error { return c.MergeRole(req.SrcRoleId, req.DstRoleId) }); f != nil {
		return &methods.MergePermissionsBody{Fault_: f}
	}
	return &methods.MergePermissionsBody{Res: &types.MergePermissionsResponse{}}
}

// permissions is the form of the API, without those of objects that are gone.
func (m *authManager) permissions(ps []authz.Permission) []types.Permission {
	var out []types.Permission
	for _, p := range ps {
		var e ref
		if !e.FromString(p.Entity) || m.a.v.vim.Get(e) == nil {
			continue
		}
		out = append(out, types.Permission{Entity: &e, Principal: p.Principal.String(), Group: p.Group, RoleId: p.Role, Propagate: p.Propagate})
	}
	return out
}

func (m *authManager) list(f func(c *authz.Core) []authz.Permission) []types.Permission {
	m.a.mu.Lock()
	ps := f(m.a.core)
	m.a.mu.Unlock()
	return m.permissions(ps)
}

func (m *authManager) RetrieveAllPermissions(*types.RetrieveAllPermissions) soap.HasFault {
	return &methods.RetrieveAllPermissionsBody{Res: &types.RetrieveAllPermissionsResponse{Returnval: m.list((*authz.Core).All)}}
}

func (m *authManager) RetrieveRolePermissions(req *types.RetrieveRolePermissions) soap.HasFault {
	known := false
	ps := m.list(func(c *authz.Core) []authz.Permission {
		for _, r := range c.Roles() {
			known = known || r.ID == req.RoleId
		}
		return c.ByRole(req.RoleId)
	})
	if !known {
		return &methods.RetrieveRolePermissionsBody{Fault_: simulator.Fault("", &types.NotFound{})}
	}
	return &methods.RetrieveRolePermissionsBody{Res: &types.RetrieveRolePermissionsResponse{Returnval: ps}}
}

func (m *authManager) RetrieveEntityPermissions(req *types.RetrieveEntityPermissions) soap.HasFault {
	path := []string{req.Entity.String()}
	if req.Inherited {
		path = m.a.paths(req.Entity)[0]
	}
	ps := m.list(func(c *authz.Core) (out []authz.Permission) {
		for i, e := range path {
			for _, p := range c.Of(e) {
				if i == 0 || p.Propagate {
					out = append(out, p)
				}
			}
		}
		return out
	})
	return &methods.RetrieveEntityPermissionsBody{Res: &types.RetrieveEntityPermissionsResponse{Returnval: ps}}
}

// parse checks the principals of permissions: they must exist.
func (m *authManager) parse(ps []types.Permission) ([]authz.Permission, *soap.Fault) {
	var out []authz.Permission
	for _, p := range ps {
		who := parsePrincipal(p.Principal)
		if !m.a.v.accounts.exists(who, p.Group) {
			return nil, simulator.Fault("", &types.UserNotFound{Principal: p.Principal, Unresolved: true})
		}
		out = append(out, authz.Permission{Principal: who, Group: p.Group, Role: p.RoleId, Propagate: p.Propagate})
	}
	return out, nil
}

func (m *authManager) SetEntityPermissions(req *types.SetEntityPermissions) soap.HasFault {
	ps, f := m.parse(req.Permission)
	if f == nil {
		f = m.do(func(c *authz.Core) error { return c.Set(req.Entity.String(), ps) })
	}
	if f != nil {
		return &methods.SetEntityPermissionsBody{Fault_: f}
	}
	return &methods.SetEntityPermissionsBody{Res: &types.SetEntityPermissionsResponse{}}
}

func (m *authManager) ResetEntityPermissions(req *types.ResetEntityPermissions) soap.HasFault {
	ps, f := m.parse(req.Permission)
	if f == nil {
		f = m.do(func(c *authz.Core) error { return c.Reset(req.Entity.String(), ps) })
	}
	if f != nil {
		return &methods.ResetEntityPermissionsBody{Fault_: f}
	}
	return &methods.ResetEntityPermissionsBody{Res: &types.ResetEntityPermissionsResponse{}}
}

func (m *authManager) RemoveEntityPermission(req *types.RemoveEntityPermission) soap.HasFault {
	f := m.do(func(c *authz.Core) error {
		return c.Remove(req.Entity.String(), parsePrincipal(req.User), req.IsGroup)
	})
	if f != nil {
		return &methods.RemoveEntityPermissionBody{Fault_: f}
	}
	return &methods.RemoveEntityPermissionBody{Res: &types.RemoveEntityPermissionResponse{}}
}

// availability says which privileges a user has on objects.
func (m *authManager) availability(who principal, entities []ref, privileges []string) []types.EntityPrivilege {
	var out []types.EntityPrivilege
	for _, e := range entities {
		ep := types.EntityPrivilege{Entity: e}
		roles := m.a.roles(who, e)
		for _, p := range privileges {
			ep.PrivAvailability = append(ep.PrivAvailability, types.PrivilegeAvailability{PrivId: p, IsGranted: m.a.has(roles, p)})
		}
		out = append(out, ep)
	}
	return out
}

// of finds who a session is, by its key.
func (m *authManager) of(key string) (principal, bool) {
	s := m.ss.find(key)
	if s == nil {
		return principal{}, false
	}
	return m.ss.principal(s), true
}

func (m *authManager) HasPrivilegeOnEntities(req *types.HasPrivilegeOnEntities) soap.HasFault {
	who, ok := m.of(req.SessionId)
	if !ok {
		return &methods.HasPrivilegeOnEntitiesBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "sessionId"})}
	}
	return &methods.HasPrivilegeOnEntitiesBody{Res: &types.HasPrivilegeOnEntitiesResponse{Returnval: m.availability(who, req.Entity, req.PrivId)}}
}

func (m *authManager) HasPrivilegeOnEntity(req *types.HasPrivilegeOnEntity) soap.HasFault {
	who, ok := m.of(req.SessionId)
	if !ok {
		return &methods.HasPrivilegeOnEntityBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "sessionId"})}
	}
	res := &types.HasPrivilegeOnEntityResponse{}
	for _, p := range m.availability(who, []ref{req.Entity}, req.PrivId)[0].PrivAvailability {
		res.Returnval = append(res.Returnval, p.IsGranted)
	}
	return &methods.HasPrivilegeOnEntityBody{Res: res}
}

func (m *authManager) HasUserPrivilegeOnEntities(req *types.HasUserPrivilegeOnEntities) soap.HasFault {
	return &methods.HasUserPrivilegeOnEntitiesBody{Res: &types.HasUserPrivilegeOnEntitiesResponse{
		Returnval: m.availability(parsePrincipal(req.UserName), req.Entities, req.PrivId),
	}}
}

func (m *authManager) FetchUserPrivilegeOnEntities(req *types.FetchUserPrivilegeOnEntities) soap.HasFault {
	who := parsePrincipal(req.UserName)
	res := &types.FetchUserPrivilegeOnEntitiesResponse{}
	for _, e := range req.Entities {
		res.Returnval = append(res.Returnval, types.UserPrivilegeResult{Entity: e, Privileges: m.a.privileges(who, e)})
	}
	return &methods.FetchUserPrivilegeOnEntitiesBody{Res: res}
}
