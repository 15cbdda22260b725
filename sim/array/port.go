package array

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// PortPos is where a port is: node 0 to 7, slot 0 to 9, port of the card 1 to 4.
type PortPos struct {
	Node int `json:"node"`
	Slot int `json:"slot"`
	Card int `json:"cardPort"`
}

func (p PortPos) String() string { return fmt.Sprintf("%d:%d:%d", p.Node, p.Slot, p.Card) }

func (p PortPos) compare(q PortPos) int {
	return cmp.Or(cmp.Compare(p.Node, q.Node), cmp.Compare(p.Slot, q.Slot), cmp.Compare(p.Card, q.Card))
}

// Protocol of a port or of a host's path, numbered as the WSAPI does.
type Protocol int

// The protocols.
const (
	FC    Protocol = 1
	ISCSI Protocol = 2
	IP    Protocol = 4 // remote copy
	NVMe  Protocol = 6
)

// LinkState of a port, numbered as the WSAPI does.
type LinkState int

// The states of a link.
const (
	LinkReady    LinkState = 4
	LinkLossSync LinkState = 5
	LinkOffline  LinkState = 10
)

// PortType is what a port is for, numbered as the WSAPI does.
type PortType int

// The types of ports.
const (
	HostPort  PortType = 1
	DiskPort  PortType = 2
	FreePort  PortType = 3
	RCFCPort  PortType = 5
	PeerPort  PortType = 6
	RCIPPort  PortType = 7
	ISCSIPort PortType = 8
)

// Port is one of the array's ports.
type Port struct {
	PortPos
	Protocol  Protocol
	Type      PortType
	State     LinkState
	NodeWWN   string // FC: 16 hex digits, upper case
	PortWWN   string
	ISCSIName string
	Address   string // IP, of iSCSI and NVMe
	Netmask   string
	MTU, VLAN int
	NQN       string
}

type port struct {
	Port
	luns lunTable // of volumes that are presented to whoever sees the port
}

// DefaultPorts are those of an array with some nodes: on each two FC ports,
// two iSCSI ports, one for disks and one for remote copy.
func DefaultPorts(nodes int) []Port {
	var out []Port
	for n := range nodes {
		for i := range 2 {
			out = append(out, Port{PortPos: PortPos{n, 1, i + 1}, Protocol: FC, Type: HostPort})
		}
		for i := range 2 {
			out = append(out, Port{PortPos: PortPos{n, 2, i + 1}, Protocol: ISCSI, Type: ISCSIPort,
				Address: fmt.Sprintf("192.0.2.%d", 10+2*n+i), Netmask: "255.255.255.0", MTU: 1500})
		}
		out = append(out, Port{PortPos: PortPos{n, 0, 1}, Protocol: 5, Type: DiskPort},
			Port{PortPos: PortPos{n, 3, 1}, Protocol: IP, Type: RCIPPort, Address: fmt.Sprintf("192.0.2.%d", 100+n), Netmask: "255.255.255.0", MTU: 1500})
	}
	return out
}

// inRange refuses what is no position of any port.
func (p PortPos) inRange() error {
	if p.Node < 0 || p.Node > 7 || p.Slot < 0 || p.Slot > 9 || p.Card < 1 || p.Card > 4 {
		return &Error{Kind: PortSpecification, Field: "portPos", Value: p.String(), Reason: "allowed are node 0 to 7, slot 0 to 9, cardPort 1 to 4"}
	}
	return nil
}

