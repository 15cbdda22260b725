package wsapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/array"
)

var vlunRoutes = []route{
	get("vluns", (*Server).listVLUNs),
	get("vluns/{id}", (*Server).getVLUN),
	change(http.MethodPost, "vluns", (*Server).createVLUN),
	change(http.MethodDelete, "vluns/{id}", (*Server).deleteVLUN),
}

type portPos struct {
	Node *int64 `json:"node"`
	Slot *int64 `json:"slot"`
	Card *int64 `json:"cardPort"`
}

func (p *portPos) out() (*array.PortPos, error) {
	if p == nil {
		return nil, nil
	}
	if p.Node == nil || p.Slot == nil || p.Card == nil {
		return nil, refuse(array.MissingRequired, "portPos", "invalid input: node, slot and cardPort are required")
	}
	for _, n := range []int64{*p.Node, *p.Slot, *p.Card} {
		if n < 0 || n > 1<<20 {
			return nil, refuse(array.PortSpecification, "portPos", "invalid input: port specification")
		}
	}
	return &array.PortPos{Node: int(*p.Node), Slot: int(*p.Slot), Card: int(*p.Card)}, nil
}

// vlunID is how an export is named: volume,lun[,host][,n:s:p]. A volume may be
// set:NAME, and so may a host.
func vlunID(x array.VLUN) string {
	id := fmt.Sprintf("%s,%d", x.Volume, x.LUN)
	if x.Host != "" || x.Port != nil {
		id += "," + x.Host
	}
	if x.Port != nil {
		id += "," + x.Port.String()
	}
	return id
}

// parseVLUN reads one. A port may stand where a host would, as clients leave
// the host out or empty.
func parseVLUN(id string) (k array.VLUNKey, err error) {
	p := strings.Split(id, ",")
	bad := refuse(array.InvalidInput, "id", "invalid input: "+clip(id)+" is no VLUN, which is volume,lun[,host][,n:s:p]")
	if len(p) < 2 || len(p) > 4 {
		return k, bad
	}
	lun, ok := number(p[1])
	if !ok {
		return k, bad
	}
	if lun > array.MaxLUN {
		return k, refuse(array.ExceedsRange, "lun", fmt.Sprintf("invalid input: allowed are 0 to %d", array.MaxLUN))
	}
	k.Volume, k.LUN = p[0], int(lun)
	rest := p[2:]
	if n := len(rest); n > 0 && strings.Contains(rest[n-1], ":") && !strings.HasPrefix(rest[n-1], "set:") {
		pos, err := parsePos(rest[n-1])
		if err != nil {
			return k, err
		}
		k.Port = &pos
		rest = rest[:n-1]
	}
	if len(rest) > 1 {
		return k, bad
	}
	if len(rest) == 1 {
		k.Host = rest[0]
	}
	return k, nil
}

// parsePos reads node:slot:port.
func parsePos(s string) (array.PortPos, error) {
	p := strings.Split(s, ":")
	var n [3]int64
	ok := len(p) == 3
	for i := range n {
		if ok {
			n[i], ok = number(p[i])
			ok = ok && n[i] < 1<<20
		}
	}
	if !ok {
		return array.PortPos{}, refuse(array.PortSpecification, "portPos", "invalid input: port specification "+clip(s))
	}
	return array.PortPos{Node: int(n[0]), Slot: int(n[1]), Card: int(n[2])}, nil
}

// vlunOut shows an export: a template, which is not active, or what is in
// effect over a path.
func (s *Server) vlunOut(c *call, x array.VLUN, over *array.Path) map[string]any {
	out := map[string]any{"lun": x.LUN, "volumeName": x.Volume, "type": x.Type,
		"active": over != nil, "multipathing": 1, "failedPathPol": 1, "failedPathInterval": 0, "links": c.link("vluns", vlunID(x))}
	if x.WWN != "" { // a set has none
		out["volumeWWN"], out["serial"] = x.WWN, x.WWN
	}
	if x.Host != "" {
		out["hostname"] = x.Host
	}
	if x.Port != nil {
		out["portPos"] = x.Port
	}
	if over != nil {
		out["remoteName"] = over.Name
	}
	if h, err := s.a.Host(x.Host); err == nil && len(h.NQNs) > 0 {
		out["Subsystem_NQN"] = s.subsystem()
	}
	return out
}

// subsystem is the NQN that hosts of NVMe connect to: that of the array's ports.
func (s *Server) subsystem() string {
	for _, p := range s.a.Ports() {
		if p.Protocol == array.NVMe && p.NQN != "" {
			return p.NQN
		}
	}
	return ""
}

