package san

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	sysBlock    = "/sys/block"
	sysSCSIHost = "/sys/class/scsi_host"
	sysDevice   = "/sys/class/scsi_device"
	sysFCHost   = "/sys/class/fc_host"
	sysFCPort   = "/sys/class/fc_remote_ports"
	sysSession  = "/sys/class/iscsi_session"
)

// disk is a SCSI disk: one path to a logical unit.
type disk struct {
	name   string // sda
	host   string // host3, the adapter
	lun    int    // -1: not known
	wwn    string // hex digits of the identity that the kernel has of it; "" when it has none
	vendor string
	state  string // running, offline, …
	target string // iSCSI name, or WWPN, of the port that it is behind; "" when not known
	holder mpath  // what device-mapper has made of it; zero: nothing
}

// remote says whether a disk is behind a storage network. A disk of the node
// itself is none of this package's business.
func (d disk) remote() bool { return d.target != "" || d.vendor == "3PARdata" }

// mpath is a map of device-mapper, most often of multipath.
type mpath struct {
	dm     string // dm-0
	name   string // mpatha
	uuid   string
	slaves []string
	held   bool // another block device (LVM, crypt) is on it
}

func (m mpath) node() string { return "/dev/mapper/" + m.name }

func (m mpath) multipath() bool { return strings.HasPrefix(m.uuid, mapPrefix) }

// bus is what sysfs shows of a volume at a moment: its map, and the disks that
// are, were, or stand in the place of, paths to it.
type bus struct {
	own    mpath
	mapped bool // own is there
	disks  []disk
}

func (b bus) disk(name string) (disk, bool) {
	i := slices.IndexFunc(b.disks, func(d disk) bool { return d.name == name })
	if i < 0 {
		return disk{}, false
	}
	return b.disks[i], true
}

// line reads a one-line file of sysfs; "" when it isn't there.
func (s *SAN) line(p ...string) string {
	b, err := s.host.ReadFile(path.Join(p...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// names are the entries of a directory that start with a prefix, in order. A
// directory that isn't there has none.
func (s *SAN) names(dir, prefix string) ([]string, error) {
	entries, err := s.host.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, e.Name())
		}
	}
	slices.Sort(out)
	return out, nil
}

// look reads what there is of the volume with a serial number: the disks in its
// map, those at some LUNs, whoever they are, and, with all, those with its
// identity, wherever they are. A node has thousands of disks: of the others
// nothing but that identity is read.
func (s *SAN) look(serial string, luns []int, all bool) (bus, error) {
	var b bus
	var err error
	if b.own, b.mapped, err = s.mapOf(serial); err != nil {
		return b, err
	}
	disks, err := s.names(sysBlock, "sd")
	if err != nil {
		return b, err
	}
	at, known, err := s.at(luns)
	if err != nil {
		return b, err
	}
	for _, n := range disks {
		sure := at[n] || b.mapped && slices.Contains(b.own.slaves, n) || all && s.wwn(n) == serial
		if !sure && known {
			continue
		}
		d, err := s.disk(n)
		if err != nil {
			return b, err
		}
		if sure || slices.Contains(luns, d.lun) {
			b.disks = append(b.disks, d)
		}
	}
	return b, nil
}

// at are the names of the disks at some LUNs; false when the kernel has no list
// by address.
func (s *SAN) at(luns []int) (map[string]bool, bool, error) {
	out := map[string]bool{}
	addresses, err := s.names(sysDevice, "")
	if err != nil || len(luns) == 0 {
		return out, true, err
	}
	for _, a := range addresses {
		if _, lun, ok := address(a); !ok || !slices.Contains(luns, lun) {
			continue
		}
		disks, err := s.names(path.Join(sysDevice, a, "device/block"), "sd")
		if err != nil {
			return nil, false, err
		}
		for _, d := range disks {
			out[d] = true
		}
	}
	return out, len(addresses) > 0, nil
}

// mapOf finds the map of a volume, by udev's link where there is one.
func (s *SAN) mapOf(serial string) (mpath, bool, error) {
	uuid := mapUUID(serial)
	if real, err := s.host.EvalSymlinks("/dev/disk/by-id/dm-uuid-" + uuid); err == nil {
		if m, err := s.mpath(path.Base(real)); err == nil && m.uuid == uuid {
			return m, true, nil
		}
	}
	all, err := s.names(sysBlock, "dm-")
	if err != nil {
		return mpath{}, false, err
	}
	for _, n := range all {
		if s.line(sysBlock, n, "dm/uuid") == uuid {
			m, err := s.mpath(n)
			return m, err == nil, err
		}
	}
	return mpath{}, false, nil
}

