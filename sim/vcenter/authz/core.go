package authz

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Ids of the roles that every vCenter has.
const (
	Admin     int32 = -1
	ReadOnly  int32 = -2
	View      int32 = -3
	Anonymous int32 = -4
	NoAccess  int32 = -5
)

// firstRole is the id of the first role that is not the system's. A vCenter
// draws them at random; here they count up.
const firstRole int32 = 1001

// implied are in every role that a user makes: who may do something to an
// object may see it.
var implied = []string{"System.Anonymous", "System.View", "System.Read"}

// MaxRoleName is how long the name of a role may be, in bytes.
// Unverified: that a vCenter has this limit; it has it for names of objects.
const MaxRoleName = 80

// Role is a named set of privileges.
type Role struct {
	ID         int32
	Name       string
	System     bool     // can't be changed
	Privileges []string // sorted
}

// Permission gives a principal a role on an entity.
type Permission struct {
	Entity    string
	Principal Principal
	Group     bool
	Role      int32
	// Propagate makes it count for what lies below the entity too.
	Propagate bool
}

// Kind of an error.
type Kind int

// Kinds of errors, as the API tells them apart.
const (
	Invalid   Kind = iota // a parameter is not correct
	NotFound              // no such role or permission
	Exists                // the name of a role is taken
	InUse                 // the role is in use
	LastAdmin             // nobody would be administrator of the root any more
	System                // a role of the system can't be changed
)

// Error is the refusal of a command.
type Error struct {
	Kind  Kind
	Field string
	Value string
	Why   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("authz: %s is %q: %s", e.Field, e.Value, e.Why)
}

// Core holds roles and permissions. A command that is refused changes nothing.
type Core struct {
	root  string
	known map[string]bool // privileges
	roles map[int32]*role
	next  int32
	perms map[string][]Permission // by entity
	// gen counts changes, so that callers may keep what they have worked out.
	gen uint64
}

type role struct {
	Role
	set map[string]bool
}

// New makes a core. roles are the system's; the one with id Admin says which
// privileges there are.
func New(root string, roles []Role) *Core {
	c := &Core{root: root, known: map[string]bool{}, roles: map[int32]*role{}, next: firstRole, perms: map[string][]Permission{}}
	for _, r := range roles {
		r.System = true
		c.roles[r.ID] = newRole(r)
		for _, p := range r.Privileges {
			c.known[p] = true
		}
	}
	return c
}

func newRole(r Role) *role {
	out := &role{Role: r, set: make(map[string]bool, len(r.Privileges))}
	for _, p := range r.Privileges {
		out.set[p] = true
	}
	out.Privileges = slices.Sorted(maps.Keys(out.set))
	return out
}

// Generation changes whenever a role or a permission does.
func (c *Core) Generation() uint64 { return c.gen }

