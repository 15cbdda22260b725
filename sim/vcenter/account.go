package vcenter

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/sim/vcenter/authz"
)

// User may log in.
type User struct {
	// Name is user@domain. Names are compared without case.
	Name     string
	Password string
	// Role that the user has on the whole inventory: Admin, ReadOnly, NoAccess,
	// CSI (what the documentation of the vSphere CSI driver asks for) or one
	// that AddRole made. Empty grants nothing: such a user can't log in.
	Role string
	// Groups that the user is in, as domain\group or group@domain.
	// Administrators of the user's domain may do everything.
	Groups []string
}

// Lockout says when wrong passwords lock an account. The zero value is the
// default of vCenter Single Sign-On: 5 failures within 180 s, for 300 s. As
// there, the account administrator of a domain is never locked by failures
// (docs.vmware.com GUID-2D25D311-AB56-40F4-9834-BC19A7D2EA3D).
type Lockout struct {
	// Failures in a row that lock; 0 means 5, below 0 never.
	Failures int
	// Within is the time that they must come in; 0 means 180 s.
	Within time.Duration
	// For is how long the account is locked; 0 means 300 s, below 0 until
	// UnlockAccount.
	For time.Duration
}

func (l Lockout) withDefaults() Lockout {
	if l.Failures == 0 {
		l.Failures = 5
	}
	if l.Within == 0 {
		l.Within = 180 * time.Second
	}
	if l.For == 0 {
		l.For = 300 * time.Second
	}
	return l
}

// principal is a user or a group.
type principal = authz.Principal

func parsePrincipal(s string) principal { return authz.Parse(s) }

// account is a user with what has become of it.
type account struct {
	User
	who     principal
	display string // as sessions and tasks show it

	failures []time.Time // wrong passwords since the last right one
	locked   bool
	until    time.Time // end of the lock; zero: until unlocked
	expired  bool      // the password
}

// accounts is the identity source: users, passwords, locks. It stands for
// vCenter Single Sign-On and is shared by SOAP, REST and the STS.
type accounts struct {
	lockout Lockout

	mu     sync.Mutex
	order  []principal
	byName map[principal]*account
}

func newAccounts(l Lockout) *accounts {
	return &accounts{lockout: l.withDefaults(), byName: map[principal]*account{}}
}

