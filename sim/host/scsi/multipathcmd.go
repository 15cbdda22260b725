package scsi

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
)

func init() { commands["multipath"] = multipath }

var multipathOptions = map[string]spelling{
	"-l": {"list", ""}, "-v": {"verbosity", "="}, "-f": {"flush", ""}, "-F": {"flushall", ""}, "-r": {"reload", ""},
	"-c": {"check", ""}, "-u": {"udev", ""}, "-d": {"dry", ""}, "-h": {"help", ""},
}

// multipath is multipath(8).
func multipath(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, multipathOptions)
	if err != nil {
		fmt.Fprintf(errs, "multipath: %v\n", err)
		return 1
	}
	verbosity := 2
	if o.has("verbosity") {
		if verbosity, err = strconv.Atoi(o.get("verbosity")); err != nil {
			fmt.Fprintf(errs, "multipath: bad verbosity '%s'\n", o.get("verbosity"))
			return 1
		}
	}
	name := ""
	switch len(o.operand) {
	case 0:
	case 1:
		name = o.operand[0]
	default:
		fmt.Fprintf(errs, "multipath: one device at most, not '%s'\n", strings.Join(o.operand, " "))
		return 1
	}
	switch {
	case o.has("list"):
		ms := s.Maps()
		if name != "" {
			m := s.find(name)
			if d := s.disks[strings.TrimPrefix(name, "/dev/")]; m == nil && d != nil {
				m = d.inMap
			}
			if m == nil {
				return 1
			}
			ms = []*Map{m}
		}
		for _, m := range ms {
			if verbosity < 2 {
				fmt.Fprintln(out, m.Alias)
				continue
			}
			s.topology(out, m, len(o.values["list"]) > 1)
		}
		return 0
	case o.has("flush"):
		m := s.find(name)
		if name == "" || m == nil {
			fmt.Fprintf(errs, "%s is not a multipath device\n", name)
			return 1
		}
		if err := s.Flush(m); errors.Is(err, syscall.EBUSY) {
			fmt.Fprintf(errs, "%s: map in use\nfailed to remove multipath map %s\n", m.Alias, m.Alias)
			return 1
		}
		return 0
	case o.has("flushall"):
		for _, m := range s.Maps() {
			if s.Flush(m) != nil {
				fmt.Fprintf(errs, "%s: map in use\n", m.Alias)
			}
		}
		return 0
	case o.has("check"), o.has("udev"):
		d := s.disks[strings.TrimPrefix(name, "/dev/")]
		if d == nil || d.inMap == nil {
			if o.has("udev") {
				fmt.Fprintln(out, `DM_MULTIPATH_DEVICE_PATH="0"`)
			} else {
				fmt.Fprintf(out, "%s is not a valid multipath device path\n", name)
			}
			return 1
		}
		if o.has("udev") {
			fmt.Fprintln(out, `DM_MULTIPATH_DEVICE_PATH="1"`)
		} else {
			fmt.Fprintf(out, "%s is a valid multipath device path\n", name)
		}
		return 0
	case o.has("dry"), o.has("help"):
		fmt.Fprintln(errs, "multipath: options -d and -h are not supported")
		return 1
	}
	// Without an option: make the maps that are missing; -r loads the others anew.
	was := map[*Map]bool{}
	for _, m := range s.Maps() {
		was[m] = true
	}
	s.Coalesce()
	for _, m := range s.Maps() {
		if o.has("reload") {
			s.reload(m)
		}
		if !was[m] && verbosity > 1 {
			fmt.Fprint(out, "create: ")
			s.topology(out, m, true)
		}
	}
	return 0
}

// topology is what multipath -ll shows of a map; with -l the paths are not asked.
func (s *Stack) topology(out io.Writer, m *Map, ask bool) {
	fmt.Fprintf(out, "%s (3%s) %s %s\n", m.Alias, m.WWID, m.Name(), s.mapCell(m, 's'))
	fmt.Fprintf(out, "size=%s features='%s' hwhandler='1 alua' wp=%s\n", humanSize(m.Bytes), s.mapCell(m, 'f'), s.mapCell(m, 'r'))
	gs := s.groups(m)
	for i, g := range gs {
		tee, bar := "|-+-", "| "
		if i == len(gs)-1 {
			tee, bar = "`-+-", "  "
		}
		status, prio := "enabled", g.prio
		if i == 0 {
			status = "active"
		}
		if !ask {
			prio = 0
		}
		fmt.Fprintf(out, "%s policy='service-time 0' prio=%d status=%s\n", tee, prio, status)
		for j, d := range g.paths {
			branch := "|-"
			if j == len(g.paths)-1 {
				branch = "`-"
			}
			check := "undef"
			if ask {
				check = s.pathCell(d, 'T')
			}
			fmt.Fprintf(out, "%s%s %s %s %s %s %s %s\n", bar, branch, d.Address, d.Name, d.No, s.pathCell(d, 't'), check, s.pathCell(d, 'o'))
		}
	}
}
