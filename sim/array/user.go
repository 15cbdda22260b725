package array

import (
	"fmt"
	"maps"
	"slices"
)

// Role says what a user may do.
type Role string

// The roles that matter to the WSAPI: it takes changes from the first two.
const (
	Super   Role = "super"
	Edit    Role = "edit"
	Browse  Role = "browse"
	Service Role = "service"
)

// User of the array.
type User struct {
	Name, Password string
	Role           Role
	Domain         string // empty: all
}

// Roles are all roles, the one that may do most first.
func Roles() []Role { return []Role{Super, Edit, Browse, Service} }

// Writes says whether users of the role may change things.
func (r Role) Writes() bool { return r == Super || r == Edit }

func (a *Array) addUser(u User) error {
	if err := checkName("user", u.Name, MaxName); err != nil {
		return err
	}
	if u.Password == "" {
		return fmt.Errorf("array: user %q: a password is required", u.Name)
	}
	if !slices.Contains(Roles(), u.Role) {
		return fmt.Errorf("array: user %q: role %q: allowed are %q, %q, %q and %q", u.Name, u.Role, Super, Edit, Browse, Service)
	}
	if err := a.checkDomain(u.Domain); err != nil {
		return err
	}
	if _, twice := a.users[u.Name]; twice {
		return fmt.Errorf("array: user %q is given twice", u.Name)
	}
	a.users[u.Name] = u
	return nil
}

// Users returns all users without their passwords, by name.
func (a *Array) Users() []User {
	out := make([]User, 0, len(a.users))
	for _, name := range slices.Sorted(maps.Keys(a.users)) {
		u := a.users[name]
		u.Password = ""
		out = append(out, u)
	}
	return out
}

// User returns a user without the password. Errors: NON_EXISTENT_USER.
func (a *Array) User(name string) (User, error) {
	u, ok := a.users[name]
	if !ok {
		return User{}, &Error{Kind: NonExistentUser, Field: "name", Value: name, Reason: "no such user"}
	}
	u.Password = ""
	return u, nil
}

// SetPassword changes the password of a user. Sessions stay.
func (a *Array) SetPassword(name, password string) error {
	u, ok := a.users[name]
	if !ok || password == "" {
		return &Error{Kind: UserOrPassword, Field: "user", Value: name, Reason: "no such user, or no password"}
	}
	u.Password = password
	a.users[name] = u
	return nil
}