// Roles lists all roles by id.
func (c *Core) Roles() []Role {
	out := make([]Role, 0, len(c.roles))
	for _, r := range c.roles {
		cp := r.Role
		cp.Privileges = slices.Clone(cp.Privileges)
		out = append(out, cp)
	}
	slices.SortFunc(out, func(a, b Role) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Role finds a role by name.
func (c *Core) Role(name string) (Role, bool) {
	for _, r := range c.roles {
		if r.Name == name {
			cp := r.Role
			cp.Privileges = slices.Clone(cp.Privileges)
			return cp, true
		}
	}
	return Role{}, false
}

// Privileges lists all that there are.
func (c *Core) Privileges() []string { return slices.Sorted(maps.Keys(c.known)) }

func (c *Core) checkRole(id int32, name string, privileges []string) ([]string, error) {
	if strings.TrimSpace(name) == "" || len(name) > MaxRoleName {
		return nil, &Error{Invalid, "name", name, "a role's name has 1 to 80 bytes"}
	}
	for _, r := range c.roles {
		if r.Name == name && r.ID != id {
			return nil, &Error{Exists, "name", name, "a role of that name exists"}
		}
	}
	for _, p := range privileges {
		if !c.known[p] {
			return nil, &Error{Invalid, "privIds", p, "there is no such privilege"}
		}
	}
	return append(slices.Clone(implied), privileges...), nil
}

// AddRole makes a role; it has the System privileges that let its holders see.
func (c *Core) AddRole(name string, privileges []string) (int32, error) {
	privileges, err := c.checkRole(0, name, privileges)
	if err != nil {
		return 0, err
	}
	id := c.next
	c.next++
	c.gen++
	c.roles[id] = newRole(Role{ID: id, Name: name, Privileges: privileges})
	return id, nil
}

func (c *Core) own(id int32) (*role, error) {
	r := c.roles[id]
	switch {
	case r == nil:
		return nil, &Error{NotFound, "roleId", fmt.Sprint(id), "there is no such role"}
	case r.System:
		return nil, &Error{System, "roleId", fmt.Sprint(id), "a role of the system can't be changed"}
	}
	return r, nil
}

// UpdateRole renames a role and gives it other privileges; nil leaves them.
func (c *Core) UpdateRole(id int32, name string, privileges []string) error {
	r, err := c.own(id)
	if err != nil {
		return err
	}
	keep := privileges == nil
	if keep {
		privileges = r.Privileges
	}
	privileges, err = c.checkRole(id, name, privileges)
	if err != nil {
		return err
	}
	c.gen++
	c.roles[id] = newRole(Role{ID: id, Name: name, Privileges: privileges})
	return nil
}

// RemoveRole removes a role with its permissions, or refuses where there are
// some and failIfUsed is set.
func (c *Core) RemoveRole(id int32, failIfUsed bool) error {
	if _, err := c.own(id); err != nil {
		return err
	}
	used := c.ByRole(id)
	if failIfUsed && len(used) > 0 {
		return &Error{InUse, "roleId", fmt.Sprint(id), "the role is in use"}
	}
	c.gen++
	for _, p := range used {
		c.drop(p.Entity, p.Principal, p.Group)
	}
	delete(c.roles, id)
	return nil
}

// MergeRole moves the permissions of one role to another.
func (c *Core) MergeRole(from, to int32) error {
	if c.roles[from] == nil {
		return &Error{NotFound, "srcRoleId", fmt.Sprint(from), "there is no such role"}
	}
	if c.roles[to] == nil {
		return &Error{NotFound, "dstRoleId", fmt.Sprint(to), "there is no such role"}
	}
	return c.change(func() {
		for _, ps := range c.perms {
			for i := range ps {
				if ps[i].Role == from {
					ps[i].Role = to
				}
			}
		}
	})
}

// change does something to permissions and undoes it where the root would be
// left without an administrator.
func (c *Core) change(f func()) error {
	old := make(map[string][]Permission, len(c.perms))
	for e, ps := range c.perms {
		old[e] = slices.Clone(ps)
	}
	had := c.administered()
	f()
	if had && !c.administered() {
		c.perms = old
		return &Error{LastAdmin, "permission", c.root, "nobody would be administrator of the root"}
	}
	c.gen++
	return nil
}

func (c *Core) administered() bool {
	return slices.ContainsFunc(c.perms[c.root], func(p Permission) bool { return p.Role == Admin && p.Propagate })
}

func (c *Core) drop(entity string, who Principal, group bool) bool {
	n := len(c.perms[entity])
	c.perms[entity] = slices.DeleteFunc(c.perms[entity], func(p Permission) bool { return p.Principal == who && p.Group == group })
	dropped := len(c.perms[entity]) < n
	if len(c.perms[entity]) == 0 {
		delete(c.perms, entity)
	}
	return dropped
}

func (c *Core) checkPermissions(perms []Permission) error {
	for _, p := range perms {
		if c.roles[p.Role] == nil {
			return &Error{NotFound, "permission.roleId", fmt.Sprint(p.Role), "there is no such role"}
		}
		if p.Principal.Name == "" || p.Principal.Domain == "" {
			return &Error{Invalid, "permission.principal", p.Principal.String(), "a principal is user@domain"}
		}
	}
	return nil
}

// Set adds permissions to an entity, in place of those that the principals
// have there.
func (c *Core) Set(entity string, perms []Permission) error {
	if err := c.checkPermissions(perms); err != nil {
		return err
	}
	return c.change(func() {
		for _, p := range perms {
			p.Entity = entity
			c.drop(entity, p.Principal, p.Group)
			c.perms[entity] = append(c.perms[entity], p)
		}
	})
}

// Reset gives an entity these permissions and no others.
func (c *Core) Reset(entity string, perms []Permission) error {
	if err := c.checkPermissions(perms); err != nil {
		return err
	}
	return c.change(func() {
		delete(c.perms, entity)
		for _, p := range perms {
			p.Entity = entity
			c.drop(entity, p.Principal, p.Group)
			c.perms[entity] = append(c.perms[entity], p)
		}
	})
}

// Remove takes a permission off an entity.
func (c *Core) Remove(entity string, who Principal, group bool) error {
	if !slices.ContainsFunc(c.perms[entity], func(p Permission) bool { return p.Principal == who && p.Group == group }) {
		return &Error{NotFound, "user", who.String(), "it has no permission on the entity itself"}
	}
	return c.change(func() { c.drop(entity, who, group) })
}

// Forget drops the permissions of an entity that is gone.
func (c *Core) Forget(entity string) {
	if _, ok := c.perms[entity]; ok && entity != c.root {
		delete(c.perms, entity)
		c.gen++
	}
}

// Of lists the permissions on an entity itself.
func (c *Core) Of(entity string) []Permission { return slices.Clone(c.perms[entity]) }

// All lists all permissions, by entity.
func (c *Core) All() []Permission {
	var out []Permission
	for _, e := range slices.Sorted(maps.Keys(c.perms)) {
		out = append(out, c.perms[e]...)
	}
	return out
}

// ByRole lists the permissions that give a role.
func (c *Core) ByRole(id int32) []Permission {
	return slices.DeleteFunc(c.All(), func(p Permission) bool { return p.Role != id })
}

// Who is a user with the groups that it is in.
type Who struct {
	User   Principal
	Groups []Principal
}

// applies says whether a permission is for a user: 2 by name, 1 by a group.
func (w Who) applies(p Permission) int {
	switch {
	case !p.Group && p.Principal == w.User:
		return 2
	case p.Group && slices.Contains(w.Groups, p.Principal):
		return 1
	}
	return 0
}

// Applies says whether a permission is for a user, by name or by a group.
func (w Who) Applies(p Permission) bool { return w.applies(p) > 0 }

// Everything says whether a user is administrator of the whole inventory and
// no permission anywhere says otherwise.
func (c *Core) Everything(w Who) bool {
	found := false
	for e, ps := range c.perms {
		for _, p := range ps {
			if w.applies(p) == 0 {
				continue
			}
			if e != c.root || p.Role != Admin || !p.Propagate {
				return false
			}
			found = true
		}
	}
	return found
}

// Anything says whether a user has any permission that is worth something.
func (c *Core) Anything(w Who) bool {
	for _, ps := range c.perms {
		for _, p := range ps {
			if w.applies(p) > 0 && len(c.roles[p.Role].set) > 0 {
				return true
			}
		}
	}
	return false
}

// Paths leads from an entity to the root: Paths[0] is the entity itself and
// what holds it. A VM has two: by its folder and by its resource pool.
type Paths [][]string

// Effective lists the roles that a user has on an entity. On each path the
// permissions nearest to the entity count, those of the user before those of
// its groups, of which all count; what the paths give adds up (vSphere
// Security, "Hierarchical Inheritance of Permissions"). A permission on the
// entity itself goes before all paths.
func (c *Core) Effective(w Who, paths Paths) []int32 {
	var out []int32
	add := func(roles []int32) {
		for _, r := range roles {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
	}
	for _, path := range paths {
		for i, e := range path {
			if roles := c.at(w, e, i > 0); len(roles) > 0 {
				add(roles)
				break
			}
		}
	}
	return out
}

// at lists the roles that a user has by the permissions of one entity.
func (c *Core) at(w Who, entity string, inherited bool) (roles []int32) {
	best := 0
	for _, p := range c.perms[entity] {
		if inherited && !p.Propagate {
			continue
		}
		switch n := w.applies(p); {
		case n == 0 || n < best:
		case n > best:
			best, roles = n, []int32{p.Role}
		default:
			roles = append(roles, p.Role)
		}
	}
	return roles
}

// Has says whether one of the roles has a privilege.
func (c *Core) Has(roles []int32, privilege string) bool {
	for _, id := range roles {
		if r := c.roles[id]; r != nil && r.set[privilege] {
			return true
		}
	}
	return false
}

// Union lists the privileges of roles, sorted.
func (c *Core) Union(roles []int32) []string {
	set := map[string]bool{}
	for _, id := range roles {
		if r := c.roles[id]; r != nil {
			maps.Copy(set, r.set)
		}
	}
	return slices.Sorted(maps.Keys(set))
}
