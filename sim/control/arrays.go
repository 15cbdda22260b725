package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fileservice"
	"github.com/csilab/csilab/sim/san"
)

// Array is a storage array.
type Array struct {
	Array       string `json:"array"` // its name
	Family      string `json:"family"`
	Serial      string `json:"serial"`
	URL         string `json:"url"` // of its REST API
	Down        bool   `json:"down"`
	VVs         int    `json:"vvs"` // copies too
	VLUNs       int    `json:"vluns"`
	Hosts       int    `json:"hosts"`
	Sessions    int    `json:"sessions"` // of the REST API
	TotalMiB    int64  `json:"totalMiB"`
	FreeMiB     int64  `json:"freeMiB"`
	Controllers int    `json:"controllers"`
}

// VV is a virtual volume, or a copy of one.
type VV struct {
	Array        string     `json:"array"`
	ID           int64      `json:"id"`
	Name         string     `json:"name"`
	WWN          string     `json:"wwn"` // 32 upper case hex digits
	SizeMiB      int64      `json:"sizeMiB"`
	UsedMiB      int64      `json:"usedMiB"`
	Provisioning string     `json:"provisioning"` // full, tpvv, snp, tdvv, reduce
	CopyType     string     `json:"copyType"`     // base, physical, virtual
	CopyOf       string     `json:"copyOf,omitempty"`
	ReadOnly     bool       `json:"readOnly"`
	CPG          string     `json:"cpg,omitempty"`
	SnapCPG      string     `json:"snapCPG,omitempty"`
	Domain       string     `json:"domain,omitempty"`
	Comment      string     `json:"comment,omitempty"`
	State        string     `json:"state"`           // normal, failed
	Hosts        []string   `json:"hosts,omitempty"` // that it is exported to, and set:NAME
	Task         int64      `json:"task,omitempty"`  // that works on it
	Created      time.Time  `json:"created"`
	Expires      *time.Time `json:"expires,omitempty"`
}

// VLUN is an export.
type VLUN struct {
	Array  string `json:"array"`
	Volume string `json:"volume"`
	WWN    string `json:"wwn"`
	LUN    int    `json:"lun"`
	Host   string `json:"host,omitempty"` // or set:NAME
	Port   string `json:"port,omitempty"` // node:slot:port
	Type   string `json:"type"`           // port, host, matched, set
	// Paths are over how many log-ins of its host it is seen now.
	Paths   int       `json:"paths"`
	Created time.Time `json:"created"`
}

// ArrayHost is a host that an array knows. Its secrets are not told.
type ArrayHost struct {
	Array   string   `json:"array"`
	ID      int64    `json:"id"`
	Name    string   `json:"name"`
	Domain  string   `json:"domain,omitempty"`
	Persona int      `json:"persona"`
	IQNs    []string `json:"iqns,omitempty"`
	WWPNs   []string `json:"wwpns,omitempty"`
	NQNs    []string `json:"nqns,omitempty"`
	CHAP    string   `json:"chap,omitempty"` // the name
	VLUNs   int      `json:"vluns"`
	// Ports are where initiators of it are logged in, by initiator and place.
	Ports   []string `json:"ports,omitempty"`
	Comment string   `json:"comment,omitempty"`
}

// Set is a set of volumes or of hosts.
type Set struct {
	Array   string   `json:"array"`
	ID      int64    `json:"id"`
	Name    string   `json:"name"`
	Domain  string   `json:"domain,omitempty"`
	Members []string `json:"members"`
	Comment string   `json:"comment,omitempty"`
}

// CPG is a common provisioning group.
type CPG struct {
	Array       string `json:"array"`
	ID          int64  `json:"id"`
	Name        string `json:"name"`
	Domain      string `json:"domain,omitempty"`
	UserMiB     int64  `json:"userMiB"`
	SnapshotMiB int64  `json:"snapshotMiB"`
	FreeMiB     int64  `json:"freeMiB"`
	LimitMiB    int64  `json:"limitMiB,omitempty"`
	WarningMiB  int64  `json:"warningMiB,omitempty"`
	VVs         int    `json:"vvs"`
}

// Share is a volume that an array's file service exports.
type Share struct {
	Array    string   `json:"array"`
	Volume   string   `json:"volume"` // virtual volume
	Path     string   `json:"path"`
	Clients  []string `json:"clients"` // who may mount it: *, addresses, networks; none: nobody
	ReadOnly bool     `json:"readOnly"`
	SizeMiB  int64    `json:"sizeMiB"`
}

// ArrayPort is a port of an array.
type ArrayPort struct {
	Array    string `json:"array"`
	Port     string `json:"port"`     // node:slot:port
	Protocol string `json:"protocol"` // fc, iscsi, nvme, ip, sas
	State    string `json:"state"`    // ready, loss_sync, offline
	Name     string `json:"name,omitempty"`
	Address  string `json:"address,omitempty"`
}

