package scsi

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

func init() {
	commands["sg_inq"] = sgInq
	commands["scsi_id"] = scsiID
}

// opened finds the disk, or a path of the map, behind a path in /dev.
func (s *Stack) opened(p string) *Disk {
	rest, ok := strings.CutPrefix(p, "/dev/")
	if !ok {
		return nil
	}
	if target, ok := s.Link(rest); ok {
		rest = target[strings.LastIndex(target, "/")+1:]
	}
	if d := s.disks[rest]; d != nil {
		return d
	}
	if m := s.Map(rest); m != nil {
		for _, d := range m.Paths() {
			if s.Check(d) != Faulty {
				return d
			}
		}
	}
	return nil
}

var sgInqOptions = map[string]spelling{
	"-p": {"page", "="}, "--page": {"page", "="}, "-e": {"evpd", ""}, "--vpd": {"evpd", ""}, "-i": {"id", ""}, "--id": {"id", ""},
	"-u": {"export", ""}, "--export": {"export", ""}, "-v": {"verbose", ""}, "-r": {"raw", ""}, "--raw": {"raw", ""},
}

// sgInq is sg_inq(8): it asks the unit itself, so that it tells what is behind a
// disk now, unlike sysfs and udev.
func sgInq(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, sgInqOptions)
	if err == nil && len(o.operand) != 1 {
		err = errors.New("one DEVICE is wanted")
	}
	if err != nil {
		fmt.Fprintf(errs, "sg_inq: %v\n", err)
		return 1
	}
	dev := o.operand[0]
	d := s.opened(dev)
	if d == nil {
		fmt.Fprintf(errs, "sg_inq: error opening file: %s: No such file or directory\n", dev)
		return 50 // SG_LIB_OS_BASE_ERR
	}
	l, err := s.ask(d)
	switch {
	case errors.Is(err, ErrUnreachable), d.offline:
		fmt.Fprintln(errs, "sg_inq: failed requesting inquiry: Input/output error")
		return 99
	case err != nil:
		fmt.Fprintf(out, "standard INQUIRY:\n  PQual=3  PDT=31  RMB=0\n  LUN not available\n")
		return 0
	}
	page := o.get("page")
	if o.has("id") {
		page = "0x83"
	}
	switch page {
	case "", "std", "sinq":
		if o.has("raw") || o.has("evpd") {
			fmt.Fprintln(errs, "sg_inq: raw standard data is not supported")
			return 1
		}
		fmt.Fprintf(out, "standard INQUIRY:\n  PQual=0  PDT=0  RMB=0  LU_CONG=0  hot_pluggable=0  version=0x06  [SPC-4]\n  TPGS=1\n    length=76 (0x4c)   Peripheral device type: disk\n Vendor identification: %-8s\n Product identification: %-16s\n Product revision level: %s\n Unit serial number: %s\n",
			l.Vendor, l.Product, revision, serial(l.WWN))
	case "0x80", "80h", "sn", "usn":
		if o.has("raw") {
			_, _ = out.Write(page80(l.WWN))
			return 0
		}
		fmt.Fprintf(out, "VPD INQUIRY: Unit serial number page\n  Unit serial number: %s\n", serial(l.WWN))
	case "0x83", "83h", "di":
		switch {
		case o.has("raw"):
			_, _ = out.Write(page83(l.WWN))
		case o.has("export"):
			fmt.Fprintf(out, "SCSI_IDENT_LUN_NAA_REGEXT=%s\n", l.WWN)
		default:
			fmt.Fprintf(out, "VPD INQUIRY: Device Identification page\n  Designation descriptor number 1, descriptor length: 20\n    designator_type: NAA,  code_set: Binary\n    associated with the Addressed logical unit\n      NAA 6, IEEE Company_id: 0x%s\n      Vendor Specific Identifier: 0x%s\n      Vendor Specific Identifier Extension: 0x%s\n      [0x%s]\n",
				strings.TrimLeft(l.WWN[1:7], "0"), strings.TrimLeft(l.WWN[7:16], "0"), strings.TrimLeft(l.WWN[16:], "0"), l.WWN)
		}
	default:
		fmt.Fprintf(errs, "sg_inq: page '%s' is not supported\n", page)
		return 1
	}
	return 0
}

var scsiIDOptions = map[string]spelling{
	"-g": {"whitelisted", ""}, "--whitelisted": {"whitelisted", ""}, "--allowlisted": {"whitelisted", ""},
	"-u": {"replace", ""}, "--replace-whitespace": {"replace", ""}, "-x": {"export", ""}, "--export": {"export", ""},
	"-p": {"page", "="}, "--page": {"page", "="}, "-d": {"device", "="}, "--device": {"device", "="}, "-s": {"sg", "="}, "-v": {"verbose", ""},
}

// scsiID is udev's scsi_id: it asks the unit too.
func scsiID(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, scsiIDOptions)
	if err != nil {
		fmt.Fprintf(errs, "scsi_id: %v\n", err)
		return 1
	}
	if p := o.get("page"); p != "" && p != "0x83" && p != "0x80" {
		fmt.Fprintf(errs, "scsi_id: page '%s' is not supported\n", p)
		return 1
	}
	dev := o.get("device")
	if dev == "" && len(o.operand) > 0 {
		dev = o.operand[0]
	}
	d := s.opened(dev)
	if d == nil || !o.has("whitelisted") || d.offline {
		return 1 // as it does, without a word
	}
	l, err := s.ask(d)
	if err != nil {
		return 1
	}
	id := "3" + l.WWN
	if o.get("page") == "0x80" {
		id = fmt.Sprintf("S%-8s%-16s%s", l.Vendor, l.Product, serial(l.WWN))
		if o.has("replace") {
			id = strings.Join(strings.Fields(id), "_")
		}
	}
	if o.has("export") {
		fmt.Fprintf(out, "ID_SCSI=1\nID_VENDOR=%s\nID_MODEL=%s\nID_REVISION=%s\nID_TYPE=disk\nID_SERIAL=%s\nID_SERIAL_SHORT=%s\nID_WWN=0x%s\nID_SCSI_SERIAL=%s\n",
			l.Vendor, l.Product, revision, id, l.WWN, l.WWN[:16], serial(l.WWN))
		return 0
	}
	fmt.Fprintln(out, id)
	return 0
}