func (as *accounts) add(u User) error {
	who := parsePrincipal(u.Name)
	if who.Domain == "" || who.Name == "" {
		return fmt.Errorf("vcenter: user %q: Name must be user@domain", u.Name)
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.byName[who] != nil {
		return fmt.Errorf("vcenter: user %q is given twice", u.Name)
	}
	name := u.Name
	if i := strings.LastIndexByte(name, '@'); i >= 0 {
		name = name[:i]
	}
	as.byName[who] = &account{User: u, who: who, display: strings.ToUpper(who.Domain) + `\` + name}
	as.order = append(as.order, who)
	return nil
}

func (as *accounts) remove(name string) bool {
	who := parsePrincipal(name)
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.byName[who] == nil {
		return false
	}
	delete(as.byName, who)
	as.order = slices.DeleteFunc(as.order, func(p principal) bool { return p == who })
	return true
}

// edit changes an account; it fails where there is none.
func (as *accounts) edit(name string, f func(*account)) error {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.byName[parsePrincipal(name)]
	if a == nil {
		var names []string
		for _, p := range as.order {
			names = append(names, as.byName[p].Name)
		}
		return fmt.Errorf("vcenter: no user %q; there are %q", name, names)
	}
	f(a)
	return nil
}

// find returns a copy of an account.
func (as *accounts) find(who principal) (account, bool) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.byName[who]; a != nil {
		return *a, true
	}
	return account{}, false
}

// groups that a principal is in. The account administrator is in
// Administrators of its domain.
func (as *accounts) groups(who principal) []principal {
	var out []principal
	if who.Name == "administrator" {
		out = append(out, authz.Administrators(who.Domain))
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.byName[who]; a != nil {
		for _, g := range a.Groups {
			p := parsePrincipal(g)
			if p.Domain == "" {
				p.Domain = who.Domain
			}
			out = append(out, p)
		}
	}
	return out
}

// exists says whether a user or a group is known. Groups are those that users
// are in, and the administrators of the users' domains.
func (as *accounts) exists(who principal, group bool) bool {
	as.mu.Lock()
	defer as.mu.Unlock()
	if !group {
		return as.byName[who] != nil
	}
	for _, a := range as.byName {
		if who == authz.Administrators(a.who.Domain) {
			return true
		}
		for _, g := range a.Groups {
			p := parsePrincipal(g)
			if p == who || p.Domain == "" && (principal{Domain: a.who.Domain, Name: p.Name}) == who {
				return true
			}
		}
	}
	return false
}

// Why a log-in is refused. SOAP tells them apart as little as vCenter does.
var (
	errCredentials     = errors.New("wrong user or password")
	errLocked          = errors.New("the account is locked")
	errPasswordExpired = errors.New("the password has expired")
)

// check says whether a user may log in with a password, and counts failures.
// A locked account refuses the right password too.
func (as *accounts) check(user, password string, now time.Time) (account, error) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.byName[parsePrincipal(user)]
	if a == nil {
		return account{}, errCredentials
	}
	if a.locked && !a.until.IsZero() && !now.Before(a.until) {
		a.locked, a.failures = false, nil
	}
	if a.locked {
		return account{}, errLocked
	}
	if subtle.ConstantTimeCompare([]byte(password), []byte(a.Password)) != 1 {
		as.failed(a, now)
		return account{}, errCredentials
	}
	a.failures = nil
	if a.expired {
		return account{}, errPasswordExpired
	}
	return *a, nil
}

func (as *accounts) failed(a *account, now time.Time) {
	l := as.lockout
	if l.Failures < 0 || a.who.Name == "administrator" {
		return
	}
	a.failures = append(slices.DeleteFunc(a.failures, func(t time.Time) bool { return now.Sub(t) > l.Within }), now)
	if len(a.failures) < l.Failures {
		return
	}
	a.locked, a.failures, a.until = true, nil, time.Time{}
	if l.For > 0 {
		a.until = now.Add(l.For)
	}
}

// AddUser adds a user. Role and groups are as in the configuration.
func (v *VCenter) AddUser(u User) error {
	if err := v.accounts.add(u); err != nil {
		return err
	}
	v.access.forget()
	if u.Role == "" {
		return nil
	}
	if err := v.GrantRole(u.Name, u.Role, ""); err != nil {
		v.accounts.remove(u.Name)
		return err
	}
	return nil
}

// RemoveUser removes a user and ends its sessions, as a vCenter does within a
// while. Permissions of a user who is gone stay, and count again for one of
// the same name.
func (v *VCenter) RemoveUser(name string) error {
	if !v.accounts.remove(name) {
		return fmt.Errorf("vcenter: no user %q", name)
	}
	v.access.forget()
	v.KillSessionsOf(name)
	return nil
}

// SetPassword changes the password of Config.User. Sessions stay.
func (v *VCenter) SetPassword(password string) { _ = v.SetPasswordOf(v.cfg.User, password) }

// SetPasswordOf changes the password of a user, which ends its expiry.
// Sessions stay: vCenter checks a password at log-in only.
func (v *VCenter) SetPasswordOf(user, password string) error {
	return v.accounts.edit(user, func(a *account) { a.Password, a.expired = password, false })
}

// ExpirePassword makes the password of a user one that has expired: log-ins
// fail until SetPasswordOf. Sessions stay.
func (v *VCenter) ExpirePassword(user string) error {
	return v.accounts.edit(user, func(a *account) { a.expired = true })
}

// LockAccount locks an account, as an administrator can, until UnlockAccount.
// Log-ins fail, sessions stay.
func (v *VCenter) LockAccount(user string) error {
	return v.accounts.edit(user, func(a *account) { a.locked, a.until = true, time.Time{} })
}

// UnlockAccount unlocks an account and forgets its failures.
func (v *VCenter) UnlockAccount(user string) error {
	return v.accounts.edit(user, func(a *account) { a.locked, a.failures = false, nil })
}

// AccountLocked says whether an account is locked now.
func (v *VCenter) AccountLocked(user string) bool {
	a, ok := v.accounts.find(parsePrincipal(user))
	return ok && a.locked && (a.until.IsZero() || time.Now().Before(a.until))
}
