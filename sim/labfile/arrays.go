package labfile

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/san"
)

// Array is a Primera, Alletra 9000 or 3PAR.
type Array struct {
	Name   string `yaml:"name" need:"yes" form:"name" max:"31" doc:"name of the system, unique in the lab; other arrays know it as a target by it"`
	Family string `yaml:"family" enum:"primera|3par" default:"primera" doc:"primera is also Alletra 9000"`
	Listen string `yaml:"listen" form:"address" default:"a free port of 127.0.0.1, .2 for the second and so on" doc:"HOST:PORT of the REST API (WSAPI); HOST is what a Secret calls the backend; csilab serve only"`
	TLS    bool   `yaml:"tls" default:"false" doc:"the REST API is https, with a self-signed certificate"`

	User     string      `yaml:"user" form:"object" max:"31" default:"3paradm" doc:"the user that the driver's Secret names, with role super"`
	Password string      `yaml:"password" min:"1" default:"3pardata" doc:"its password"`
	Users    []ArrayUser `yaml:"users" doc:"who may log in too"`

	Controllers int      `yaml:"controllers" min:"2" max:"8" default:"2" doc:"nodes of the array; ports and the number of sessions depend on it"`
	Capacity    int64    `yaml:"capacity" unit:"size" min:"1073741824" default:"100Ti" doc:"what all CPGs take together"`
	MaxVolumes  int      `yaml:"maxVolumes" min:"1" default:"65536" doc:"how many volumes there may be, copies too"`
	MaxSessions int      `yaml:"maxSessions" min:"1" default:"24 with two controllers" doc:"how many sessions of the REST API there may be"`
	SessionIdle int64    `yaml:"sessionIdle" unit:"duration" min:"1000000" default:"15m" doc:"ends a session that has made no call for so long"`
	CopyRate    int64    `yaml:"copyRate" unit:"size" min:"1048576" default:"1000Mi" doc:"how much a copy does in a second"`
	Domains     []string `yaml:"domains" form:"object" max:"31" doc:"virtual domains"`

	CPGs  []CPG       `yaml:"cpgs" default:"SSD_r6 and SSD_r6_snap" doc:"common provisioning groups that it begins with"`
	Ports []ArrayPort `yaml:"ports" default:"on each controller two for FC, two for iSCSI, and one for remote copy" doc:"its ports"`
	Hosts []ArrayHost `yaml:"hosts" doc:"hosts that it begins with; the storage provider makes those that it needs"`
}

// ArrayUser is a user of an array.
type ArrayUser struct {
	Name     string `yaml:"name" need:"yes" form:"object" max:"31" doc:"unique on the array"`
	Password string `yaml:"password" need:"yes" min:"1" doc:"its password"`
	Role     string `yaml:"role" enum:"super|edit|browse|service" default:"edit" doc:"what it may do; super and edit may change things"`
	Domain   string `yaml:"domain" form:"object" max:"31" default:"all" doc:"the domain that it is of"`
}

// CPG of an array.
type CPG struct {
	Name    string `yaml:"name" need:"yes" form:"object" max:"31" doc:"unique on the array"`
	Domain  string `yaml:"domain" form:"object" max:"31" doc:"the domain that it is in"`
	Limit   int64  `yaml:"limit" unit:"size" min:"1048576" default:"what the array has" doc:"how far it grows"`
	Warning int64  `yaml:"warning" unit:"size" min:"1048576" default:"none" doc:"how far it grows without a warning"`
	RAID    *int   `yaml:"raid" min:"0" max:"6" default:"6" doc:"0, 1, 5 or 6; only told"`
}

// ArrayPort is a port of an array.
type ArrayPort struct {
	At       string `yaml:"at" need:"yes" form:"position" doc:"node:slot:port, e.g. 0:2:1"`
	Protocol string `yaml:"protocol" need:"yes" enum:"fc|iscsi|nvme" doc:"what it speaks"`
	Address  string `yaml:"address" form:"ip" doc:"IP address, unique in the lab; for iscsi and nvme, and must be given there; a name only, nothing listens on it"`
}

