package cns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Share is what a file volume has in place of a disk: a share of vSAN file
// service.
type Share struct {
	// Server is the address of the file server that exports it, Primary that of
	// the one which refers NFS 4.1 clients to all others.
	Server  string `json:"server"`
	Primary string `json:"primary"`
	// SoftQuotaMB is where vSAN warns; the volume's capacity is the hard quota.
	SoftQuotaMB int64           `json:"softQuotaMB,omitempty"`
	Permissions []NetPermission `json:"permissions,omitempty"`
}

func (s *Share) clone() *Share {
	if s == nil {
		return nil
	}
	c := *s
	c.Permissions = slices.Clone(s.Permissions)
	return &c
}

// Access is what clients of a share may do, spelled as vSAN does.
type Access string

// The kinds of access.
const (
	ReadOnly  Access = "READ_ONLY"
	ReadWrite Access = "READ_WRITE"
	NoAccess  Access = "NO_ACCESS"
)

// NetPermission says what the clients at some addresses may do.
type NetPermission struct {
	// IPs is an address, a prefix (10.0.0.0/8), a range (10.0.0.1-10.0.0.9) or *.
	IPs       string `json:"ips"`
	Access    Access `json:"access"`
	AllowRoot bool   `json:"allowRoot,omitempty"`
}

// SharePrefix is what the id of a file volume starts with; a uuid follows.
const SharePrefix = "file:"

// ShareSpec says what share a file volume gets.
type ShareSpec struct {
	SoftQuotaMB int64
	Permissions []NetPermission
	// Existing is the id of a share that is there already; capacity, policy and
	// permissions are its own then.
	Existing string
}

func notAShare(id string) *Error {
	return &Error{Kind: NotSupported, Field: "volumeId", Value: id, Reason: "not a file volume"}
}

// share finds a file volume.
func (c *Core) share(id string) (*volume, bool) {
	v, ok := c.volumes[id]
	return v, ok && v.Share != nil
}

// managed finds a volume that has its backing, a disk or a share.
func (c *Core) managed(id string) (*volume, bool) {
	if v, ok := c.share(id); ok {
		return v, true
	}
	return c.live(id)
}

// planShare plans a file volume; name and metadata are checked.
func (c *Core) planShare(v Volume, s CreateSpec) (Plan, error) {
	v.Flags = Flags{}
	if s.Source != nil || s.DiskID != "" {
		return Plan{}, &Error{Kind: NotSupported, Field: "volumeSource", Reason: "a file volume is made empty, or of a share"}
	}
	if id := s.Share.Existing; id != "" {
		if old, ok := c.share(id); ok {
			return Plan{}, &Error{Kind: AlreadyRegistered, Field: "backingFileId", Value: id, Holder: old.ID, Reason: "the share is a volume already"}
		}
		old, ok := c.shares[id]
		if !ok {
			return Plan{}, &Error{Kind: NotFound, Field: "backingFileId", Value: id, Reason: "no such share"}
		}
		name := v.Name
		v.Disk, v.Share = old.Disk.clone(), old.Share.clone()
		v.Name = name
		return Plan{Volume: v}, nil
	}
	uuid, ok := strings.CutPrefix(v.ID, SharePrefix)
	switch {
	case !ok || uuid == "":
		return Plan{}, &Error{Kind: InvalidArgument, Field: "volumeId", Value: v.ID, Reason: "allowed is " + SharePrefix + " and a uuid"}
	case c.Taken(v.ID):
		return Plan{}, &Error{Kind: AlreadyExists, Field: "volumeId", Value: v.ID, Holder: v.ID, Reason: "a volume has this id"}
	case v.CapacityMB <= 0 || v.CapacityMB > MaxCapacityMB:
		// Unverified: the largest share; vSAN's own limit is larger.
		return Plan{}, &Error{Kind: InvalidArgument, Field: "capacityInMb", Value: fmt.Sprint(v.CapacityMB),
			Reason: fmt.Sprintf("allowed are 1 to %d", int64(MaxCapacityMB))}
	case s.Share.SoftQuotaMB < 0 || s.Share.SoftQuotaMB > v.CapacityMB:
		return Plan{}, &Error{Kind: InvalidArgument, Field: "createSpec.softQuotaInMb", Value: fmt.Sprint(s.Share.SoftQuotaMB),
			Reason: fmt.Sprintf("allowed are 0 to the capacity, %d", v.CapacityMB)}
	}
	if err := checkPermissions("createSpec.permission", s.Share.Permissions, false); err != nil {
		return Plan{}, err
	}
	for i, p := range s.Share.Permissions {
		if slices.ContainsFunc(s.Share.Permissions[:i], func(q NetPermission) bool { return q.IPs == p.IPs }) {
			return Plan{}, &Error{Kind: InvalidArgument, Field: "createSpec.permission.ips", Value: p.IPs, Reason: "given twice"}
		}
	}
	ds, placements, err := c.place(s.Datastores, need{capacityMB: v.CapacityMB, policy: s.Incompatible, share: true})
	if err != nil {
		return Plan{}, err
	}
	v.Datastore = ds.ID
	if v.PolicyID == "" {
		v.PolicyID = s.Defaults[ds.ID]
	}
	v.Share = &Share{Server: serverFor(ds.FileServers, uuid), Primary: ds.FileServers[0], SoftQuotaMB: s.Share.SoftQuotaMB, Permissions: slices.Clone(s.Share.Permissions)}
	return Plan{Volume: v, Placements: placements}, nil
}

