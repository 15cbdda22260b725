package scsi

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

func init() { commands["multipathd"] = multipathd }

// multipathd is the interactive client of multipathd (multipathd COMMAND, also
// as multipathd -k"COMMAND"), with multipath-tools 0.8's words and shapes.
// "fail" comes with exit status 1.
func multipathd(s *Stack, out, errs io.Writer, args []string) int {
	var words []string
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "-k"):
			words = append(words, strings.Fields(a[2:])...)
			if a == "-k" {
				fmt.Fprintln(errs, "multipathd: an interactive shell (-k without a command) is not supported")
				return 1
			}
		case strings.HasPrefix(a, "-") && len(words) == 0:
			fmt.Fprintf(errs, "multipathd: option '%s' is not supported\n", a)
			return 1
		default:
			words = append(words, a)
		}
	}
	words = split(words)
	if len(words) == 0 {
		fmt.Fprintln(errs, "multipathd: a command is wanted: the daemon runs already")
		return 1
	}
	reply, ok := s.multipathd(words)
	fmt.Fprint(out, reply)
	if !ok {
		return 1
	}
	return 0
}

// split parts words that hold spaces, all but the last word after "format".
func split(words []string) []string {
	var out []string
	for i, w := range words {
		if i > 0 && words[i-1] == "format" {
			out = append(out, strings.Trim(w, `"`))
			continue
		}
		if before, format, ok := strings.Cut(w, " format "); ok {
			out = append(append(out, strings.Fields(before)...), "format", strings.Trim(strings.TrimSpace(format), `"`))
			continue
		}
		out = append(out, strings.Fields(w)...)
	}
	// A format that came in several words is one.
	for i, w := range out {
		if w == "format" && i+2 < len(out) {
			out = append(out[:i+1], strings.Trim(strings.Join(out[i+1:], " "), `"`))
			break
		}
	}
	return out
}

const (
	done = "ok\n"
	fail = "fail\n"
)

func answer(ok bool) (string, bool) {
	if ok {
		return done, true
	}
	return fail, false
}

func (s *Stack) multipathd(w []string) (string, bool) {
	is := func(pattern ...string) bool {
		if len(w) != len(pattern) {
			return false
		}
		for i, p := range pattern {
			ok := p == "*"
			for alt := range strings.SplitSeq(p, "|") {
				ok = ok || w[i] == alt
			}
			if !ok {
				return false
			}
		}
		return true
	}
	const maps = "maps|multipaths"
	const aMap = "map|multipath"
	switch {
	case is("show|list", "paths"):
		return s.showPaths("%i %d %D %p %t %T %o %C", true), true
	case is("show|list", "paths", "format", "*"):
		return s.showPaths(w[3], true), true
	case is("show|list", "paths", "raw", "format", "*"):
		return s.showPaths(w[4], false), true
	case is("show|list", "path", "*", "format", "*"):
		d := s.disks[strings.TrimPrefix(w[2], "/dev/")]
		if d == nil {
			return fail, false
		}
		return table([][]string{s.pathCells(d, w[4])}, w[4], nil), true
	case is("show|list", maps):
		return s.showMaps("%n %d %w", s.Maps(), true), true
	case is("show|list", maps, "format", "*"):
		return s.showMaps(w[3], s.Maps(), true), true
	case is("show|list", maps, "raw", "format", "*"):
		return s.showMaps(w[4], s.Maps(), false), true
	case is("show|list", maps, "status"):
		return s.showMaps("%n %F %Q %N %t %r", s.Maps(), true), true
	case is("show|list", maps, "topology"), is("show|list", "topology"):
		var b strings.Builder
		for _, m := range s.Maps() {
			s.topology(&b, m, true)
		}
		return b.String(), true
	case is("show|list", aMap, "*", "topology"):
		m := s.find(w[2])
		if m == nil {
			return fail, false
		}
		var b strings.Builder
		s.topology(&b, m, true)
		return b.String(), true
	case is("show|list", aMap, "*", "format", "*"):
		m := s.find(w[2])
		if m == nil {
			return fail, false
		}
		return s.showMaps(w[4], []*Map{m}, false), true
	case is("show|list", "status"):
		up := 0
		for _, d := range s.Disks() {
			if s.Check(d) == Ready {
				up++
			}
		}
		return fmt.Sprintf("path checker states:\nup                  %d\n\npaths: %d\nbusy: False\n", up, len(s.disks)), true
	case is("show|list", "daemon"):
		return "pid 871 running\n", true
	case is("resize", aMap, "*"):
		m := s.find(w[2])
		return answer(m != nil && s.Resize(m) == nil)
	case is("reconfigure"), is("reconfigure", "all"):
		s.Coalesce()
		return done, true
	case is("del|remove", aMap, "*"):
		m := s.find(w[2])
		if m != nil && s.Flush(m) != nil {
			return "map in use\n" + fail, false
		}
		return answer(m != nil)
	case is("add", aMap, "*"):
		// Of what has no map yet.
		return answer(s.find(w[2]) != nil || s.coalesceWWID(w[2]))
	case is("add", "path", "*"):
		d := s.disks[strings.TrimPrefix(w[2], "/dev/")]
		if d == nil {
			return "blacklisted\n", true
		}
		if d.inMap == nil {
			if s.recheck {
				_ = s.Rescan(d.Name)
				s.Trigger(d.Name)
			} else {
				s.pathAdded(d)
			}
		}
		return answer(d.inMap != nil)
	case is("del|remove", "path", "*"):
		d := s.disks[strings.TrimPrefix(w[2], "/dev/")]
		if d == nil {
			return fail, false
		}
		s.pathRemoved(d)
		return done, true
	case is("disablequeueing|disablequeuing", aMap, "*"), is("restorequeueing|restorequeuing", aMap, "*"):
		m := s.find(w[2])
		if m != nil {
			m.disabled = w[0][0] == 'd'
			m.noQueue = m.disabled
		}
		return answer(m != nil)
	case is("disablequeueing|disablequeuing", maps), is("restorequeueing|restorequeuing", maps):
		for _, m := range s.maps {
			m.disabled = w[0][0] == 'd'
			m.noQueue = m.disabled
		}
		return done, true
	case is("suspend|resume", aMap, "*"):
		m := s.find(w[2])
		if m != nil {
			m.suspended = w[0] == "suspend"
		}
		return answer(m != nil)
	}
	return fmt.Sprintf("multipathd: command '%s' is not supported\n", strings.Join(w, " ")), false
}

