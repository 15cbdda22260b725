package scsi

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

func init() {
	commands["rescan-scsi-bus.sh"] = rescanBus
	commands["rescan-scsi-bus"] = rescanBus
}

var rescanOptions = map[string]spelling{
	"-a": {"all", ""}, "--alltargets": {"all", ""}, "-l": {"luns", ""}, "-L": {"maxlun", "="}, "-r": {"remove", ""}, "--remove": {"remove", ""},
	"-s": {"resize", ""}, "--resize": {"resize", ""}, "-m": {"multipath", ""}, "--multipath": {"multipath", ""},
	"-u": {"update", ""}, "--update": {"update", ""}, "-f": {"flush", ""}, "--flush": {"flush", ""}, "-i": {"lip", "?"}, "--issue-lip": {"lip", ""},
	"--forcerescan": {"forcerescan", ""}, "--forceremove": {"forceremove", ""}, "--nooptscan": {"nooptscan", ""}, "-c": {"channels", ""},
	"--hosts": {"hosts", "="}, "--luns": {"only", "="}, "-n": {"sparse0", ""}, "-w": {"wide", ""},
}

// rescanBus is rescan-scsi-bus.sh of sg3_utils: without -s it looks for new
// units, with -r disks whose unit is gone are removed, with -s disks are asked for
// their size, and maps are resized with -m.
func rescanBus(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, rescanOptions)
	if err != nil {
		fmt.Fprintf(errs, "rescan-scsi-bus.sh: %v\n", err)
		return 1
	}
	for _, name := range []string{"flush", "update"} {
		if o.has(name) {
			fmt.Fprintf(errs, "rescan-scsi-bus.sh: option --%s is not supported\n", name)
			return 1
		}
	}
	hosts := s.sortedHosts()
	for _, n := range o.operand {
		if _, err := strconv.Atoi(n); err != nil {
			fmt.Fprintf(errs, "rescan-scsi-bus.sh: host '%s'\n", n)
			return 1
		}
	}
	wanted := o.operand
	if o.has("hosts") {
		wanted = strings.Split(o.get("hosts"), ",")
	}
	if len(wanted) > 0 {
		hosts = slices.DeleteFunc(hosts, func(h *Host) bool { return !slices.Contains(wanted, strconv.Itoa(h.Number)) })
	}
	luns := map[int]bool{}
	if o.has("only") {
		for x := range strings.SplitSeq(o.get("only"), ",") {
			n, err := strconv.Atoi(x)
			if err != nil {
				fmt.Fprintf(errs, "rescan-scsi-bus.sh: LUN '%s'\n", x)
				return 1
			}
			luns[n] = true
		}
	}
	var fresh, resized, removed []*Disk
	if o.has("resize") {
		fmt.Fprintln(out, "Searching for resized LUNs")
	} else {
		fmt.Fprintln(out, "Scanning SCSI subsystem for new devices")
	}
	for _, h := range hosts {
		for _, n := range h.nexuses {
			known := s.disksOf(n)
			if !o.has("resize") {
				fmt.Fprintf(out, " Scanning host %d for all SCSI target IDs, all LUNs\n", h.Number)
				if o.has("remove") || o.has("forceremove") {
					for _, d := range known {
						if _, err := s.ask(d); errors.Is(err, ErrNoLUN) {
							removed = append(removed, d)
							_ = s.Delete(d.Name)
						}
					}
				}
				s.scan(n, func(l int) bool { return len(luns) == 0 || luns[l] })
				for _, d := range s.disksOf(n) {
					if !slices.Contains(known, d) {
						fresh = append(fresh, d)
					}
				}
				continue
			}
			for _, d := range known {
				was := d.Bytes
				if _ = s.Rescan(d.Name); d.Bytes != was {
					resized = append(resized, d)
				}
			}
		}
	}
	if o.has("resize") && o.has("multipath") {
		for _, m := range s.Maps() {
			_ = s.Resize(m)
		}
	}
	for _, c := range []struct {
		what string
		ds   []*Disk
	}{{"new or changed device(s) found.", fresh}, {"remapped or resized device(s) found.", resized}, {"device(s) removed.", removed}} {
		fmt.Fprintf(out, "%d %s\n", len(c.ds), c.what)
		for _, d := range c.ds {
			fmt.Fprintf(out, "\t[%s]\n", d.Address)
		}
	}
	return 0
}