func (a *Array) addPort(p Port) error {
	if err := p.inRange(); err != nil {
		return err
	}
	if _, twice := a.ports[p.PortPos]; twice {
		return fmt.Errorf("array: port %s is given twice", p.PortPos)
	}
	if p.State == 0 {
		p.State = LinkReady
	}
	// WWNs begin with the port's place: 2NSP0002AC and the system.
	if p.NodeWWN == "" {
		p.NodeWWN = fmt.Sprintf("2FF70002AC%06X", a.system)
	}
	if p.PortWWN == "" {
		p.PortWWN = fmt.Sprintf("2%X%X%X0002AC%06X", p.Node, p.Slot, p.Card, a.system)
	}
	if p.Protocol == ISCSI && p.ISCSIName == "" {
		p.ISCSIName = fmt.Sprintf("iqn.2000-05.com.3pardata:2%x%x%x0002ac%06x", p.Node, p.Slot, p.Card, a.system)
	}
	if p.Protocol == NVMe && p.NQN == "" {
		p.NQN = "nqn.2020-07.com.hpe:" + uuid(a.cfg.Seed, "nqn", 0)
	}
	a.ports[p.PortPos] = &port{Port: p}
	return nil
}

// SetLink changes the state of a port's link: hosts have no paths over one
// that is not ready. Errors: NON_EXISTENT_PORT, INV_INPUT_BAD_ENUM_VALUE.
func (a *Array) SetLink(pos PortPos, s LinkState) error {
	p, err := a.port(pos)
	if err != nil {
		return err
	}
	if s != LinkReady && s != LinkLossSync && s != LinkOffline {
		return &Error{Kind: BadEnum, Field: "linkState", Value: fmt.Sprint(int(s)), Reason: "allowed are 4, 5 and 10"}
	}
	p.State = s
	return nil
}

func (a *Array) port(pos PortPos) (*port, error) {
	if err := pos.inRange(); err != nil {
		return nil, err
	}
	if p, ok := a.ports[pos]; ok {
		return p, nil
	}
	return nil, &Error{Kind: NonExistentPort, Field: "portPos", Value: pos.String(), Reason: "no such port"}
}

// Port returns a port. Errors: NON_EXISTENT_PORT,
// INV_INPUT_PORT_SPECIFICATION.
func (a *Array) Port(pos PortPos) (Port, error) {
	p, err := a.port(pos)
	if err != nil {
		return Port{}, err
	}
	return p.Port, nil
}

// Ports returns all ports, by place.
func (a *Array) Ports() []Port {
	out := make([]Port, 0, len(a.ports))
	for _, pos := range slices.SortedFunc(maps.Keys(a.ports), PortPos.compare) {
		out = append(out, a.ports[pos].Port)
	}
	return out
}

// Login notes that an initiator is logged in at a port, known to the array or
// not. Errors: NON_EXISTENT_PORT, BAD_PORT_TYPE (another protocol, or no port
// for hosts), INV_INPUT_PORT_SPECIFICATION (its link is not ready).
func (a *Array) Login(path Path, pos PortPos) error {
	p, err := a.port(pos)
	if err != nil {
		return err
	}
	if p.Protocol != path.Protocol || !p.forHosts() {
		return &Error{Kind: BadPortType, Field: "portPos", Value: pos.String(), Reason: "no port for hosts of this protocol"}
	}
	if p.State != LinkReady {
		return &Error{Kind: PortSpecification, Field: "portPos", Value: pos.String(), Reason: "the link is not ready"}
	}
	path = path.normal()
	if a.logins[path] == nil {
		a.logins[path] = map[PortPos]struct{}{}
	}
	a.logins[path][pos] = struct{}{}
	return nil
}

// Logout ends that.
func (a *Array) Logout(path Path, pos PortPos) {
	path = path.normal()
	delete(a.logins[path], pos)
	if len(a.logins[path]) == 0 {
		delete(a.logins, path)
	}
}

// LoggedIn says at which ports an initiator is, by place: those whose link is
// ready.
func (a *Array) LoggedIn(path Path) []PortPos {
	var out []PortPos
	for pos := range a.logins[path.normal()] {
		if a.ports[pos].State == LinkReady {
			out = append(out, pos)
		}
	}
	slices.SortFunc(out, PortPos.compare)
	return out
}

func (p *port) forHosts() bool {
	return p.Type == HostPort || p.Type == ISCSIPort
}
