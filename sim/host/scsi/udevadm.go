package scsi

import (
	"fmt"
	"io"
	"strings"
)

func init() {
	commands["udevadm"] = udevadm
	commands["cryptsetup"] = cryptsetup
}

var udevadmOptions = map[string]spelling{
	"-q": {"query", "="}, "--query": {"query", "="}, "-n": {"name", "="}, "--name": {"name", "="}, "-p": {"path", "="}, "--path": {"path", "="},
	"-r": {"root", ""}, "--root": {"root", ""}, "-t": {"timeout", "="}, "--timeout": {"timeout", "="}, "-E": {"exit", "="}, "--exit-if-exists": {"exit", "="},
	"-R": {"reload", ""}, "--reload": {"reload", ""}, "--reload-rules": {"reload", ""},
	"--subsystem-match": {"subsystem", "="}, "-s": {"subsystem", "="}, "--sysname-match": {"sysname", "="}, "-y": {"sysname", "="},
	"--action": {"action", "="}, "-c": {"action", "="}, "--type": {"type", "="}, "-w": {"settle", ""}, "--settle": {"settle", ""}, "--property": {"property", "="},
	"--name-match": {"match", "="},
}

// udevadm is udevadm(8): settle has nothing to wait for, trigger makes udev read
// the identity of the disks anew, info tells what it knows.
func udevadm(s *Stack, out, errs io.Writer, args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(errs, "udevadm: missing or unknown command")
		return 1
	}
	o, err := parse(args[1:], udevadmOptions)
	if err != nil {
		fmt.Fprintf(errs, "udevadm: %v\n", err)
		return 1
	}
	switch args[0] {
	case "settle", "control":
		return 0
	case "trigger":
		if a := o.get("action"); a != "" && a != "change" && a != "add" {
			fmt.Fprintf(errs, "udevadm: trigger: action '%s' is not supported\n", a)
			return 1
		}
		for _, d := range s.Disks() {
			name := o.get("sysname")
			if m := o.get("match"); m != "" {
				name = strings.TrimPrefix(m, "/dev/")
			}
			for _, x := range o.operand {
				name = x[strings.LastIndex(x, "/")+1:]
			}
			if name == "" || name == d.Name {
				s.Trigger(d.Name)
			}
		}
		return 0
	case "info":
		return s.udevInfo(out, errs, o)
	}
	fmt.Fprintf(errs, "udevadm: command '%s' is not supported\n", args[0])
	return 1
}

func (s *Stack) udevInfo(out, errs io.Writer, o options) int {
	name := o.get("name")
	if name == "" {
		name = o.get("path")
	}
	if name == "" && len(o.operand) > 0 {
		name = o.operand[0]
	}
	rest := strings.TrimPrefix(name, "/dev/")
	if target, ok := s.Link(rest); ok {
		rest = target
	}
	rest = rest[strings.LastIndex(rest, "/")+1:]
	d, m := s.disks[rest], s.Map(rest)
	if d == nil && m == nil {
		fmt.Fprintf(errs, "Unknown device \"%s\": No such device\n", name)
		return 1
	}
	dir := ""
	properties := []string{}
	if d != nil {
		dir = d.block()
		properties = append(properties, "DEVPATH=/"+dir, "DEVNAME=/dev/"+rest, "DEVTYPE=disk", fmt.Sprintf("MAJOR=%d", d.No.Major), fmt.Sprintf("MINOR=%d", d.No.Minor),
			"SUBSYSTEM=block", "ID_SCSI=1", "ID_BUS=scsi", "ID_TYPE=disk", "ID_VENDOR="+d.Vendor, "ID_MODEL="+d.Product, "ID_REVISION="+revision,
			"ID_SERIAL=3"+d.wwid, "ID_SERIAL_SHORT="+d.wwid, "ID_WWN=0x"+d.wwid[:min(16, len(d.wwid))], "ID_WWN_WITH_EXTENSION=0x"+d.wwid, "ID_PATH="+d.byPath())
		if d.inMap != nil {
			properties = append(properties, "DM_MULTIPATH_DEVICE_PATH=1", "ID_FS_TYPE=mpath_member")
		}
	} else {
		dir = m.block()
		properties = append(properties, "DEVPATH=/"+dir, "DEVNAME=/dev/"+rest, "DEVTYPE=disk", fmt.Sprintf("MAJOR=%d", DMMajor), fmt.Sprintf("MINOR=%d", m.Minor),
			"SUBSYSTEM=block", "DM_NAME="+m.Alias, "DM_UUID=mpath-3"+m.WWID, "DM_WWN=0x"+m.WWID, "DM_SERIAL=3"+m.WWID, "DM_TYPE=scsi")
	}
	if c := s.node.Content(rest); c.Type != "" && (d == nil || d.inMap == nil) {
		properties = append(properties, "ID_FS_TYPE="+c.Type, "ID_FS_UUID="+c.UUID, "ID_FS_USAGE=filesystem")
	}
	links := s.DevLinks(rest)
	switch q := o.get("query"); q {
	case "property":
		if len(links) > 0 {
			properties = append(properties, "DEVLINKS=/dev/"+strings.Join(links, " /dev/"))
		}
		for _, p := range properties {
			fmt.Fprintln(out, p)
		}
	case "name":
		if o.has("root") {
			rest = "/dev/" + rest
		}
		fmt.Fprintln(out, rest)
	case "symlink":
		if o.has("root") && len(links) > 0 {
			links = strings.Fields("/dev/" + strings.Join(links, " /dev/"))
		}
		fmt.Fprintln(out, strings.Join(links, " "))
	case "path":
		fmt.Fprintln(out, "/"+dir)
	case "all", "":
		fmt.Fprintf(out, "P: /%s\nN: %s\n", dir, rest)
		for _, l := range links {
			fmt.Fprintf(out, "S: %s\n", l)
		}
		for _, p := range properties {
			fmt.Fprintf(out, "E: %s\n", p)
		}
	default:
		fmt.Fprintf(errs, "udevadm: info: query '%s' is not supported\n", q)
		return 1
	}
	return 0
}

// cryptsetup knows no encrypted device: nothing is one, and there are none.
func cryptsetup(_ *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, map[string]spelling{"-v": {"verbose", ""}, "--verbose": {"verbose", ""}})
	if err != nil {
		fmt.Fprintf(errs, "cryptsetup: %v\n", err)
		return 1
	}
	if len(o.operand) == 2 {
		switch o.operand[0] {
		case "status":
			fmt.Fprintf(out, "%s is inactive.\n", o.operand[1])
			return 1
		case "isLuks":
			return 1
		}
	}
	fmt.Fprintf(errs, "cryptsetup: '%s' is not supported\n", strings.Join(args, " "))
	return 1
}
