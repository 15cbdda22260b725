package scsi

import (
	"context"
	"errors"

	"github.com/csilab/csilab/sim/disk"
)

// SAN is the storage network as the adapters of one node see it: which ports of
// arrays they reach, and which logical units are behind each. A node asks it
// anew each time, as an initiator does: nothing is pushed to it. It is safe for
// concurrent use, and none of its methods waits.
//
// A SAN that also has
//
//	LUN(initiator string, t Target, number int) (LUN, error)
//
// is asked by it for one logical unit, which is what each I/O does; it returns
// ErrUnreachable, or ErrNoLUN where nothing is at that number.
type SAN interface {
	// Discover answers a SendTargets at a portal (IP:port).
	// Errors: ErrUnreachable.
	Discover(ctx context.Context, initiator, portal string) ([]Target, error)
	// Targets lists the FC ports that a WWPN is zoned to and that are up.
	Targets(wwpn string) []Target
	// Login makes an initiator (iSCSI name, or WWPN) known at a port. It stays so
	// until Logout, over losses of the path too.
	// Errors: ErrUnreachable, ErrAuthentication.
	Login(ctx context.Context, initiator string, t Target, c CHAP) error
	// Logout ends that. What isn't logged in is no error.
	Logout(initiator string, t Target)
	// LUNs answers REPORT LUNS and INQUIRY at a port, by LUN in order.
	// Errors: ErrUnreachable when the path is down.
	LUNs(initiator string, t Target) ([]LUN, error)
	// Open opens the content of a logical unit. The caller closes it.
	Open(image string) (disk.Image, error)
}

// oneLUN is what a SAN may offer besides.
type oneLUN interface {
	LUN(initiator string, t Target, number int) (LUN, error)
}

// Errors of a SAN.
var (
	// ErrUnreachable: nothing answers there, or the path is down.
	ErrUnreachable = errors.New("host: target unreachable")
	// ErrAuthentication: the target refuses the CHAP name or secret, or wants one.
	ErrAuthentication = errors.New("host: target refuses the login")
	// ErrNoLUN: the target answers, and has no logical unit of that number for
	// the initiator.
	ErrNoLUN = errors.New("host: no such logical unit")
)

// Protocol of a storage network.
type Protocol string

// The protocols.
const (
	ISCSI Protocol = "iscsi"
	FC    Protocol = "fc"
)

// Target is a port of an array as an initiator reaches it. It is comparable.
type Target struct {
	Protocol Protocol
	Name     string // iSCSI name, or WWPN: 16 lower case hex digits
	Node     string // FC: WWNN, 16 lower case hex digits
	Portal   string // iSCSI: IP:port
	Tag      int    // iSCSI: target portal group tag
}

// LUN is a logical unit behind a port.
type LUN struct {
	Number int
	// WWN is what the unit says it is: 32 lower case hex digits, NAA type 6.
	WWN             string
	Vendor, Product string // e.g. "3PARdata", "VV"
	Bytes           int64
	ReadOnly        bool
	// Standby: the port answers INQUIRY and refuses I/O (ALUA), as the secondary
	// array of a Peer Persistence pair does.
	Standby bool
	// NonOptimized: the port takes I/O, others are better (ALUA).
	NonOptimized bool
	Image        string // for Open
}

// CHAP is what an initiator logs in with. The zero value is none.
type CHAP struct{ User, Secret string }

// String hides the secret.
func (c CHAP) String() string {
	if c == (CHAP{}) {
		return "none"
	}
	return c.User + ":********"
}

// Adapters are what a node is connected to a storage network with.
type Adapters struct {
	IQN string // iSCSI initiator name, in /etc/iscsi/initiatorname.iscsi; "": no iSCSI
	// WWPNs of FC host bus adapters, 16 lower case hex digits; none: no FC.
	WWPNs []string
	// Networks are the node's addresses as CIDR, e.g. "10.0.0.11/24".
	Networks []string
}
