package scsi

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/csilab/csilab/sim/disk"
)

// Address is where a SCSI device is: host, channel, target id, LUN.
type Address struct{ Host, Channel, ID, LUN int }

// String is as in /sys/bus/scsi/devices.
func (a Address) String() string { return fmt.Sprintf("%d:%d:%d:%d", a.Host, a.Channel, a.ID, a.LUN) }

func compareAddresses(a, b Address) int {
	return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Channel, b.Channel), cmp.Compare(a.ID, b.ID), cmp.Compare(a.LUN, b.LUN))
}

// Disk is a SCSI disk as Linux knows it: what it said of itself when it was
// found or rescanned last, which need not be what is behind it now.
type Disk struct {
	Name string // sdb
	Address
	No              Devno
	WWN             string // 32 lower case hex digits
	Vendor, Product string
	Bytes           int64
	ReadOnly        bool

	nexus *nexus
	// wwid is the identity that udev and multipathd took over: that of the last
	// uevent.
	wwid    string
	offline bool // by hand, through device/state
	failed  bool // as the path checker saw it last
	far     bool // active/non-optimized, likewise
	refused bool // multipathd has let it go: it has another size than its map
	inMap   *Map

	image  string // that handle is open on
	handle disk.Image
}

// close drops the open image.
func (d *Disk) close() {
	if d.handle != nil {
		d.handle.Close()
	}
	d.handle, d.image = nil, ""
}

// Disks are the disks by address.
func (s *Stack) Disks() []*Disk {
	return slices.SortedFunc(maps.Values(s.disks), func(a, b *Disk) int { return compareAddresses(a.Address, b.Address) })
}

// Disk finds a disk by its name (sdb), or nil.
func (s *Stack) Disk(name string) *Disk { return s.disks[name] }

func (s *Stack) disksOf(n *nexus) []*Disk {
	var out []*Disk
	for _, d := range s.disks {
		if d.nexus == n {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b *Disk) int { return compareAddresses(a.Address, b.Address) })
	return out
}

// Any is the wildcard of Scan ("-").
const Any = -1

// Scan asks the targets of a SCSI host for their logical units; channel, id and
// lun narrow it down, Any takes all. Units that Linux has a disk for already are
// not asked again: their identity and size stay as they were
// (scsi_probe_and_add_lun in the kernel's scsi_scan.c). Errors: ENODEV.
func (s *Stack) Scan(host, channel, id, lun int) error {
	h := s.hosts[host]
	if h == nil {
		return syscall.ENODEV
	}
	s.Refresh()
	if channel > 0 {
		return nil
	}
	for _, n := range h.nexuses {
		if id != Any && id != n.id {
			continue
		}
		if lun == Any {
			s.scan(n, nil)
		} else if l, err := s.unit(n, lun); err == nil {
			s.found(n, l)
		}
	}
	return nil
}

// scan adds the disks of a target; wanted nil: all.
func (s *Stack) scan(n *nexus, wanted func(lun int) bool) {
	luns, err := s.cfg.SAN.LUNs(n.Initiator, n.Target)
	if err != nil {
		return
	}
	for _, l := range luns {
		if wanted == nil || wanted(l.Number) {
			s.found(n, l)
		}
	}
}

// found makes the disk of a logical unit, unless there is one at its address.
func (s *Stack) found(n *nexus, l LUN) {
	at := Address{n.host.Number, 0, n.id, l.Number}
	if s.at[at] != nil {
		return
	}
	i := 1 // sda is the node's own
	for s.disks[DiskName(i)] != nil || s.node.Taken(DiskName(i)) {
		i++
	}
	d := &Disk{Name: DiskName(i), No: DiskNo(i), Address: at, nexus: n}
	d.learn(l)
	d.wwid = d.WWN
	s.disks[d.Name], s.at[at] = d, d
	s.tell(Add, KindDisk, d.Name)
	s.claimDisk(d)
	s.pathAdded(d)
}

// learn takes over what a unit says of itself.
func (d *Disk) learn(l LUN) {
	d.WWN, d.Vendor, d.Product, d.Bytes, d.ReadOnly = l.WWN, l.Vendor, l.Product, l.Bytes, l.ReadOnly
}

// Rescan asks the unit behind a disk for its identity and size anew (a write to
// device/rescan). Where nothing is behind it any more its size becomes 0, which
// is what READ CAPACITY's refusal comes to; where the port doesn't answer
// nothing changes. udev and multipathd hear of it only when the size changed.
// Errors: ENODEV.
func (s *Stack) Rescan(name string) error {
	d := s.disks[name]
	if d == nil {
		return syscall.ENODEV
	}
	was := d.Bytes
	l, err := s.ask(d)
	switch {
	case d.offline || errors.Is(err, ErrUnreachable):
		return nil
	case err != nil:
		// Unverified: what of the identity Linux keeps then; it can't read a new one.
		d.Bytes = 0
	default:
		vendor, product := d.Vendor, d.Product
		d.learn(l)
		// INQUIRY's standard data is read once (scsi_rescan_device).
		d.Vendor, d.Product = vendor, product
	}
	if d.Bytes != was {
		s.changed(d)
	}
	return nil
}

