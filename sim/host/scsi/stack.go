package scsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Config describes the SCSI side of a node.
type Config struct {
	// Name of the node; for log-ins and serial numbers nothing depends on it.
	Name     string
	SAN      SAN
	Adapters Adapters
	// FirstHost is the number of the first SCSI host that is free: those below
	// are controllers of the node's own disks.
	FirstHost int
	// Node is the rest of the node; nil: nothing else is there.
	Node Node
	// RecheckWWID is multipath.conf's recheck_wwid: when a path that had failed
	// is back, its identity is read again, and it leaves its map where that has
	// changed. Off by default, as in multipath-tools.
	RecheckWWID bool
	// NoPathRetry is multipath.conf's no_path_retry.
	NoPathRetry NoPathRetry
}

// Node is what the stack asks the rest of its node. Names are the kernel's:
// sdb, dm-0.
type Node interface {
	// Taken says whether a name stands for something that isn't the stack's, or
	// for something that is gone and still open.
	Taken(name string) bool
	// InUse says whether a device is open: mounted, or held by a program.
	InUse(name string) bool
	// Flush writes out what the page cache holds of a device.
	Flush(name string) error
	// Content says which filesystem is on a device, and where it is mounted.
	// path is its node in /dev.
	Content(name string) Content
	// Others lists the block devices that aren't the stack's.
	Others() []Block
}

// Content is what is on a block device.
type Content struct {
	Type, UUID string
	Mounts     []string
}

// Block is a block device of the node.
type Block struct {
	Name           string // sda
	Type           string // disk, part
	No             Devno
	Bytes          int64
	ReadOnly       bool
	WWN, Serial    string
	Vendor, Model  string
	HCTL, Protocol string
}

// alone is the Node of a stack that has no other.
type alone struct{}

func (alone) Taken(string) bool      { return false }
func (alone) InUse(string) bool      { return false }
func (alone) Flush(string) error     { return nil }
func (alone) Content(string) Content { return Content{} }
func (alone) Others() []Block        { return nil }

// Stack is the SCSI side of a node.
type Stack struct {
	cfg    Config
	node   Node
	lun    oneLUN // nil: the SAN doesn't offer it
	on     bool
	report []Uevent

	// On the node's own disk: it outlives the power.
	records  map[RecordKey]*Record
	bindings []string // wwid of mpatha, mpathb, …
	recheck  bool

	hosts    map[int]*Host
	sessions map[int]*Session
	nextSID  int
	disks    map[string]*Disk
	at       map[Address]*Disk
	maps     map[int]*Map
	byWWID   map[string]*Map
	claims   map[string][]claim // path below /dev -> who wants it
}

// New returns the stack of a node that is powered off.
func New(cfg Config) *Stack {
	s := &Stack{cfg: cfg, node: cfg.Node, records: map[RecordKey]*Record{}, recheck: cfg.RecheckWWID}
	if s.node == nil {
		s.node = alone{}
	}
	s.lun, _ = cfg.SAN.(oneLUN)
	s.forget()
	return s
}

// forget drops what lives in the kernel's memory.
func (s *Stack) forget() {
	s.hosts = map[int]*Host{}
	s.sessions = map[int]*Session{}
	s.nextSID = 0
	s.disks = map[string]*Disk{}
	s.at = map[Address]*Disk{}
	s.maps = map[int]*Map{}
	s.byWWID = map[string]*Map{}
	s.claims = map[string][]claim{}
	s.report = nil
}

// Boot powers the stack on: FC adapters log in and are scanned, iSCSI nodes with
// node.startup = automatic are logged in to, and maps come to be over what is
// found. What can't be reached is left out. What appeared is in Uevents.
func (s *Stack) Boot() {
	if s.on {
		return
	}
	s.forget()
	s.on = true
	for i, wwpn := range s.cfg.Adapters.WWPNs {
		h := s.addHost(FC)
		h.WWPN, h.index = wwpn, i
		s.tell(Add, KindHost, h.name())
	}
	s.Refresh()
	for _, r := range s.Records() {
		if r.Get("node.startup") == "automatic" {
			_, _ = s.Login(context.Background(), r.RecordKey)
		}
	}
}

// Halt is the loss of power: the targets see the node's log-ins end.
func (s *Stack) Halt() {
	if !s.on {
		return
	}
	s.on = false
	for _, d := range s.disks {
		d.close()
	}
	for _, h := range s.hosts {
		for _, n := range h.nexuses {
			s.cfg.SAN.Logout(n.Initiator, n.Target)
		}
	}
	s.forget()
}

// Host is a SCSI host: an FC adapter's, or an iSCSI session's.
type Host struct {
	Number   int
	Protocol Protocol
	WWPN     string // FC
	index    int    // FC: of the adapter
	session  *Session
	nexuses  []*nexus
	nextPort int // FC: number of the next remote port
}

func (h *Host) name() string { return fmt.Sprintf("host%d", h.Number) }

// nexus is an initiator together with a port of an array: a SCSI target to Linux.
type nexus struct {
	host      *Host
	id        int // SCSI target id
	Initiator string
	Target    Target
	session   *Session // iSCSI
	port      int      // FC: number of the remote port
	lost      bool     // FC: when last looked at
}

// addHost takes the lowest free number.
func (s *Stack) addHost(p Protocol) *Host {
	n := s.cfg.FirstHost
	for s.hosts[n] != nil {
		n++
	}
	h := &Host{Number: n, Protocol: p}
	s.hosts[n] = h
	return h
}

// sortedHosts are the SCSI hosts by number.
func (s *Stack) sortedHosts() []*Host {
	return slices.SortedFunc(maps.Values(s.hosts), func(a, b *Host) int { return cmp.Compare(a.Number, b.Number) })
}

// up says whether a port answers an initiator.
func (s *Stack) up(n *nexus) bool {
	if s.lun != nil {
		_, err := s.lun.LUN(n.Initiator, n.Target, 0)
		return err == nil || !errors.Is(err, ErrUnreachable)
	}
	_, err := s.cfg.SAN.LUNs(n.Initiator, n.Target)
	return err == nil
}

// Identity is what a disk or map goes by: its WWN, and whether it is read-only.
func (s *Stack) Identity(name string) (wwn string, readOnly bool) {
	if d := s.disks[name]; d != nil {
		return d.wwid, d.ReadOnly
	}
	if m := s.Map(name); m != nil {
		return m.WWID, m.ReadOnly
	}
	return "", false
}

// SetAdapters gives a stack that is off other initiator names, which it has when
// it boots.
func (s *Stack) SetAdapters(a Adapters) error {
	if s.on {
		return fmt.Errorf("scsi: node %s is on: its adapters can be changed when it is off", s.cfg.Name)
	}
	s.cfg.Adapters.IQN, s.cfg.Adapters.WWPNs = a.IQN, a.WWPNs
	return nil
}