// coalesceWWID makes the map of one unit.
func (s *Stack) coalesceWWID(wwid string) bool {
	for _, d := range s.Disks() {
		if "3"+d.wwid == wwid && d.inMap == nil {
			s.pathAdded(d)
		}
	}
	return s.find(wwid) != nil
}

// pathHeads are the wildcards of paths with their heads (multipathd show wildcards).
var pathHeads = map[byte]string{
	'w': "uuid", 'i': "hcil", 'd': "dev", 'D': "dev_t", 't': "dm_st", 'o': "dev_st", 'T': "chk_st", 's': "vend/prod/rev",
	'c': "checker", 'C': "next_check", 'p': "pri", 'S': "size", 'z': "serial", 'M': "marginal_st", 'm': "multipath",
	'N': "host WWNN", 'n': "target WWNN", 'R': "host WWPN", 'r': "target WWPN", 'a': "host adapter", 'G': "foreign",
	'0': "failures", 'P': "protocol", 'I': "init_st", 'L': "LUN hex",
}

func (s *Stack) pathCell(d *Disk, w byte) string {
	fc := func(v string) string {
		if d.nexus.session != nil {
			return "[undef]"
		}
		return "0x" + v
	}
	switch w {
	case 'w':
		return "3" + d.wwid
	case 'i':
		return d.Address.String()
	case 'd':
		return d.Name
	case 'D':
		return d.No.String()
	case 't':
		switch {
		case d.inMap == nil:
			return "undef"
		case s.Check(d) == Faulty:
			return "failed"
		}
		return "active"
	case 'o':
		if d.offline {
			return "offline"
		}
		return "running"
	case 'T':
		return string(s.Check(d))
	case 's':
		return d.Vendor + "," + d.Product
	case 'c':
		return "tur"
	case 'C':
		if d.inMap == nil {
			return "orphan"
		}
		return "XXXX...... 5/20"
	case 'p':
		return fmt.Sprint(s.priority(d))
	case 'S':
		return humanSize(d.Bytes)
	case 'z':
		return serial(d.WWN)
	case 'M':
		return "normal"
	case 'm':
		if d.inMap == nil {
			return "[orphan]"
		}
		return d.inMap.Alias
	case 'N':
		return fc(nodeName(d.nexus.Initiator))
	case 'n':
		if d.nexus.session != nil {
			return d.nexus.Target.Name
		}
		return fc(d.nexus.Target.Node)
	case 'R':
		return fc(d.nexus.Initiator)
	case 'r':
		return fc(d.nexus.Target.Name)
	case 'a':
		if d.nexus.session != nil {
			return "[undef]"
		}
		return d.nexus.host.slot()
	case 'G':
		return "--"
	case '0':
		if s.Check(d) == Faulty {
			return "1"
		}
		return "0"
	case 'P':
		if d.nexus.session != nil {
			return "scsi:iscsi"
		}
		return "scsi:fcp"
	case 'I':
		return "ok"
	case 'L':
		return fmt.Sprintf("0x%04x000000000000", d.LUN)
	}
	return ""
}