// changed is udev's and multipathd's part in a "change" uevent of a disk: they
// read its identity anew. A path whose identity changed leaves its map
// (uev_update_path in multipathd) and is taken for the other unit's.
func (s *Stack) changed(d *Disk) {
	s.tell(Change, KindDisk, d.Name)
	if d.wwid != d.WWN {
		s.pathRemoved(d)
		s.disclaim(d.Name)
		d.wwid = d.WWN
		s.claimDisk(d)
		s.pathAdded(d)
	}
}

// Trigger makes udev look at a disk again (udevadm trigger).
func (s *Stack) Trigger(name string) {
	if d := s.disks[name]; d != nil {
		s.changed(d)
	}
}

// Delete takes a disk away (a write to device/delete): what the page cache has of
// it is written where it still can be. Errors: ENODEV.
func (s *Stack) Delete(name string) error {
	d := s.disks[name]
	if d == nil {
		return syscall.ENODEV
	}
	_ = s.node.Flush(name) // nobody is told
	s.pathRemoved(d)
	s.disclaim(name)
	delete(s.disks, name)
	delete(s.at, d.Address)
	d.close()
	s.tell(Remove, KindDisk, name)
	return nil
}

// ask resolves a disk through the network, as each of its commands does. Errors:
// ErrUnreachable, ErrNoLUN.
func (s *Stack) ask(d *Disk) (LUN, error) { return s.unit(d.nexus, d.LUN) }

// unit asks a target for one of its units.
func (s *Stack) unit(n *nexus, lun int) (LUN, error) {
	if s.lun != nil {
		return s.lun.LUN(n.Initiator, n.Target, lun)
	}
	luns, err := s.cfg.SAN.LUNs(n.Initiator, n.Target)
	if err != nil {
		return LUN{}, err
	}
	return pick(luns, lun)
}

// Condition is what a path checker finds (TEST UNIT READY), in multipathd's words.
type Condition string

// The conditions.
const (
	Ready  Condition = "ready"
	Ghost  Condition = "ghost" // standby
	Faulty Condition = "faulty"
)

// Check looks at the path of a disk.
func (s *Stack) Check(d *Disk) Condition {
	c, _ := s.look(d)
	return c
}

// priority is what the alua prioritizer makes of a path: 50 for
// active/optimized, 10 for active/non-optimized, 1 for standby. One that can't be
// asked keeps what it had.
func (s *Stack) priority(d *Disk) int {
	switch c := s.Check(d); {
	case c == Ghost:
		return 1
	case d.far:
		return 10
	}
	return 50
}

func (s *Stack) look(d *Disk) (Condition, LUN) {
	l, err := s.ask(d)
	if err != nil || d.offline {
		d.failed = true
		return Faulty, l
	}
	if d.failed {
		d.failed = false
		if s.recheck && l.WWN != d.wwid {
			d.learn(l)
			s.changed(d)
		}
	}
	d.far = l.NonOptimized
	if l.Standby {
		return Ghost, l
	}
	return Ready, l
}

// state is the text of device/state. Once the timeouts are over, a disk behind a
// port that is lost is transport-offline.
func (s *Stack) state(d *Disk) string {
	if d.offline {
		return "offline"
	}
	if _, err := s.ask(d); errors.Is(err, ErrUnreachable) {
		return "transport-offline"
	}
	return "running"
}

// setState is a write to device/state. Errors: EINVAL.
func (d *Disk) setState(to string) error {
	switch to {
	case "offline":
		d.offline = true
	case "running":
		d.offline = false
	default:
		return syscall.EINVAL
	}
	return nil
}

// Map is the multipath map that has a disk, or nil.
func (d *Disk) Map() *Map { return d.inMap }

// ProcSCSI is the text of /proc/scsi/scsi.
func (s *Stack) ProcSCSI() []byte {
	out := []byte("Attached devices:\n")
	for _, d := range s.Disks() {
		out = fmt.Appendf(out, "Host: scsi%d Channel: %02d Id: %02d Lun: %02d\n  Vendor: %-8s Model: %-16s Rev: %s\n  Type:   Direct-Access                    ANSI  SCSI revision: 06\n",
			d.Host, d.Channel, d.ID, d.LUN, d.Vendor, d.Product, revision)
	}
	return out
}