// serverFor spreads shares over file servers; a share has one.
func serverFor(servers []string, id string) string {
	n := 0
	for _, b := range []byte(id) {
		n = (n*31 + int(b)) % 65521
	}
	return servers[n%len(servers)]
}

func (c *Core) createShare(p Plan, existing string) {
	v := &volume{Volume: p.Volume.clone()}
	if existing != "" {
		delete(c.shares, existing) // its space is accounted for
	} else {
		c.charge(v.Disk)
	}
	c.insert(v)
}

// dropShare takes the backing of a file volume, which is out of the indexes
// already, or keeps it for another volume.
func (c *Core) dropShare(v *volume, keep bool) {
	v.Metadata = Metadata{}
	if keep {
		c.shares[v.ID] = v
		return
	}
	c.discharge(v.Disk)
}

// Shares returns the file shares that are no volumes, by id.
func (c *Core) Shares() []Volume {
	var out []Volume
	for _, v := range c.shares {
		out = append(out, v.clone())
	}
	slices.SortFunc(out, func(a, b Volume) int { return compare(a.ID, b.ID) })
	return out
}

// ACLUpdate adds permissions to a share, or takes them away.
type ACLUpdate struct {
	Permissions []NetPermission
	Delete      bool // by IPs, which must be the same string; what isn't there is passed over
}

// ConfigureACL applies updates in order (CNS API reference,
// CnsNFSAccessControlSpec). A share that is left without any permission gets
// one that denies all. Errors: NotFound, NotSupported (a block volume),
// InvalidArgument.
func (c *Core) ConfigureACL(id string, updates []ACLUpdate) (Volume, error) {
	if _, block := c.live(id); block {
		return Volume{}, notAShare(id)
	}
	v, ok := c.share(id)
	if !ok {
		return Volume{}, c.unknown(id)
	}
	if len(updates) == 0 {
		return Volume{}, &Error{Kind: InvalidArgument, Field: "accessControlSpecList", Reason: "empty"}
	}
	for _, u := range updates {
		if len(u.Permissions) == 0 {
			return Volume{}, &Error{Kind: InvalidArgument, Field: "accessControlSpecList.netPermission", Reason: "missing"}
		}
		if err := checkPermissions("accessControlSpecList.netPermission", u.Permissions, u.Delete); err != nil {
			return Volume{}, err
		}
	}
	list := slices.Clone(v.Share.Permissions)
	for _, u := range updates {
		for _, p := range u.Permissions {
			i := slices.IndexFunc(list, func(q NetPermission) bool { return q.IPs == p.IPs })
			switch {
			case u.Delete && i >= 0:
				list = slices.Delete(list, i, i+1)
			case u.Delete:
			case i >= 0:
				list[i] = p // Unverified: that addresses have one rule
			default:
				list = append(list, p)
			}
		}
		if u.Delete && len(list) == 0 {
			list = []NetPermission{{IPs: "*", Access: NoAccess}}
		}
	}
	v.Share.Permissions = list
	return v.clone(), nil
}

// checkPermissions refuses what vSAN can't read. gone: what they allow doesn't
// matter.
func checkPermissions(field string, ps []NetPermission, gone bool) error {
	for _, p := range ps {
		if !validIPs(p.IPs) {
			return &Error{Kind: InvalidArgument, Field: field + ".ips", Value: p.IPs, Reason: "allowed are an address, a prefix, a range with - and *"}
		}
		switch p.Access {
		case ReadOnly, ReadWrite, NoAccess:
		default:
			if !gone {
				return &Error{Kind: InvalidArgument, Field: field + ".permissions", Value: string(p.Access), Reason: "allowed are READ_ONLY, READ_WRITE and NO_ACCESS"}
			}
		}
	}
	return nil
}

func validIPs(s string) bool {
	if s == "*" {
		return true
	}
	if from, to, ok := strings.Cut(s, "-"); ok {
		a, err := netip.ParseAddr(from)
		b, err2 := netip.ParseAddr(to)
		return err == nil && err2 == nil && a.BitLen() == b.BitLen() && a.Compare(b) <= 0
	}
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	_, err := netip.ParseAddr(s)
	return err == nil
}
