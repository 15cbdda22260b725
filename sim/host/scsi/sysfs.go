package scsi

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// File is an entry below /sys. What is not a link and has neither Read nor Write
// is a directory.
type File struct {
	Path string // relative to /sys
	Link string // target of a symbolic link, relative to its directory
	// Read makes the content; its error is a syscall.Errno.
	Read func() ([]byte, error)
	// Write takes what is written; its error is a syscall.Errno.
	Write func([]byte) error
}

// files collects entries below a directory.
type files struct {
	dir  string
	list []File
}

func (f *files) text(name string, gen func() string) {
	f.list = append(f.list, File{Path: path.Join(f.dir, name), Read: func() ([]byte, error) { return []byte(gen() + "\n"), nil }})
}

func (f *files) fixed(name, text string) { f.text(name, func() string { return text }) }

func (f *files) read(name string, gen func() ([]byte, error)) {
	f.list = append(f.list, File{Path: path.Join(f.dir, name), Read: gen})
}

func (f *files) write(name string, read func() string, set func(string) error) {
	e := File{Path: path.Join(f.dir, name), Write: func(b []byte) error { return set(strings.TrimSpace(string(b))) }}
	if read != nil {
		e.Read = func() ([]byte, error) { return []byte(read() + "\n"), nil }
	}
	f.list = append(f.list, e)
}

func (f *files) empty(name string) { f.list = append(f.list, File{Path: path.Join(f.dir, name)}) }

// link makes from (absolute in /sys, or relative to the directory) lead to a path in /sys.
func (f *files) link(from, to string) {
	rel, err := filepath.Rel("/"+path.Dir(from), "/"+to)
	if err != nil {
		return
	}
	f.list = append(f.list, File{Path: from, Link: filepath.ToSlash(rel)})
}

// class makes the directory of a class device, with its link in /sys/class and
// the one back to its device.
func (f *files) class(device, class, name string) *files {
	c := &files{dir: path.Join(device, class, name)}
	f.link("class/"+class+"/"+name, c.dir)
	f.link(path.Join(c.dir, "device"), device)
	return c
}

func (f *files) add(c *files) { f.list = append(f.list, c.list...) }

// Static are the directories that are there as soon as the drivers are.
func (s *Stack) Static() []File {
	f := &files{}
	for _, d := range []string{"block", "class/block", "class/scsi_host", "class/scsi_device", "class/scsi_disk", "bus/scsi/devices", "dev/block"} {
		f.empty(d)
	}
	if s.cfg.Adapters.IQN != "" {
		for _, c := range []string{"iscsi_host", "iscsi_session", "iscsi_connection"} {
			f.empty("class/" + c)
		}
	}
	if len(s.cfg.Adapters.WWPNs) > 0 {
		for _, c := range []string{"fc_host", "fc_remote_ports", "fc_transport"} {
			f.empty("class/" + c)
		}
	}
	return f.list
}

// Sysfs are the entries of an object below /sys. They are the same as long as no
// uevent tells of a change; their content may change at any time.
func (s *Stack) Sysfs(o Object) []File {
	f := &files{}
	switch o.Kind {
	case KindHost:
		for _, h := range s.hosts {
			if h.name() == o.Name {
				s.sysHost(f, h)
			}
		}
	case KindSession:
		for _, x := range s.sessions {
			if x.name() == o.Name {
				s.sysSession(f, x)
			}
		}
	case KindPort:
		for _, h := range s.hosts {
			for _, n := range h.nexuses {
				if h.Protocol == FC && n.rport() == o.Name {
					s.sysPort(f, n)
				}
			}
		}
	case KindDisk:
		if d := s.disks[o.Name]; d != nil {
			s.sysDisk(f, d)
		}
	case KindMap:
		if m := s.Map(o.Name); m != nil {
			s.sysMap(f, m)
		}
	}
	return f.list
}

// slot is the PCI address of an adapter.
func (h *Host) slot() string { return fmt.Sprintf("0000:00:%02x.0", 4+h.index) }

func (h *Host) dir() string {
	if h.Protocol == FC {
		return "devices/pci0000:00/" + h.slot() + "/" + h.name()
	}
	return "devices/platform/" + h.name()
}

// dir is where a SCSI target's parent is: session or remote port.
func (n *nexus) dir() string {
	if n.session != nil {
		return n.host.dir() + "/" + n.session.name()
	}
	return n.host.dir() + "/" + n.rport()
}

func (n *nexus) scsiTarget() string { return fmt.Sprintf("target%d:0:%d", n.host.Number, n.id) }

func (d *Disk) dir() string {
	return d.nexus.dir() + "/" + d.nexus.scsiTarget() + "/" + d.Address.String()
}

func (d *Disk) block() string { return d.dir() + "/block/" + d.Name }

func (m *Map) block() string { return "devices/virtual/block/" + m.Name() }

