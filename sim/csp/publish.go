package csp

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// publishInfo is what a node needs to find a volume.
type publishInfo struct {
	SerialNumber   string   `json:"serial_number"`
	AccessProtocol string   `json:"access_protocol"`
	LunID          int32    `json:"lun_id"`
	TargetNames    []string `json:"target_names"`
	DiscoveryIPs   []string `json:"discovery_ips"`
	Peers          []peer   `json:"PeerArrayDetails,omitempty"` // spelled so in the client
}

// peer is the other array of a pair.
type peer struct {
	LunID        int32    `json:"lun_id"`
	TargetNames  []string `json:"target_names"`
	DiscoveryIPs []string `json:"discovery_ips"`
}

// templates are exports that somebody made, without what is in effect of them.
func templates(all []wsapi.VLUN) []wsapi.VLUN {
	return slices.DeleteFunc(slices.Clone(all), func(v wsapi.VLUN) bool { return v.Active })
}

func (s *Server) publish(c *call) (reply, error) {
	var in struct {
		HostUUID       string `json:"host_uuid"`
		AccessProtocol string `json:"access_protocol"`
		Name           string `json:"name"`
		ACL            any    `json:"access_control_list"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	id := c.vars["id"]
	if in.AccessProtocol == protoFile {
		return s.publishFile(c, id, in.ACL)
	}
	uuid := uuidOf(in.HostUUID)
	if uuid == "" {
		return reply{}, refuse(http.StatusBadRequest, "host_uuid is required")
	}
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if err := x.notAFile("an export as a block device"); err != nil {
		return reply{}, err
	}
	proto := in.AccessProtocol
	if proto == "" {
		proto = x.Config["access_protocol"]
	}
	switch proto {
	case "":
		proto = protoISCSI
	case protoISCSI, protoFC, protoNVMe:
	default:
		return reply{}, wrong("access_protocol", proto, "allowed are iscsi, fc, nvmetcp and nfs")
	}
	if c.instead != nil && !c.instead.has(x.vv.Name) { // the other array has what is not its own any more
		return reply{}, refuse(http.StatusNotFound, "volume %s not found", clip(id))
	}
	pair, err := s.pairOf(c, x)
	if err != nil {
		return reply{}, err
	}
	e := export{server: s, on: c.on, array: c.array, protocol: proto, config: x.Config, volume: x.vv.Name, pair: pair != nil}
	lun, ports, err := e.to(c.ctx, uuid)
	if err != nil {
		return reply{}, err
	}
	out := publishInfo{SerialNumber: strings.ToLower(x.vv.WWN), AccessProtocol: proto, LunID: int32(lun)}
	out.TargetNames, out.DiscoveryIPs = where(ports)
	if out.Peers, err = s.publishPeer(c, pair, e, uuid); err != nil {
		return reply{}, err
	}
	return reply{body: out}, nil
}

// export is a volume on one array that is to be seen by a node.
type export struct {
	server   *Server
	on       *backend
	array    *wsapi.Client
	protocol string
	config   config
	volume   string // virtual volume
	pair     bool   // parameters name ports of two arrays
}

// to exports the volume to the hosts of a node, with what is missing of the
// exports that are there, and returns its LUN and the ports at which it is.
func (e export) to(ctx context.Context, uuid string) (lun int, ports []wsapi.Port, err error) {
	if ports, err = e.ports(ctx); err != nil {
		return 0, nil, err
	}
	host, err := e.host(ctx, uuid, false)
	if err != nil {
		return 0, nil, err
	}
	lun, err = e.at(ctx, host, ports)
	if wsapi.Is(err, wsapi.CodeNoHost) { // deleted since it was seen last
		e.on.hosts.forget(host)
		if host, err = e.host(ctx, uuid, true); err != nil {
			return 0, nil, err
		}
		lun, err = e.at(ctx, host, ports)
	}
	return lun, ports, failed("exporting volume "+e.volume+" to host "+host, err)
}

// host finds the array's host of a node. One that the client told of and that
// is not there any more is made again.
func (e export) host(ctx context.Context, uuid string, gone bool) (string, error) {
	if n := e.on.hosts.nameOf(uuid, e.protocol); n != "" {
		return n, nil
	}
	notFound := refuse(http.StatusNotFound, "host %s not found", clip(uuid))
	b, told := e.on.hosts.toldOf(uuid)
	if told && len(b.initiators(e.protocol)) > 0 {
		return e.server.upsert(ctx, e.on, e.array, e.protocol, b)
	}
	if gone {
		return "", notFound
	}
	all, err := e.array.Hosts(ctx)
	if err != nil {
		return "", failed("looking for host "+clip(uuid), err)
	}
	for _, h := range all {
		if m, ok := markOf(h); ok && m.UUID == uuid && len(pathsOf(e.protocol, h)) > 0 {
			e.on.hosts.know(uuid, e.protocol, h.Name)
			return h.Name, nil
		}
	}
	return "", notFound
}

// ports are those over which the volume is to be seen: of the protocol, ready,
// and among those that the parameters name. Parameters that name others are
// refused.
func (e export) ports(ctx context.Context) ([]wsapi.Port, error) {
	all, err := e.array.Ports(ctx)
	if err != nil {
		return nil, failed("listing ports", err)
	}
	number := map[string]int{protoISCSI: wsapi.ISCSI, protoFC: wsapi.FC, protoNVMe: wsapi.NVMe}[e.protocol]
	all = slices.DeleteFunc(all, func(p wsapi.Port) bool {
		return p.Protocol != number || p.Type != wsapi.HostPort && p.Type != wsapi.ISCSIPort
	})
	var names []string
	parameter := ""
	nameOf := wsapi.Port.Address
	switch e.protocol {
	case protoISCSI:
		parameter = "iscsi_portal_ips"
	case protoFC:
		parameter, nameOf = "fc_ports_list", func(p wsapi.Port) string { return p.PortPos.String() }
	}
	if parameter != "" {
		names = e.config.list(parameter)
	}
	var here []string
	for _, n := range names {
		if slices.ContainsFunc(all, func(p wsapi.Port) bool { return nameOf(p) == n }) {
			here = append(here, n)
		} else if !e.pair {
			return nil, wrong(parameter, n, "the array has no such port")
		}
	}
	names = here // none: all
	var out []wsapi.Port
	for _, p := range all {
		if p.LinkState == wsapi.LinkReady && (len(names) == 0 || slices.Contains(names, nameOf(p))) {
			out = append(out, p)
		}
	}
	if len(out) == 0 {
		return nil, refuse(http.StatusInternalServerError, "array %s has no port that is ready for %s", e.on.Name, e.protocol)
	}
	return out, nil
}

// at exports the volume to a host: over each of the ports (matched set), or with
// host_sees_vlun over all at once. An export that is there is used as it is: a
// changed parameter counts from the next node on.
func (e export) at(ctx context.Context, host string, ports []wsapi.Port) (int, error) {
	for try := 0; ; try++ {
		all, err := e.array.VLUNsOf(ctx, e.volume)
		if err != nil {
			return 0, err
		}
		lun, err := e.missing(ctx, host, ports, templates(all))
		if wsapi.Is(err, wsapi.CodeLUNThere) && try == 0 { // made meanwhile, or by a call whose answer was lost
			continue
		}
		return lun, err
	}
}

func (e export) missing(ctx context.Context, host string, ports []wsapi.Port, there []wsapi.VLUN) (int, error) {
	sees, err := e.config.flag("host_sees_vlun")
	if err != nil {
		return 0, err
	}
	lun := -1
	has := map[string]bool{}
	for _, v := range there {
		if v.Host != host {
			continue
		}
		lun = v.LUN
		if v.PortPos == nil {
			return lun, nil
		}
		has[v.PortPos.String()] = true
	}
	if lun < 0 && sees {
		v, err := e.array.Export(ctx, e.volume, host, nil)
		return v.LUN, err
	}
	for _, p := range ports {
		if has[p.PortPos.String()] {
			continue
		}
		v, err := e.array.Export(ctx, e.volume, host, &p.PortPos)
		if err != nil {
			return 0, err
		}
		if lun >= 0 && v.LUN != lun {
			_ = e.array.Unexport(ctx, v)
			return 0, refuse(http.StatusInternalServerError, "volume %s got LUN %d at port %s, and has %d at others", e.volume, v.LUN, p.PortPos, lun)
		}
		lun = v.LUN
	}
	return lun, nil
}

// where tells a node how to reach ports.
func where(ports []wsapi.Port) (names, ips []string) {
	names, ips = []string{}, []string{}
	for _, p := range ports {
		name := p.ISCSIName
		if p.Protocol != wsapi.ISCSI { // of NVMe this is the subsystem's NQN
			name = p.PortWWN
		}
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
		if a := p.Address(); a != "" && p.Protocol != wsapi.FC && !slices.Contains(ips, a) {
			ips = append(ips, a)
		}
	}
	return names, ips
}

func (s *Server) unpublish(c *call) (reply, error) {
	var in struct {
		HostUUID       string `json:"host_uuid"`
		AccessProtocol string `json:"access_protocol"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	id := c.vars["id"]
	if in.AccessProtocol == protoFile {
		return s.unpublishFile(c, id)
	}
	uuid := uuidOf(in.HostUUID)
	if uuid == "" {
		return reply{}, refuse(http.StatusBadRequest, "host_uuid is required")
	}
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	pair, err := s.pairOf(c, x)
	if err != nil {
		return reply{}, err
	}
	its := func(owner string) bool { return owner == uuid }
	node := s.nodeOf(c, in.HostUUID)
	if err := s.unpublishPeer(c, pair, node, its); err != nil {
		return reply{}, err
	}
	if _, err := s.unexport(c.ctx, c.on, c.array, x.vv.Name, node, its); err != nil {
		return reply{}, err
	}
	if pair != nil {
		if err := s.reapAll(c.ctx, pair.on, pair.array, uuid); err != nil {
			return reply{}, peerFailed(pair, err)
		}
	}
	return reply{}, s.reapAll(c.ctx, c.on, c.array, uuid)
}

// reapAll deletes the hosts of a node that nothing is exported to: those that
// the provider knows of, or, where it knows none, that the array has.
func (s *Server) reapAll(ctx context.Context, on *backend, a *wsapi.Client, uuid string) error {
	if s.cfg.KeepHosts {
		return nil
	}
	doing := "deleting host " + clip(uuid)
	leave, err := s.locks.Enter(ctx, on.Name+"/host/"+uuid) // nobody changes it meanwhile
	if err != nil {
		return failed(doing, err)
	}
	defer leave()
	hosts := on.hosts.namesOf(uuid)
	if len(hosts) == 0 {
		all, err := a.Hosts(ctx)
		if err != nil {
			return failed(doing, err)
		}
		for _, h := range all {
			if m, ok := markOf(h); ok && m.UUID == uuid {
				hosts = append(hosts, h.Name)
			}
		}
	}
	for _, h := range hosts {
		if err := s.reap(ctx, on, a, h); err != nil {
			return failed(doing, err)
		}
	}
	return nil
}

// unexport ends the exports of a virtual volume to the nodes that it is asked
// about, and returns which nodes they were. What is gone already is as it should
// be. node is one of them of which more is known than its uuid, or zero.
func (s *Server) unexport(ctx context.Context, on *backend, a *wsapi.Client, volume string, node hostBody, to func(uuid string) bool) (nodes []string, err error) {
	doing := "ending exports of volume " + volume
	all, err := a.VLUNsOf(ctx, volume)
	if wsapi.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed(doing, err)
	}
	for _, v := range templates(all) {
		uuid, err := s.ownerOf(ctx, on, a, v.Host, node)
		if err != nil {
			return nodes, failed(doing, err)
		}
		if !to(uuid) {
			continue
		}
		if err := a.Unexport(ctx, v); err != nil && !wsapi.NotFound(err) {
			return nodes, failed(doing, err)
		}
		if uuid != "" && !slices.Contains(nodes, uuid) {
			nodes = append(nodes, uuid)
		}
	}
	return nodes, nil
}

// reap deletes a host that nothing is exported to. The array refuses where
// something is exported meanwhile.
func (s *Server) reap(ctx context.Context, on *backend, a *wsapi.Client, host string) error {
	all, err := a.VLUNsTo(ctx, host)
	if err != nil && !wsapi.NotFound(err) {
		return err
	}
	if len(templates(all)) > 0 {
		return nil
	}
	err = a.DeleteHost(ctx, host)
	if err == nil || wsapi.NotFound(err) {
		on.hosts.forget(host)
		return nil
	}
	if wsapi.Is(err, wsapi.CodeExported, wsapi.CodeHostInSet) {
		return nil
	}
	return err
}
