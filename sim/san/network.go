package san

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
)

// iscsiPort is the TCP port of a portal.
const iscsiPort = "3260"

// What the array says of itself in an INQUIRY.
const (
	vendor  = "3PARdata"
	product = "VV"
)

// port is a port of an array on the network.
type port struct {
	a      *Array
	pos    array.PortPos
	path   array.Protocol
	target scsi.Target
}

// node is what the network knows of one.
type node struct {
	name     string
	adapters scsi.Adapters
	cut      bool
	down     map[*port]bool // paths
	sessions map[sessionKey]*session
}

type sessionKey struct {
	path array.Path
	port *port
}

// session is an initiator that is logged in at a port.
type session struct {
	node *node
	sessionKey
	chap scsi.CHAP
	live bool // the array sees it
}

// connect puts the ports of an array on the network.
func (s *SAN) connect(a *Array) error {
	for _, p := range a.core.Ports() {
		x := &port{a: a, pos: p.PortPos, path: p.Protocol}
		switch {
		case p.Protocol == array.ISCSI && p.Type == array.ISCSIPort:
			if net.ParseIP(p.Address) == nil {
				return fmt.Errorf("san: array %q: port %s: address %q is no IP address", a.name, p.PortPos, p.Address)
			}
			// The tag of a port without VLANs is its place: 0:2:1 has 21, 1:2:1 has 121.
			x.target = scsi.Target{Protocol: scsi.ISCSI, Name: strings.ToLower(p.ISCSIName), Portal: net.JoinHostPort(p.Address, iscsiPort),
				Tag: 100*p.Node + 10*p.Slot + p.Card}
			if y := s.portals[x.target.Portal]; y != nil {
				return fmt.Errorf("san: array %q: port %s: array %q has the address %s at port %s", a.name, p.PortPos, y.a.name, p.Address, y.pos)
			}
			s.portals[x.target.Portal] = x
		case p.Protocol == array.FC && p.Type == array.HostPort:
			x.target = scsi.Target{Protocol: scsi.FC, Name: strings.ToLower(p.PortWWN), Node: strings.ToLower(p.NodeWWN)}
		default: // NVMe: nodes have no side of it
			continue
		}
		if y := s.ports[x.target.Name]; y != nil {
			return fmt.Errorf("san: array %q: port %s: array %q has the name %s at port %s", a.name, p.PortPos, y.a.name, x.target.Name, y.pos)
		}
		s.ports[x.target.Name], a.ports[p.PortPos] = x, x
	}
	return nil
}

// view is the network as one node sees it.
type view struct {
	s *SAN
	n *node
}

var _ scsi.SAN = view{}

// For returns the network as a node with these adapters sees it. What an
// earlier node of this name was logged in to is logged out: it is another life
// of it.
func (s *SAN) For(name string, adapters scsi.Adapters) scsi.SAN {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.node(name)
	for _, x := range n.sessions {
		s.end(x)
	}
	n.adapters = adapters
	n.adapters.WWPNs = nil
	for _, w := range adapters.WWPNs {
		n.adapters.WWPNs = append(n.adapters.WWPNs, strings.ToLower(w))
	}
	return view{s, n}
}

// node finds what is known of a node. The lock is held.
func (s *SAN) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, down: map[*port]bool{}, sessions: map[sessionKey]*session{}}
		s.nodes[name] = n
	}
	return n
}

// reach says whether a node reaches a port. The lock is held.
func (n *node) reach(p *port) bool {
	if n.cut || n.down[p] || p.a.down {
		return false
	}
	x, err := p.a.core.Port(p.pos)
	return err == nil && x.State == array.LinkReady
}

// initiatorOf is a name of a node's adapters as an array spells it.
func (n *node) initiatorOf(p scsi.Protocol, name string) (array.Path, error) {
	if p == scsi.FC {
		name = strings.ToLower(name)
		if !slices.Contains(n.adapters.WWPNs, name) {
			return array.Path{}, fmt.Errorf("%w: node %q has no port %q", scsi.ErrUnreachable, n.name, name)
		}
		return array.Path{Protocol: array.FC, Name: strings.ToUpper(name)}, nil
	}
	if n.adapters.IQN == "" || name == "" {
		return array.Path{}, fmt.Errorf("%w: node %q has no iSCSI", scsi.ErrUnreachable, n.name)
	}
	return array.Path{Protocol: array.ISCSI, Name: strings.ToLower(name)}, nil
}

// find finds a port by its name, and where that is given by its portal.
func (s *SAN) find(t scsi.Target) (*port, error) {
	p := s.ports[t.Name]
	if p == nil || p.target.Protocol != t.Protocol || t.Protocol == scsi.ISCSI && p.target.Portal != t.Portal {
		return nil, fmt.Errorf("%w: %s %s", scsi.ErrUnreachable, t.Name, t.Portal)
	}
	return p, nil
}

// Discover implements scsi.SAN. A port tells of itself only: each is a target
// of its own (HPE's logs of its driver show one line per portal,
// common-host-libs#105).
func (v view) Discover(ctx context.Context, initiator, portal string) ([]scsi.Target, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if _, err := v.n.initiatorOf(scsi.ISCSI, initiator); err != nil {
		return nil, err
	}
	p := v.s.portals[portal]
	if p == nil || !v.n.reach(p) {
		return nil, fmt.Errorf("%w: %s", scsi.ErrUnreachable, portal)
	}
	return []scsi.Target{p.target}, nil
}

