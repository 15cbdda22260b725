// Package authz is the core of a vCenter's authorization: roles, permissions
// on the inventory, and what a user may do where. It does no I/O and takes no
// locks; entities are plain strings and the inventory is what callers say it is.
package authz

import "strings"

// Principal names a user or a group, in lower case: vCenter compares so.
type Principal struct{ Domain, Name string }

// Parse reads user@domain and DOMAIN\user. Without a domain it is none of the
// vCenter's: that looks in its default identity source, the machine's own.
func Parse(s string) Principal {
	s = strings.ToLower(s)
	if d, n, ok := strings.Cut(s, `\`); ok {
		return Principal{d, n}
	}
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return Principal{s[i+1:], s[:i]}
	}
	return Principal{"", s}
}

// String is how vCenter writes principals: VSPHERE.LOCAL\administrator.
func (p Principal) String() string {
	if p.Domain == "" {
		return p.Name
	}
	return strings.ToUpper(p.Domain) + `\` + p.Name
}

// Administrators is the group of a domain that may do everything by default.
func Administrators(domain string) Principal { return Principal{domain, "administrators"} }
