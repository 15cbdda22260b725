package wsapi

import (
	"net"

	"github.com/csilab/csilab/sim/array"
)

var portRoutes = []route{
	get("ports", (*Server).listPorts),
	get("ports/{pos}", (*Server).getPort),
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
			"mtu": p.MTU, "vlan": p.VLAN, "DHCP": false, "tcpPort": 3260, "rate": "10Gbps"}
	case array.NVMe:
		out["nodeWWN"], out["portWWN"] = p.Address, p.NQN
	}
	return out
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
	var out []map[string]any
	for _, p := range s.a.Ports() {
		out = append(out, portOut(c, p))
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