func (s *SAN) mpath(dm string) (mpath, error) {
	dir := path.Join(sysBlock, dm)
	m := mpath{dm: dm, uuid: s.line(dir, "dm/uuid"), name: s.line(dir, "dm/name")}
	if !m.multipath() {
		return m, nil
	}
	var err error
	if m.slaves, err = s.names(path.Join(dir, "slaves"), ""); err != nil {
		return m, err
	}
	holders, err := s.names(path.Join(dir, "holders"), "")
	m.held = len(holders) > 0
	return m, err
}

func (s *SAN) disk(name string) (disk, error) {
	dir := path.Join(sysBlock, name, "device")
	d := disk{name: name, lun: -1, wwn: s.wwn(name), vendor: s.line(dir, "vendor"), state: s.line(dir, "state")}
	// /sys/devices/…/host3/session1/target3:0:0/3:0:0:5, or, over FC,
	// …/host7/rport-7:0-1/target7:0:1/7:0:1:5.
	if real, err := s.host.EvalSymlinks(dir); err == nil {
		if host, lun, ok := address(path.Base(real)); ok {
			d.host, d.lun = host, lun
		}
		for e := range strings.SplitSeq(real, "/") {
			switch {
			case strings.HasPrefix(e, "session"):
				d.target = s.iscsiName(e)
			case strings.HasPrefix(e, "rport-"):
				d.target = wwpn(s.line(sysFCPort, e, "port_name"))
			}
		}
	}
	if d.lun < 0 {
		all, err := s.names(path.Join(dir, "scsi_device"), "")
		if err != nil {
			return d, err
		}
		if len(all) == 1 {
			if host, lun, ok := address(all[0]); ok {
				d.host, d.lun = host, lun
			}
		}
	}
	if d.target == "" && d.host != "" {
		sessions, err := s.names(path.Join(sysSCSIHost, d.host, "device"), "session")
		if err != nil {
			return d, err
		}
		if len(sessions) > 0 {
			d.target = s.iscsiName(sessions[0])
		}
	}
	holders, err := s.names(path.Join(sysBlock, name, "holders"), "dm-")
	if err == nil && len(holders) > 0 {
		d.holder, err = s.mpath(holders[0])
	}
	return d, err
}

// address takes host and LUN from H:C:T:L.
func address(hctl string) (host string, lun int, ok bool) {
	f := strings.Split(hctl, ":")
	if len(f) != 4 {
		return "", -1, false
	}
	lun, err := strconv.Atoi(f[3])
	if err != nil {
		return "", -1, false
	}
	if lun >= flat {
		lun -= flat
	}
	return "host" + f[0], lun, true
}

// flat is what Linux adds to the number of a logical unit that the array shows
// with flat space addressing (SAM-5, 4.7.7.3), as it has to from 256 on.
const flat = 0x4000

// wwn is the identity of a disk as the kernel has it (VPD page 0x83).
func (s *SAN) wwn(name string) string {
	id, ok := strings.CutPrefix(strings.ToLower(s.line(sysBlock, name, "device/wwid")), "naa.")
	if !ok {
		return ""
	}
	return id
}

// iscsiName is the target of a session.
func (s *SAN) iscsiName(session string) string {
	return strings.ToLower(s.line(sysSession, session, "targetname"))
}

func wwpn(s string) string { return strings.TrimPrefix(strings.ToLower(s), "0x") }

// targetsByHost are the iSCSI names by SCSI host: each session has a host of its
// own.
func (s *SAN) targetsByHost() (map[string]string, error) {
	hosts, err := s.names(sysSCSIHost, "host")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, h := range hosts {
		sessions, err := s.names(path.Join(sysSCSIHost, h, "device"), "session")
		if err != nil {
			return nil, err
		}
		if len(sessions) > 0 {
			out[h] = s.iscsiName(sessions[0])
		}
	}
	return out, nil
}

// errSilent: a disk can't be asked, since its connection is lost.
var errSilent = errors.New("san: disk doesn't answer")

