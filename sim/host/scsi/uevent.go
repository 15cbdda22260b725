package scsi

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Action of a uevent.
type Action string

// The actions.
const (
	Add    Action = "add"
	Change Action = "change"
	Remove Action = "remove"
)

// Kind of thing that a uevent is about.
type Kind string

// The kinds, with what their names are.
const (
	KindHost    Kind = "host"    // host3
	KindSession Kind = "session" // session1, with its connection
	KindPort    Kind = "rport"   // rport-3:0-0, with its SCSI target
	KindDisk    Kind = "disk"    // sdb, with its SCSI device
	KindMap     Kind = "map"     // dm-0
	KindLink    Kind = "link"    // a symbolic link below /dev: disk/by-id/…
)

// Object is a thing of the stack that shows below /sys or /dev.
type Object struct {
	Kind Kind
	Name string
}

// Uevent says that something came, changed or went.
type Uevent struct {
	Action Action
	Object
}

// tell keeps an event until it is fetched. A change of what came or changed
// since the last fetch says nothing more.
func (s *Stack) tell(a Action, k Kind, name string) {
	o := Object{k, name}
	if a == Change {
		for _, e := range slices.Backward(s.report) {
			if e.Object == o {
				if e.Action != Remove {
					return
				}
				break
			}
		}
	}
	s.report = append(s.report, Uevent{a, o})
}

// Uevents returns what happened since the last call, in order. Sysfs, Nodes and
// Link describe an object as it is now, which is empty for one that went
// meanwhile.
func (s *Stack) Uevents() []Uevent {
	out := s.report
	s.report = nil
	return out
}

// claim is the wish of a device for a link; the highest priority has it, then
// who came first (udev's link_priority).
type claim struct {
	device   string
	priority int
}

// multipathPriority is the link priority of maps in multipath's udev rules.
const multipathPriority = 50

func (s *Stack) claim(device string, priority int, paths ...string) {
	for _, p := range paths {
		s.claims[p] = append(s.claims[p], claim{device, priority})
		slices.SortStableFunc(s.claims[p], func(a, b claim) int { return -cmp.Compare(a.priority, b.priority) })
		s.tell(Change, KindLink, p)
	}
}

func (s *Stack) claimDisk(d *Disk) {
	s.claim(d.Name, 0, byID(d.wwid)...)
	s.claim(d.Name, 0, "disk/by-path/"+d.byPath())
}

func (s *Stack) claimMap(m *Map) {
	s.claim(m.Name(), multipathPriority, byID(m.WWID)...)
	s.claim(m.Name(), multipathPriority, "mapper/"+m.Alias, "disk/by-id/dm-name-"+m.Alias, "disk/by-id/dm-uuid-mpath-3"+m.WWID)
}

func byID(wwn string) []string {
	return []string{"disk/by-id/wwn-0x" + wwn, "disk/by-id/scsi-3" + wwn}
}

// byPath is udev's ID_PATH with the LUN.
func (d *Disk) byPath() string {
	n := d.nexus
	if n.session != nil {
		return fmt.Sprintf("ip-%s-iscsi-%s-lun-%d", n.Target.Portal, n.Target.Name, d.LUN)
	}
	return fmt.Sprintf("pci-%s-fc-0x%s-lun-%d", n.host.slot(), n.Target.Name, d.LUN)
}

// links are the paths that a device may have claimed.
func (s *Stack) links(device string) []string {
	if d := s.disks[device]; d != nil {
		return append(byID(d.wwid), "disk/by-path/"+d.byPath())
	}
	if m := s.Map(device); m != nil {
		return append(byID(m.WWID), "mapper/"+m.Alias, "disk/by-id/dm-name-"+m.Alias, "disk/by-id/dm-uuid-mpath-3"+m.WWID)
	}
	return nil
}

// disclaim gives up what a device claims; it must still be known as what it was.
func (s *Stack) disclaim(device string) {
	for _, p := range s.links(device) {
		left := slices.DeleteFunc(s.claims[p], func(c claim) bool { return c.device == device })
		if len(left) == 0 {
			delete(s.claims, p)
		} else {
			s.claims[p] = left
		}
		s.tell(Change, KindLink, p)
	}
}

// Link gives the target of a link below /dev; false: it isn't there.
func (s *Stack) Link(path string) (target string, ok bool) {
	c := s.claims[path]
	if len(c) == 0 {
		return "", false
	}
	return strings.Repeat("../", strings.Count(path, "/")) + c[0].device, true
}

// DevLinks are the links below /dev that lead to a device.
func (s *Stack) DevLinks(device string) []string {
	var out []string
	for _, p := range s.links(device) {
		if c := s.claims[p]; len(c) > 0 && c[0].device == device {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}

// Device is a block device node below /dev.
type Device struct {
	Name string // sdb, dm-0
	No   Devno
}

// Node gives the device node of a disk or map; false for what has none.
func (s *Stack) Node(o Object) (Device, bool) {
	switch o.Kind {
	case KindDisk:
		if d := s.disks[o.Name]; d != nil {
			return Device{d.Name, d.No}, true
		}
	case KindMap:
		if m := s.Map(o.Name); m != nil {
			return Device{m.Name(), Devno{DMMajor, m.Minor}}, true
		}
	}
	return Device{}, false
}