var mapHeads = map[byte]string{
	'n': "name", 'w': "uuid", 'd': "sysfs", 'F': "failback", 'Q': "queueing", 'N': "paths", 'r': "write_prot", 't': "dm-st",
	'S': "size", 'f': "features", 'x': "failures", 'h': "hwhandler", 'A': "action", '0': "path_faults", '1': "switch_grp",
	'2': "map_loads", '3': "total_q_time", '4': "q_timeouts", 's': "vend/prod/rev", 'v': "vend", 'p': "prod", 'e': "rev", 'G': "foreign",
}

func (s *Stack) mapCell(m *Map, w byte) string {
	vendor, product := "##", "##"
	if len(m.paths) > 0 {
		vendor, product = m.paths[0].Vendor, m.paths[0].Product
	}
	switch w {
	case 'n':
		return m.Alias
	case 'w':
		return "3" + m.WWID
	case 'd':
		return m.Name()
	case 'F':
		return "immediate"
	case 'Q':
		return s.queueCell(m)
	case 'N':
		n := 0
		for _, d := range m.Paths() {
			if s.Check(d) != Faulty {
				n++
			}
		}
		return strconv.Itoa(n)
	case 'r':
		if m.ReadOnly {
			return "ro"
		}
		return "rw"
	case 't':
		if m.suspended {
			return "suspend"
		}
		return "active"
	case 'S':
		return humanSize(m.Bytes)
	case 'f':
		if s.queueing(m) {
			return "1 queue_if_no_path"
		}
		return "0"
	case 'h':
		return "1 alua"
	case 'A':
		return ""
	case '0', '1', '2', '3', '4', 'x':
		return "0"
	case 's':
		return vendor + "," + product
	case 'v':
		return vendor
	case 'p':
		return product
	case 'e':
		return revision
	case 'G':
		return "--"
	}
	return ""
}

// wildcards are the letters after % in a format.
func wildcards(format string) []byte {
	var out []byte
	for i := 0; i+1 < len(format); i++ {
		if format[i] == '%' {
			out = append(out, format[i+1])
			i++
		}
	}
	return out
}

func (s *Stack) pathCells(d *Disk, format string) []string {
	var cells []string
	for _, w := range wildcards(format) {
		cells = append(cells, s.pathCell(d, w))
	}
	return cells
}

func (s *Stack) showPaths(format string, pretty bool) string {
	var rows [][]string
	for _, d := range s.Disks() {
		if !d.refused {
			rows = append(rows, s.pathCells(d, format))
		}
	}
	return table(rows, format, headsIf(pretty, pathHeads))
}

func (s *Stack) showMaps(format string, ms []*Map, pretty bool) string {
	var rows [][]string
	for _, m := range ms {
		var cells []string
		for _, w := range wildcards(format) {
			cells = append(cells, s.mapCell(m, w))
		}
		rows = append(rows, cells)
	}
	return table(rows, format, headsIf(pretty, mapHeads))
}

func headsIf(pretty bool, heads map[byte]string) map[byte]string {
	if pretty {
		return heads
	}
	return nil
}

// table prints cells in a format. With heads there is a head line and columns
// are padded, and where there is no row nothing is printed.
func table(rows [][]string, format string, heads map[byte]string) string {
	if len(rows) == 0 {
		return ""
	}
	ws := wildcards(format)
	width := make([]int, len(ws))
	if heads != nil {
		head := make([]string, len(ws))
		for i, w := range ws {
			head[i] = heads[w]
		}
		rows = append([][]string{head}, rows...)
		for _, r := range rows {
			for i, c := range r {
				width[i] = max(width[i], len(c))
			}
		}
	}
	var b strings.Builder
	for _, r := range rows {
		cell := 0
		for i := 0; i < len(format); i++ {
			if format[i] != '%' || i+1 == len(format) {
				b.WriteByte(format[i])
				continue
			}
			i++
			if i+1 == len(format) {
				b.WriteString(r[cell])
			} else {
				fmt.Fprintf(&b, "%-*s", width[cell], r[cell])
			}
			cell++
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// humanSize is as multipath prints it: 10G, 512M, 1.5T.
func humanSize(bytes int64) string {
	n, units := float64(bytes)/1024, "KMGTP"
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n /= 1024
		i++
	}
	if n < 10 {
		return fmt.Sprintf("%.1f%c", n, units[i])
	}
	return fmt.Sprintf("%.0f%c", n, units[i])
}
