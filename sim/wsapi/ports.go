package wsapi

import (
	"net"
	"strconv"

	"github.com/csilab/csilab/sim/array"
)

var portRoutes = []route{
	get("ports", (*Server).listPorts),
	get("ports/{pos}", (*Server).getPort),
	get("ports/{pos}/iSCSIVlans", (*Server).listVLANs),
}

// portOut shows a port. A port of NVMe has its address as nodeWWN too, which is
// where clients look (LXD's driver for Alletra).
func portOut(c *call, p array.Port) map[string]any {
	out := map[string]any{"portPos": p.PortPos, "mode": 2, "linkState": p.State, "protocol": p.Protocol, "type": p.Type,
		"failoverState": 1, "device": []string{}, "links": c.link("ports", p.PortPos.String())}
	if p.Type == array.DiskPort {
		out["mode"] = 3 // initiator
	}
	if p.NodeWWN != "" {
		out["nodeWWN"] = p.NodeWWN
	}
	if p.PortWWN != "" {
		out["portWWN"] = p.PortWWN
	}
	if p.Address != "" {
		out["IPAddr"] = p.Address
	}
	switch p.Protocol {
	case array.ISCSI:
		out["iSCSIName"] = p.ISCSIName
		out["iSCSIPortInfo"] = map[string]any{"IPAddr": p.Address, "iSCSIName": p.ISCSIName, "netmask": p.Netmask, "gateway": gateway(p.Address),
			"mtu": p.MTU, "vlan": tagged(p), "DHCP": false, "tcpPort": 3260, "rate": "10Gbps"}
	case array.NVMe:
		out["nodeWWN"], out["portWWN"] = p.Address, p.NQN
	}
	return out
}

// tagged is 1 for a port with a VLAN: then clients ask for iSCSIVlans.
func tagged(p array.Port) int {
	if p.VLAN > 0 {
		return 1
	}
	return 0
}

// listVLANs says what VLAN a port is in. Unverified: the members.
func (s *Server) listVLANs(c *call) (reply, error) {
	pos, err := parsePos(c.vars["pos"])
	if err != nil {
		return reply{}, err
	}
	p, err := s.a.Port(pos)
	if err != nil {
		return reply{}, err
	}
	if p.Protocol != array.ISCSI {
		return reply{}, refuse(array.BadPortType, "portPos", "invalid input: no iSCSI port")
	}
	var out []map[string]any
	if p.VLAN > 0 {
		out = append(out, map[string]any{"vlanTag": p.VLAN, "IPAddr": p.Address, "netmask": p.Netmask, "gateway": gateway(p.Address), "mtu": p.MTU, "iSCSIName": p.ISCSIName})
	}
	return reply{body: list(out)}, nil
}

// gateway is the first address of a port's network, as the array is told none.
func gateway(addr string) string {
	ip := net.ParseIP(addr).To4()
	if ip == nil {
		return "0.0.0.0"
	}
	return net.IPv4(ip[0], ip[1], ip[2], 1).String()
}

func (s *Server) listPorts(c *call) (reply, error) {
	q, err := c.ask("type", "protocol")
	if err != nil {
		return reply{}, err
	}
	var out []map[string]any
	for _, p := range s.a.Ports() {
		if q.holds(func(t term) bool {
			if t.field == "type" {
				return t.value == strconv.Itoa(int(p.Type))
			}
			return t.value == strconv.Itoa(int(p.Protocol))
		}) {
			out = append(out, portOut(c, p))
		}
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getPort(c *call) (reply, error) {
	pos, err := parsePos(c.vars["pos"])
	if err != nil {
		return reply{}, err
	}
	p, err := s.a.Port(pos)
	if err != nil {
		return reply{}, err
	}
	return reply{body: portOut(c, p)}, nil
}