// Targets implements scsi.SAN.
func (v view) Targets(wwpn string) []scsi.Target {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	if _, err := v.n.initiatorOf(scsi.FC, wwpn); err != nil {
		return nil
	}
	var out []scsi.Target
	for _, a := range v.s.arrays {
		for _, i := range a.core.Ports() {
			if p := a.ports[i.PortPos]; p != nil && p.path == array.FC && v.n.reach(p) {
				out = append(out, p.target)
			}
		}
	}
	return out
}

// Login implements scsi.SAN. Two nodes with one initiator name are both let in,
// as the array can't tell them apart. Unverified: that the second log-in does
// not end the first.
func (v view) Login(ctx context.Context, initiator string, t scsi.Target, c scsi.CHAP) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	path, err := v.n.initiatorOf(t.Protocol, initiator)
	if err != nil {
		return err
	}
	p, err := v.s.find(t)
	if err != nil {
		return err
	}
	if !v.n.reach(p) {
		return fmt.Errorf("%w: %s", scsi.ErrUnreachable, t.Name)
	}
	x := &session{node: v.n, sessionKey: sessionKey{path, p}, chap: c}
	if !x.authentic() {
		return fmt.Errorf("%w: %s at %s", scsi.ErrAuthentication, initiator, t.Name)
	}
	if old := v.n.sessions[x.sessionKey]; old != nil {
		v.s.end(old)
	}
	v.n.sessions[x.sessionKey] = x
	v.s.refresh(x)
	return nil
}

// authentic asks the array. There is no CHAP over FC.
func (x *session) authentic() bool {
	return x.path.Protocol != array.ISCSI || x.port.a.core.CHAP(x.path, x.chap.User, x.chap.Secret)
}

// Logout implements scsi.SAN.
func (v view) Logout(initiator string, t scsi.Target) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	path, err := v.n.initiatorOf(t.Protocol, initiator)
	if err != nil {
		return
	}
	if p, err := v.s.find(t); err == nil {
		if x := v.n.sessions[sessionKey{path, p}]; x != nil {
			v.s.end(x)
		}
	}
}

// end ends a session. The lock is held.
func (s *SAN) end(x *session) {
	delete(x.node.sessions, x.sessionKey)
	s.see(x, false)
}

// refresh lets the array see a session while its path is up; one that comes
// back logs in anew, with the secret that it had. The lock is held.
func (s *SAN) refresh(x *session) {
	switch up := x.node.reach(x.port); {
	case !up:
		s.see(x, false)
	case !x.live:
		s.see(x, x.authentic())
	}
}

// see tells the array of a session, or that it is gone. An initiator that is
// there twice is there until both are gone.
func (s *SAN) see(x *session, live bool) {
	if x.live == live {
		return
	}
	x.live = live
	all := s.initiator[x.path]
	if live {
		if all == nil {
			all = map[*session]struct{}{}
			s.initiator[x.path] = all
		}
		all[x] = struct{}{}
		_ = x.port.a.core.Login(x.path, x.port.pos) // the port is there and ready
		return
	}
	delete(all, x)
	if len(all) == 0 {
		delete(s.initiator, x.path)
	}
	for y := range all {
		if y.port == x.port {
			return
		}
	}
	x.port.a.core.Logout(x.path, x.port.pos)
}

// session finds a log-in over which I/O goes. The lock is held.
func (v view) session(initiator string, t scsi.Target) (*session, error) {
	path, err := v.n.initiatorOf(t.Protocol, initiator)
	if err != nil {
		return nil, err
	}
	p, err := v.s.find(t)
	if err != nil {
		return nil, err
	}
	x := v.n.sessions[sessionKey{path, p}]
	if x == nil {
		return nil, fmt.Errorf("%w: %s is not logged in at %s", scsi.ErrUnreachable, initiator, t.Name)
	}
	if !x.live {
		return nil, fmt.Errorf("%w: the path of %s to %s is down", scsi.ErrUnreachable, initiator, t.Name)
	}
	return x, nil
}

// LUNs implements scsi.SAN. The enclosure device that some personas have at LUN
// 254 is left out: no disk is there.
func (v view) LUNs(initiator string, t scsi.Target) ([]scsi.LUN, error) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	x, err := v.session(initiator, t)
	if err != nil {
		return nil, err
	}
	devices := x.port.a.core.Devices(x.path, x.port.pos)
	out := make([]scsi.LUN, len(devices))
	for i, d := range devices {
		out[i] = lunOf(d)
	}
	return out, nil
}

// LUN returns what LUNs has at one number, at a cost that does not grow with
// what is exported. Errors: ErrUnreachable, ErrNoLUN.
func (v view) LUN(initiator string, t scsi.Target, number int) (scsi.LUN, error) {
	v.s.mu.RLock()
	defer v.s.mu.RUnlock()
	x, err := v.session(initiator, t)
	if err != nil {
		return scsi.LUN{}, err
	}
	d, ok := x.port.a.core.Device(x.path, x.port.pos, number)
	if !ok {
		return scsi.LUN{}, fmt.Errorf("%w: %d of %s at %s", scsi.ErrNoLUN, number, t.Name, initiator)
	}
	return lunOf(d), nil
}

func lunOf(d array.Device) scsi.LUN {
	return scsi.LUN{Number: d.LUN, WWN: strings.ToLower(d.WWN), Vendor: vendor, Product: product, Bytes: d.SizeMiB << 20,
		ReadOnly: d.ReadOnly, Standby: d.Standby, NonOptimized: d.Distant, Image: d.Image}
}

// Open implements scsi.SAN.
func (v view) Open(image string) (disk.Image, error) { return v.s.contents.open(image) }