// ArrayHost is a host that an array knows.
type ArrayHost struct {
	Name       string   `yaml:"name" need:"yes" form:"object" max:"31" doc:"unique on the array"`
	Domain     string   `yaml:"domain" form:"object" max:"31" doc:"the domain that it is in"`
	Persona    int      `yaml:"persona" min:"1" max:"11" default:"2, generic with ALUA" doc:"how the array behaves to it"`
	IQNs       []string `yaml:"iqns" form:"iqn" doc:"its iSCSI initiators"`
	WWPNs      []string `yaml:"wwpns" form:"wwpn" doc:"its FC initiators; not with iqns"`
	CHAPUser   string   `yaml:"chapUser" min:"1" max:"64" default:"its name" doc:"what it logs in as; only with chapSecret"`
	CHAPSecret string   `yaml:"chapSecret" min:"12" max:"16" doc:"what it logs in with; without, any log-in is taken"`
}

// Pair is two arrays that can copy to each other.
type Pair struct {
	First    string `yaml:"first" need:"yes" form:"name" doc:"an array"`
	Second   string `yaml:"second" need:"yes" form:"name" doc:"another array"`
	Mode     string `yaml:"mode" enum:"sync|periodic" default:"sync" doc:"how volumes are replicated that the storage provider makes"`
	FirstCPG string `yaml:"firstCPG" form:"object" default:"its first" doc:"CPG of replicated volumes on the first, where the second is the primary"`
	CPG      string `yaml:"secondCPG" form:"object" default:"its first" doc:"CPG of replicated volumes on the second"`
}

func (a Array) cpgs() []string {
	if len(a.CPGs) == 0 {
		return []string{san.DefaultCPG, san.DefaultSnapCPG}
	}
	var out []string
	for _, c := range a.CPGs {
		out = append(out, c.Name)
	}
	return out
}

func (a Array) user() string     { return cmp.Or(a.User, san.DefaultUser) }
func (a Array) password() string { return cmp.Or(a.Password, san.DefaultPassword) }

// array is what has to hold within one, beyond single fields.
func (d *decoder) array(path string, a Array) {
	d.unique(map[string]string{a.user(): path + ".user"}, path+".users", len(a.Users), func(i int) string { return a.Users[i].Name })
	d.unique(map[string]string{}, path+".cpgs", len(a.CPGs), func(i int) string { return a.CPGs[i].Name })
	d.unique(map[string]string{}, path+".hosts", len(a.Hosts), func(i int) string { return a.Hosts[i].Name })
	domain := func(at, name string) {
		if name != "" && !slices.Contains(a.Domains, name) {
			d.wrong(at+".domain", "there is no domain %q; there are %s", name, list(a.Domains))
		}
	}
	for i, u := range a.Users {
		domain(fmt.Sprintf("%s.users[%d]", path, i), u.Domain)
	}
	for i, c := range a.CPGs {
		at := fmt.Sprintf("%s.cpgs[%d]", path, i)
		domain(at, c.Domain)
		if c.Limit > 0 && c.Warning > c.Limit {
			d.wrong(at+".warning", "is beyond the limit")
		}
		if c.RAID != nil && raids[*c.RAID] == 0 {
			d.wrong(at+".raid", "is %d, allowed are 0, 1, 5 and 6", *c.RAID)
		}
	}
	places := map[string]string{}
	for i, p := range a.Ports {
		at := fmt.Sprintf("%s.ports[%d]", path, i)
		if first, ok := places[p.At]; ok {
			d.wrong(at+".at", "%s is the place of %s too", p.At, first)
		}
		places[p.At] = at
		if p.Protocol == "fc" && p.Address != "" {
			d.wrong(at+".address", "FC ports have none")
		}
		if p.Protocol != "fc" && p.Address == "" {
			d.wrong(at+".address", "missing: ports of %s have one", p.Protocol)
		}
		if n, _, _ := strings.Cut(p.At, ":"); n >= fmt.Sprint(max(2, a.Controllers)) {
			d.wrong(at+".at", "is on node %s, there are nodes 0 to %d", n, max(2, a.Controllers)-1)
		}
	}
	initiators := map[string]string{}
	for i, h := range a.Hosts {
		at := fmt.Sprintf("%s.hosts[%d]", path, i)
		domain(at, h.Domain)
		if len(h.IQNs) > 0 && len(h.WWPNs) > 0 {
			d.wrong(at+".wwpns", "not with iqns: a host has one kind")
		}
		if h.CHAPUser != "" && h.CHAPSecret == "" {
			d.wrong(at+".chapUser", "only with chapSecret")
		}
		for field, names := range map[string][]string{"iqns": h.IQNs, "wwpns": h.WWPNs} {
			for j, n := range names {
				n = strings.ToLower(n)
				if first, ok := initiators[n]; ok {
					d.wrong(fmt.Sprintf("%s.%s[%d]", at, field, j), "%q is that of %s too", n, first)
				}
				initiators[n] = at
			}
		}
	}
}