// RCGroup is a remote copy group as one of its arrays has it.
type RCGroup struct {
	Array        string   `json:"array"`
	Name         string   `json:"name"`
	Target       string   `json:"target"`
	Mode         string   `json:"mode"`  // sync, periodic
	Role         string   `json:"role"`  // primary, secondary
	State        string   `json:"state"` // started, stopped
	AutoFailover bool     `json:"autoFailover"`
	Volumes      []string `json:"volumes"`
	Synced       int      `json:"synced"` // of the volumes
}

var (
	provisionings = map[array.Provisioning]string{array.Full: "full", array.Thin: "tpvv", array.Snapshot: "snp", array.Dedup: "tdvv", array.Reduce: "reduce"}
	copyTypes     = map[array.CopyType]string{array.Base: "base", array.Physical: "physical", array.Virtual: "virtual"}
	vlunTypes     = map[array.VLUNType]string{array.PortPresents: "port", array.HostSees: "host", array.MatchedSet: "matched", array.ToHostSet: "set"}
	protocols     = map[array.Protocol]string{array.FC: "fc", array.ISCSI: "iscsi", array.IP: "ip", array.NVMe: "nvme", 5: "sas"}
	linkStates    = map[array.LinkState]string{array.LinkReady: "ready", array.LinkLossSync: "loss_sync", array.LinkOffline: "offline"}
)

// ofArrays are the kinds that arrays have.
var ofArrays = map[string]func([]*san.Array) any{
	"arrays":     func(as []*san.Array) any { return listArrays("ArrayList", as, oneArray) },
	"vvs":        func(as []*san.Array) any { return listArrays("VVList", as, vvs(false)) },
	"copies":     func(as []*san.Array) any { return listArrays("VVList", as, vvs(true)) },
	"vluns":      func(as []*san.Array) any { return listArrays("VLUNList", as, vluns) },
	"hosts":      func(as []*san.Array) any { return listArrays("ArrayHostList", as, hosts) },
	"hostsets":   func(as []*san.Array) any { return listArrays("SetList", as, sets((*array.Array).HostSets)) },
	"volumesets": func(as []*san.Array) any { return listArrays("SetList", as, sets((*array.Array).VolumeSets)) },
	"cpgs":       func(as []*san.Array) any { return listArrays("CPGList", as, cpgs) },
	"shares":     func(as []*san.Array) any { return listArrays("ShareList", as, shares) },
	"ports":      func(as []*san.Array) any { return listArrays("ArrayPortList", as, ports) },
	"rcgroups":   func(as []*san.Array) any { return listArrays("RCGroupList", as, rcgroups) },
}

func listArrays[T any](kind string, arrays []*san.Array, of func(a *san.Array, core *array.Array) []T) List[T] {
	l := List[T]{APIVersion, kind, []T{}}
	for _, a := range arrays {
		a.Look(func(core *array.Array) { l.Items = append(l.Items, of(a, core)...) })
	}
	return l
}

func oneArray(a *san.Array, c *array.Array) []Array {
	space := c.Capacity()
	return []Array{{Array: a.Name(), Family: string(a.Family()), Serial: a.Serial(), URL: a.URL(), Down: a.IsDown(), VVs: len(c.Volumes()), VLUNs: len(c.VLUNs()),
		Hosts: len(c.Hosts()), Sessions: len(c.Sessions()), TotalMiB: space.TotalMiB, FreeMiB: space.FreeMiB, Controllers: c.Config().Nodes}}
}

// vvs are the volumes, or the virtual copies.
func vvs(copies bool) func(*san.Array, *array.Array) []VV {
	return func(a *san.Array, c *array.Array) (out []VV) {
		for _, v := range c.Volumes() {
			if copies != (v.CopyType == array.Virtual) {
				continue
			}
			x := VV{Array: a.Name(), ID: v.ID, Name: v.Name, WWN: v.WWN, SizeMiB: v.SizeMiB, UsedMiB: v.WrittenMiB, Provisioning: provisionings[v.Provisioning],
				CopyType: copyTypes[v.CopyType], CopyOf: v.CopyOf, ReadOnly: v.ReadOnly, CPG: v.UserCPG, SnapCPG: v.SnapCPG, Domain: v.Domain, Comment: v.Comment,
				State: "normal", Task: v.Task, Created: v.Created.UTC()}
			if v.State == array.FailedState {
				x.State = "failed"
			}
			if !v.Expires.IsZero() {
				t := v.Expires.UTC()
				x.Expires = &t
			}
			for _, e := range c.VLUNsOf(v.Name) {
				if e.Host != "" && !slices.Contains(x.Hosts, e.Host) {
					x.Hosts = append(x.Hosts, e.Host)
				}
			}
			out = append(out, x)
		}
		return out
	}
}