// inquire asks a disk again who it is and how large. A disk that is gone has no
// identity. One without a connection is not asked: the kernel would wait for the
// connection, for minutes, and not let go of who asks.
func (s *SAN) inquire(d disk) (wwn string, err error) {
	if d.state != "" && d.state != "running" {
		return "", fmt.Errorf("%w: %s is %s", errSilent, d.name, d.state)
	}
	err = s.host.WriteFile(path.Join(sysBlock, d.name, "device/rescan"), []byte("1"), 0o200)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("rescan of %s: %w", d.name, err)
	}
	return s.wwn(d.name), nil
}

// remove takes a disk off the node; one that is gone is no error.
func (s *SAN) remove(name, why string) error {
	s.log.Info("deleting a path", "disk", name, "why", why)
	err := s.host.WriteFile(path.Join(sysBlock, name, "device/delete"), []byte("1"), 0o200)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete of %s (%s): %w", name, why, err)
	}
	return nil
}

// scan looks for the volume's logical units where they can be: behind sessions to
// its targets, or behind FC ports of its arrays.
//
// Unverified: what the provider of an array calls the targets of an FC volume.
// Where it isn't the WWPNs of ports, all ports are asked.
func (s *SAN) scan(e export) error {
	places, err := s.places(e)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range places {
		f := path.Join(sysSCSIHost, p.host, "scan")
		if err := s.host.WriteFile(f, []byte("- "+p.target+" "+strconv.Itoa(p.lun)), 0o200); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("scan of %s: %w", p.host, err))
		}
	}
	return errors.Join(errs...)
}

// place is where a scan looks.
type place struct {
	host   string
	target string // number of the SCSI target, "-" for all
	lun    int
}

func (s *SAN) places(e export) ([]place, error) {
	var out []place
	add := func(host, target string, lun int) {
		numbers := []int{lun}
		if lun >= 256 {
			numbers = append(numbers, lun+flat)
		}
		for _, n := range numbers {
			if p := (place{host, target, n}); !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	if e.protocol == iSCSI {
		targets, err := s.targetsByHost()
		if err != nil {
			return nil, err
		}
		for _, h := range sorted(targets) {
			for _, a := range e.arrays {
				if slices.Contains(a.targets, targets[h]) {
					add(h, "-", a.lun)
				}
			}
		}
		return out, nil
	}
	ports, err := s.names(sysFCPort, "rport-")
	if err != nil {
		return nil, err
	}
	hosts, err := s.names(sysFCHost, "host")
	if err != nil {
		return nil, err
	}
	hosts = slices.DeleteFunc(hosts, func(h string) bool {
		st := s.line(sysFCHost, h, "port_state")
		return st != "" && !strings.EqualFold(st, "Online")
	})
	for _, a := range e.arrays {
		known := false
		for _, p := range ports {
			// rport-7:0-1 is a port that host7 sees.
			number, _, _ := strings.Cut(strings.TrimPrefix(p, "rport-"), ":")
			id := s.line(sysFCPort, p, "scsi_target_id")
			if !slices.Contains(a.targets, wwpn(s.line(sysFCPort, p, "port_name"))) || id == "" || id == "-1" {
				continue
			}
			known = true
			if h := "host" + number; slices.Contains(hosts, h) {
				add(h, id, a.lun)
			}
		}
		if !known {
			for _, h := range hosts {
				add(h, "-", a.lun)
			}
		}
	}
	return out, nil
}

func (e export) luns() []int {
	var out []int
	for _, a := range e.arrays {
		if !slices.Contains(out, a.lun) {
			out = append(out, a.lun)
		}
	}
	return out
}

// checked are the path checker's results by disk ("ready", "faulty", "ghost"
// for a standby port, …). A node without multipathd has none.
func (s *SAN) checked(ctx context.Context) map[string]string {
	out, err := s.run(ctx, "multipathd", "show", "paths", "format", "%w %d %t %i %o %T %z %s %m")
	if err != nil {
		s.log.Warn("states of paths", "err", err)
		return nil
	}
	states := map[string]string{}
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) >= 6 && strings.HasPrefix(f[1], "sd") {
			states[f[1]] = f[5]
		}
	}
	return states
}

// usable says whether I/O over a path can succeed now.
func usable(d disk, states map[string]string) bool {
	if d.state != "" && d.state != "running" {
		return false
	}
	switch states[d.name] {
	case "faulty", "down", "timeout", "ghost", "removed", "disconnected":
		return false
	}
	return true
}