// arrays is what has to hold between them.
func (d *decoder) arrays(l *Lab) {
	d.unique(map[string]string{}, "arrays", len(l.Arrays), func(i int) string { return l.Arrays[i].Name })
	addresses, listeners := map[string]string{}, map[string]string{}
	for i, a := range l.Arrays {
		path := fmt.Sprintf("arrays[%d]", i)
		d.array(path, a)
		for j, p := range a.Ports {
			ip := net.ParseIP(p.Address).String()
			if first, ok := addresses[ip]; ok && p.Address != "" {
				d.wrong(fmt.Sprintf("%s.ports[%d].address", path, j), "is that of %s too", first)
			}
			addresses[ip] = fmt.Sprintf("%s.ports[%d]", path, j)
		}
		if len(l.Arrays) > 1 && a.Listen != "" {
			host, _, _ := net.SplitHostPort(a.Listen)
			if first, ok := listeners[host]; ok {
				d.wrong(path+".listen", "host %s is that of %s too: the storage provider tells arrays apart by host", host, first)
			}
			listeners[host] = path
		}
	}
	if len(l.Arrays) > 0 {
		for i, a := range l.san().Arrays { // default addresses may meet given ones
			if a.Ports != nil {
				continue
			}
			for _, p := range san.DefaultPorts(i, max(2, a.Nodes)) {
				if first, ok := addresses[p.Address]; ok && p.Address != "" {
					d.wrong(first+".address", "is that of port %s of array %q too, which has no ports of its own in the file", p.PortPos, a.Name)
				}
			}
		}
	}
	var names []string
	for _, a := range l.Arrays {
		names = append(names, a.Name)
	}
	pairs := map[[2]string]string{}
	for i, p := range l.Pairs {
		path := fmt.Sprintf("pairs[%d]", i)
		key := [2]string{min(p.First, p.Second), max(p.First, p.Second)}
		switch first, twice := pairs[key]; {
		case p.First == p.Second:
			d.wrong(path+".second", "%q is the first as well", p.Second)
			continue
		case twice:
			d.wrong(path, "is the same as %s", first)
		}
		pairs[key] = path
		for _, x := range []struct{ field, name, cpgField, cpg string }{{"first", p.First, "firstCPG", p.FirstCPG}, {"second", p.Second, "secondCPG", p.CPG}} {
			n := slices.Index(names, x.name)
			if n < 0 {
				d.wrong(path+"."+x.field, "there is no array %q; there are %s", x.name, list(names))
			} else if x.cpg != "" && !slices.Contains(l.Arrays[n].cpgs(), x.cpg) {
				d.wrong(path+"."+x.cpgField, "array %s has no CPG %q; it has %s", x.name, x.cpg, list(l.Arrays[n].cpgs()))
			}
		}
	}
}

// Storage is what stands before the nodes of a lab with arrays.
type Storage struct {
	SAN     san.Config
	Listen  []string // of each array's REST API; "" leaves it to who serves
	Devices map[string]csp.ReplicationDevice
	// CSPListen is where the storage provider is served; "" leaves it to who
	// serves.
	CSPListen string
	// Users are who a driver's Secret names, CPGs the first of each array.
	Users []array.User
	CPGs  []string
}

