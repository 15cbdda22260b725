package array

import "fmt"

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

// Writes says whether users of the role may change things.
func (r Role) Writes() bool { return r == Super || r == Edit }

func (a *Array) addUser(u User) error {
	if err := checkName("user", u.Name, MaxName); err != nil {
		return err
	}
	if u.Password == "" {
		return fmt.Errorf("array: user %q: a password is required", u.Name)
	}
	switch u.Role {
	case Super, Edit, Browse, Service:
	default:
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