func (s *Stack) sysHost(f *files, h *Host) {
	c := f.class(h.dir(), "scsi_host", h.name())
	c.write("scan", nil, func(text string) error { return s.scanText(h.Number, text) })
	driver := "iscsi_tcp"
	if h.Protocol == FC {
		driver = "qla2xxx"
	}
	c.fixed("proc_name", driver)
	c.fixed("state", "running")
	c.fixed("unique_id", strconv.Itoa(h.Number))
	c.fixed("host_busy", "0")
	c.fixed("can_queue", "128")
	f.add(c)
	if h.Protocol == ISCSI {
		c := f.class(h.dir(), "iscsi_host", h.name())
		c.fixed("initiatorname", s.cfg.Adapters.IQN)
		c.fixed("ipaddress", s.address())
		c.fixed("hwaddress", "<NULL>")
		c.fixed("netdev", "<NULL>")
		f.add(c)
		return
	}
	c = f.class(h.dir(), "fc_host", h.name())
	c.fixed("port_name", "0x"+h.WWPN)
	c.fixed("node_name", "0x"+nodeName(h.WWPN))
	c.fixed("port_id", fmt.Sprintf("0x01%02x00", h.index))
	c.text("port_state", func() string {
		if len(s.cfg.SAN.Targets(h.WWPN)) == 0 {
			return "Linkdown" // nothing is seen on the fabric
		}
		return "Online"
	})
	c.fixed("port_type", "NPort (fabric via point-to-point)")
	c.fixed("speed", "16 Gbit")
	c.fixed("supported_speeds", "4 Gbit, 8 Gbit, 16 Gbit")
	c.fixed("supported_classes", "Class 3")
	c.fixed("symbolic_name", "QLE2692 FW:v9.08.02 DVR:v10.02.09")
	c.fixed("fabric_name", "0x0000000000000000")
	f.add(c)
}

// address is the node's first address.
func (s *Stack) address() string {
	if len(s.cfg.Adapters.Networks) == 0 {
		return "<NULL>"
	}
	ip, _, _ := strings.Cut(s.cfg.Adapters.Networks[0], "/")
	return ip
}

// nodeName is the WWNN of an adapter's port: NAA type 1 and 2 names (1000…,
// 2100…) are of the same adapter with another first byte.
func nodeName(wwpn string) string {
	if len(wwpn) == 16 && (wwpn[0] == '1' || wwpn[0] == '2') {
		return "20" + wwpn[2:]
	}
	return wwpn
}

// scanText is a write to scan: three numbers, "-" for any.
func (s *Stack) scanText(host int, text string) error {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return syscall.EINVAL
	}
	var v [3]int
	for i, x := range fields {
		if x == "-" {
			v[i] = Any
			continue
		}
		n, err := strconv.Atoi(x)
		if err != nil || n < 0 {
			return syscall.EINVAL
		}
		v[i] = n
	}
	return s.Scan(host, v[0], v[1], v[2])
}

func (s *Stack) sysSession(f *files, x *Session) {
	dir := x.nexus.dir()
	c := f.class(dir, "iscsi_session", x.name())
	c.fixed("targetname", x.Key.Target)
	c.fixed("tpgt", strconv.Itoa(x.Tag))
	c.fixed("initiatorname", x.Initiator)
	c.fixed("ifacename", "default")
	c.fixed("username", orNull(x.user))
	c.fixed("recovery_tmo", s.setting(x, "node.session.timeo.replacement_timeout"))
	c.fixed("target_id", "0")
	c.text("state", func() string {
		if s.Up(x) {
			return "LOGGED_IN"
		}
		return "FAILED"
	})
	f.add(c)
	conn := fmt.Sprintf("connection%d:0", x.ID)
	c = f.class(dir+"/"+conn, "iscsi_connection", conn)
	ip, port := x.Key.address()
	c.fixed("persistent_address", ip)
	c.fixed("persistent_port", port)
	// Of a connection that is down these two can't be read.
	live := func(text string) func() ([]byte, error) {
		return func() ([]byte, error) {
			if !s.Up(x) {
				return nil, syscall.ENOTCONN
			}
			return []byte(text + "\n"), nil
		}
	}
	c.read("address", live(ip))
	c.read("port", live(port))
	c.text("state", func() string {
		if s.Up(x) {
			return "up"
		}
		return "failed"
	})
	f.add(c)
}

func (s *Stack) setting(x *Session, name string) string {
	if r := s.records[x.Key]; r != nil {
		return r.Get(name)
	}
	return settingDefaults[name]
}

func orNull(text string) string {
	if text == "" {
		return "<NULL>"
	}
	return text
}