func vluns(a *san.Array, c *array.Array) (out []VLUN) {
	// Over how many log-ins a host sees a volume, by port.
	seen := map[string]map[string]map[array.PortPos]int{}
	for _, h := range c.Hosts() {
		for _, x := range c.ActiveVLUNs(h.Name) {
			if seen[x.Volume] == nil {
				seen[x.Volume] = map[string]map[array.PortPos]int{}
			}
			if seen[x.Volume][h.Name] == nil {
				seen[x.Volume][h.Name] = map[array.PortPos]int{}
			}
			seen[x.Volume][h.Name][*x.Port]++
		}
	}
	for _, v := range c.VLUNs() {
		x := VLUN{Array: a.Name(), Volume: v.Volume, WWN: v.WWN, LUN: v.LUN, Host: v.Host, Type: vlunTypes[v.Type], Created: v.Created.UTC()}
		if v.Port != nil {
			x.Port = v.Port.String()
		}
		to := []string{v.Host}
		if name, set := strings.CutPrefix(v.Host, "set:"); set {
			s, _ := c.HostSet(name)
			to = s.Members
		}
		for host, ports := range seen[v.Volume] {
			if v.Host != "" && !slices.Contains(to, host) {
				continue
			}
			for p, n := range ports {
				if v.Port == nil || *v.Port == p {
					x.Paths += n
				}
			}
		}
		out = append(out, x)
	}
	return out
}

func hosts(a *san.Array, c *array.Array) (out []ArrayHost) {
	for _, h := range c.Hosts() {
		x := ArrayHost{Array: a.Name(), ID: h.ID, Name: h.Name, Domain: h.Domain, Persona: int(h.Persona), IQNs: h.ISCSINames, WWPNs: h.FCWWNs, NQNs: h.NQNs,
			CHAP: h.CHAPName, VLUNs: len(c.VLUNsTo(h.Name)), Comment: h.Descriptors.Comment}
		for protocol, names := range map[array.Protocol][]string{array.ISCSI: h.ISCSINames, array.FC: h.FCWWNs} {
			for _, n := range names {
				for _, pos := range c.LoggedIn(array.Path{Protocol: protocol, Name: n}) {
					x.Ports = append(x.Ports, fmt.Sprintf("%s@%s", n, pos))
				}
			}
		}
		out = append(out, x)
	}
	return out
}

func sets(of func(*array.Array) []array.Set) func(*san.Array, *array.Array) []Set {
	return func(a *san.Array, c *array.Array) (out []Set) {
		for _, s := range of(c) {
			members := s.Members
			if members == nil {
				members = []string{}
			}
			out = append(out, Set{a.Name(), s.ID, s.Name, s.Domain, members, s.Comment})
		}
		return out
	}
}

func cpgs(a *san.Array, c *array.Array) (out []CPG) {
	for _, p := range c.CPGs() {
		free, _ := c.FreeSpace(p.Name)
		out = append(out, CPG{a.Name(), p.ID, p.Name, p.Domain, p.UserMiB, p.SnapshotMiB, free.FreeMiB, p.GrowthLimitMiB, p.WarningMiB, p.Volumes})
	}
	return out
}

func shares(a *san.Array, c *array.Array) (out []Share) {
	for _, v := range c.Volumes() {
		if s, ok := fileservice.Share(c, v); ok {
			out = append(out, Share{a.Name(), v.Name, csp.SharePath(v.Name), append([]string{}, s.Rules...), s.ReadOnly, v.SizeMiB})
		}
	}
	return out
}

func ports(a *san.Array, c *array.Array) (out []ArrayPort) {
	for _, p := range c.Ports() {
		x := ArrayPort{Array: a.Name(), Port: p.PortPos.String(), Protocol: protocols[p.Protocol], State: linkStates[p.State], Address: p.Address}
		switch p.Protocol {
		case array.FC:
			x.Name = p.PortWWN
		case array.ISCSI:
			x.Name = p.ISCSIName
		case array.NVMe:
			x.Name = p.NQN
		}
		out = append(out, x)
	}
	return out
}

func rcgroups(a *san.Array, c *array.Array) (out []RCGroup) {
	for _, g := range c.Groups() {
		x := RCGroup{Array: a.Name(), Name: g.Name, Target: g.Target, Mode: "sync", Role: "primary", State: "stopped", AutoFailover: g.AutoFailover, Volumes: []string{}}
		if g.Mode == array.Periodic {
			x.Mode = "periodic"
		}
		if g.Role == array.Secondary {
			x.Role = "secondary"
		}
		if g.State == array.GroupIsStarted {
			x.State = "started"
		}
		for _, v := range g.Volumes {
			x.Volumes = append(x.Volumes, v.Volume)
			if v.State == array.Synced {
				x.Synced++
			}
		}
		out = append(out, x)
	}
	return out
}