// Storage returns the arrays of a lab; ok is whether it has any. A replication
// device has the name of the array that it leads to.
func (l *Lab) Storage() (s Storage, ok bool) {
	s = Storage{SAN: l.san(), CSPListen: l.CSPListen, Devices: map[string]csp.ReplicationDevice{}}
	for i, a := range l.Arrays {
		s.Listen = append(s.Listen, a.Listen)
		s.Users = append(s.Users, s.SAN.Arrays[i].Users[0])
		s.CPGs = append(s.CPGs, a.cpgs()[0])
	}
	for _, p := range l.Pairs {
		for _, x := range [][2]string{{p.First, p.FirstCPG}, {p.Second, p.CPG}} {
			n := slices.IndexFunc(l.Arrays, func(a Array) bool { return a.Name == x[0] })
			s.Devices[x[0]] = csp.ReplicationDevice{TargetName: x[0], TargetCPG: cmp.Or(x[1], l.Arrays[n].cpgs()[0]), TargetSnapCPG: cmp.Or(x[1], l.Arrays[n].cpgs()[0]),
				TargetMode: cmp.Or(p.Mode, "sync"), TargetUser: l.Arrays[n].user(), TargetPassword: l.Arrays[n].password()}
		}
	}
	return s, len(l.Arrays) > 0
}

var protocols = map[string]struct {
	protocol array.Protocol
	of       array.PortType
}{"fc": {array.FC, array.HostPort}, "iscsi": {array.ISCSI, array.ISCSIPort}, "nvme": {array.NVMe, array.HostPort}}

var raids = map[int]array.RAIDType{0: array.RAID0, 1: array.RAID1, 5: array.RAID5, 6: array.RAID6}

func (l *Lab) san() san.Config {
	cfg := san.Config{Seed: max(1, l.Seed)}
	for _, a := range l.Arrays {
		c := san.ArrayConfig{TLS: a.TLS, Config: array.Config{Name: a.Name, Family: array.Family(a.Family), CapacityMiB: a.Capacity >> 20, Domains: a.Domains,
			Nodes: a.Controllers, MaxVolumes: a.MaxVolumes, MaxSessions: a.MaxSessions, SessionIdle: time.Duration(a.SessionIdle), CopyMiBs: a.CopyRate >> 20,
			Users: []array.User{{Name: a.user(), Password: a.password(), Role: array.Super}}}}
		for _, u := range a.Users {
			c.Users = append(c.Users, array.User{Name: u.Name, Password: u.Password, Role: cmp.Or(array.Role(u.Role), array.Edit), Domain: u.Domain})
		}
		for _, p := range a.CPGs {
			raid := array.RAID6
			if p.RAID != nil {
				raid = raids[*p.RAID]
			}
			c.CPGs = append(c.CPGs, array.CPGSpec{Name: p.Name, Domain: p.Domain, GrowthLimitMiB: p.Limit >> 20, WarningMiB: p.Warning >> 20, RAID: raid})
		}
		for _, p := range a.Ports {
			x := array.Port{Protocol: protocols[p.Protocol].protocol, Type: protocols[p.Protocol].of, Address: p.Address}
			_, _ = fmt.Sscanf(p.At, "%d:%d:%d", &x.Node, &x.Slot, &x.Card) // its form is checked
			if p.Address != "" {
				x.Netmask, x.MTU = "255.255.255.0", 1500
			}
			c.Ports = append(c.Ports, x)
		}
		for _, h := range a.Hosts {
			c.Hosts = append(c.Hosts, san.HostConfig{CHAPName: h.CHAPUser, CHAPSecret: h.CHAPSecret,
				HostSpec: array.HostSpec{Name: h.Name, Domain: h.Domain, Persona: array.Persona(h.Persona), FCWWNs: h.WWPNs, ISCSINames: h.IQNs}})
		}
		cfg.Arrays = append(cfg.Arrays, c)
	}
	for _, p := range l.Pairs {
		cfg.Pairs = append(cfg.Pairs, san.Pair{p.First, p.Second})
	}
	return cfg
}

// Forms of what arrays are told.
var (
	objectForm   = regexp.MustCompile(`^[A-Za-z0-9_][-A-Za-z0-9_.]*$`)
	positionForm = regexp.MustCompile(`^[0-7]:[0-9]:[1-4]$`)
	iqnForm      = regexp.MustCompile(`^(iqn\.[0-9]{4}-[0-9]{2}\.[-A-Za-z0-9.:]{1,200}|eui\.[0-9A-Fa-f]{16})$`)
	wwpnForm     = regexp.MustCompile(`^[0-9A-Fa-f]{16}$`)
)