func (s *Stack) sysPort(f *files, n *nexus) {
	c := f.class(n.dir(), "fc_remote_ports", n.rport())
	c.fixed("port_name", "0x"+n.Target.Name)
	c.fixed("node_name", "0x"+n.Target.Node)
	c.fixed("port_id", fmt.Sprintf("0x02%02x00", n.port))
	c.fixed("roles", "FCP Target")
	c.fixed("scsi_target_id", strconv.Itoa(n.id))
	c.fixed("dev_loss_tmo", "2147483647")
	c.fixed("fast_io_fail_tmo", "10")
	c.text("port_state", func() string {
		if s.up(n) {
			return "Online"
		}
		return "Blocked" // dev_loss_tmo is infinity
	})
	f.add(c)
	target := n.scsiTarget()
	c = f.class(n.dir()+"/"+target, "fc_transport", target)
	c.fixed("port_name", "0x"+n.Target.Name)
	c.fixed("node_name", "0x"+n.Target.Node)
	c.fixed("port_id", fmt.Sprintf("0x02%02x00", n.port))
	f.add(c)
}

func (s *Stack) sysDisk(f *files, d *Disk) {
	at := d.Address.String()
	dir := d.dir()
	c := &files{dir: dir}
	c.fixed("vendor", fmt.Sprintf("%-8s", d.Vendor))
	c.fixed("model", fmt.Sprintf("%-16s", d.Product))
	c.fixed("rev", revision)
	c.fixed("type", "0")
	c.fixed("scsi_level", "7")
	c.fixed("timeout", "30")
	c.fixed("queue_depth", "32")
	c.text("wwid", func() string { return "naa." + d.WWN })
	c.read("vpd_pg83", func() ([]byte, error) { return page83(d.WWN), nil })
	c.read("vpd_pg80", func() ([]byte, error) { return page80(d.WWN), nil })
	c.fixed("dh_state", "alua")
	c.text("access_state", func() string {
		switch s.priority(d) {
		case 1:
			return "standby"
		case 10:
			return "active/non-optimized"
		}
		return "active/optimized"
	})
	c.write("state", func() string { return s.state(d) }, d.setState)
	c.write("delete", nil, func(string) error { return s.Delete(d.Name) })
	c.write("rescan", nil, func(string) error { return s.Rescan(d.Name) })
	f.add(c)
	f.link("bus/scsi/devices/"+at, dir)
	f.add(f.class(dir, "scsi_device", at))
	f.add(f.class(dir, "scsi_disk", at))
	blockFiles(f, d.block(), d.Name, d.No, func() int64 { return d.Bytes }, func() bool { return d.ReadOnly })
	f.link(d.block()+"/device", dir)
	if d.inMap != nil {
		f.link(d.block()+"/holders/"+d.inMap.Name(), d.inMap.block())
	}
}

func (s *Stack) sysMap(f *files, m *Map) {
	blockFiles(f, m.block(), m.Name(), Devno{DMMajor, m.Minor}, func() int64 { return m.Bytes }, func() bool { return m.ReadOnly })
	c := &files{dir: m.block() + "/dm"}
	c.fixed("name", m.Alias)
	c.fixed("uuid", "mpath-3"+m.WWID)
	c.text("suspended", func() string { return oneIf(m.suspended) })
	f.add(c)
	for _, d := range m.paths {
		f.link(m.block()+"/slaves/"+d.Name, d.block())
	}
}

// blockFiles are those that every block device has.
func blockFiles(f *files, dir, name string, no Devno, size func() int64, ro func() bool) {
	f.link("block/"+name, dir)
	f.link("class/block/"+name, dir)
	f.link("dev/block/"+no.String(), dir)
	c := &files{dir: dir}
	c.text("size", func() string { return strconv.FormatInt(size()/512, 10) })
	c.text("ro", func() string { return oneIf(ro()) })
	c.fixed("dev", no.String())
	c.fixed("removable", "0")
	c.fixed("uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=%s\nDEVTYPE=disk", no.Major, no.Minor, name))
	c.fixed("queue/logical_block_size", "512")
	c.fixed("queue/physical_block_size", "512")
	c.fixed("queue/rotational", "0")
	c.empty("holders")
	c.empty("slaves")
	f.add(c)
}

func oneIf(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// revision is the product revision in INQUIRY: of the array's InForm OS in 3PAR's way.
const revision = "3310"

// page83 is the VPD page "device identification" with one NAA descriptor.
func page83(wwn string) []byte {
	id, _ := hex.DecodeString(wwn)
	b := []byte{0, 0x83, 0, 0, 1, 3, 0, byte(len(id))}
	b = append(b, id...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	return b
}

// serial is the unit serial number (VPD page 80): the array's number.
// Unverified: that the array's serial number is there, and not one of the volume.
func serial(wwn string) string {
	n, err := strconv.ParseUint(wwn[max(0, len(wwn)-8):], 16, 32)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

func page80(wwn string) []byte {
	s := serial(wwn)
	return append([]byte{0, 0x80, 0, byte(len(s))}, s...)
}