// listVLUNs lists templates, and then what of them is in effect.
func (s *Server) listVLUNs(c *call) (reply, error) {
	q, err := c.ask("volumeName", "hostname", "lun")
	if err != nil {
		return reply{}, err
	}
	var all []array.VLUN
	var hosts []string // those that what is in effect is asked of
	if v, ok := q.only("volumeName"); ok {
		all = s.a.VLUNsOf(v)
		for _, x := range all {
			hosts = s.hostsOf(x, hosts)
		}
	} else if h, ok := q.only("hostname"); ok {
		all, hosts = s.a.VLUNsTo(h), []string{h}
	} else {
		all = s.a.VLUNs()
		for _, h := range s.a.Hosts() {
			hosts = append(hosts, h.Name)
		}
	}
	// The export of a set is one template, whatever volumes the set has.
	all = slices.DeleteFunc(all, func(x array.VLUN) bool { return x.Via != "" })
	for _, x := range s.a.SetVLUNs() {
		all = append(all, x.VLUN)
	}
	holds := func(x array.VLUN) bool {
		return q.holds(func(t term) bool {
			switch t.field {
			case "volumeName":
				return x.Volume == t.value
			case "hostname":
				return x.Host == t.value
			}
			return fmt.Sprint(x.LUN) == t.value
		})
	}
	var out []map[string]any
	for _, x := range all {
		if holds(x) {
			out = append(out, s.vlunOut(c, x, nil))
		}
	}
	for _, h := range hosts {
		for _, x := range s.a.ActiveVLUNs(h) {
			if holds(x.VLUN) {
				out = append(out, s.vlunOut(c, x.VLUN, &x.Path))
			}
		}
	}
	return reply{body: list(out)}, nil
}

// hostsOf appends the hosts that an export goes to.
func (s *Server) hostsOf(x array.VLUN, to []string) []string {
	names := []string{x.Host}
	if set, ok := strings.CutPrefix(x.Host, "set:"); ok {
		names = nil
		if o, err := s.a.HostSet(set); err == nil {
			names = o.Members
		}
	}
	for _, n := range names {
		if n != "" && !slices.Contains(to, n) {
			to = append(to, n)
		}
	}
	return to
}

func (s *Server) getVLUN(c *call) (reply, error) {
	k, err := parseVLUN(c.vars["id"])
	if err != nil {
		return reply{}, err
	}
	x, err := s.a.VLUN(k)
	if err != nil {
		return reply{}, err
	}
	return reply{body: s.vlunOut(c, x, nil)}, nil
}

func (s *Server) createVLUN(c *call) (reply, error) {
	var in struct {
		VolumeName *string  `json:"volumeName"`
		LUN        *int64   `json:"lun"`
		Hostname   *string  `json:"hostname"`
		PortPos    *portPos `json:"portPos"`
		NoVCN      *bool    `json:"noVcn"` // whether hosts are told; they are not
		Override   *bool    `json:"overrideLowerPriority"`
		Auto       *bool    `json:"autoLun"`
		MaxAuto    *int64   `json:"maxAutoLun"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.VolumeName != nil, "volumeName"); err != nil {
		return reply{}, err
	}
	// A client that drops a LUN of 0 (python-3parclient#17) is refused.
	if err := required(in.LUN != nil, "lun"); err != nil {
		return reply{}, err
	}
	pos, err := in.PortPos.out()
	if err != nil {
		return reply{}, err
	}
	for _, x := range []struct {
		n    *int64
		name string
	}{{in.LUN, "lun"}, {in.MaxAuto, "maxAutoLun"}} {
		// The core has the bounds of lun; this one only keeps it an int.
		if n := given(x.n); n < 0 || n > 1<<30 || x.name == "maxAutoLun" && n > array.MaxLUN {
			return reply{}, refuse(array.ExceedsRange, x.name, fmt.Sprintf("invalid input: allowed are 0 to %d", array.MaxLUN))
		}
	}
	x, err := s.a.CreateVLUN(c.now, array.VLUNSpec{Volume: *in.VolumeName, LUN: int(*in.LUN), Host: given(in.Hostname), Port: pos,
		Auto: given(in.Auto), MaxAuto: int(given(in.MaxAuto)), Override: given(in.Override)})
	if err != nil {
		return reply{}, err
	}
	return created("vluns", vlunID(x)), nil
}

func (s *Server) deleteVLUN(c *call) (reply, error) {
	k, err := parseVLUN(c.vars["id"])
	if err != nil {
		return reply{}, err
	}
	_, err = s.a.DeleteVLUN(c.now, k)
	return reply{}, err
}
