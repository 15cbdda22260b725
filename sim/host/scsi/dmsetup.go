package scsi

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

func init() { commands["dmsetup"] = dmsetup }

var dmsetupOptions = map[string]spelling{
	"--target": {"target", "="}, "-f": {"force", ""}, "--force": {"force", ""}, "--retry": {"retry", ""},
	"-c": {"columns", ""}, "-C": {"columns", ""}, "--columns": {"columns", ""}, "--noheadings": {"noheadings", ""},
	"-o": {"options", "="}, "--options": {"options", "="}, "--separator": {"separator", "="},
	"-u": {"uuid", "="}, "--uuid": {"uuid", "="}, "-j": {"major", "="}, "--major": {"major", "="}, "-m": {"minor", "="}, "--minor": {"minor", "="},
	"--noflush": {"noflush", ""}, "--nolockfs": {"nolockfs", ""}, "--deferred": {"deferred", ""}, "--noudevsync": {"noudevsync", ""},
	"--noudevrules": {"noudevrules", ""}, "--verifyudev": {"verifyudev", ""}, "-y": {"yes", ""}, "--yes": {"yes", ""},
}

// dmsetup is dmsetup(8) over multipath maps. Numbers in "ls" are parted by a comma, as
// up to 1.02.1xx of the library; later ones write a colon.
func dmsetup(s *Stack, out, errs io.Writer, args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(errs, "dmsetup: a command is wanted")
		return 1
	}
	if args[0] == "--version" || args[0] == "version" {
		fmt.Fprintln(out, "Library version:   1.02.175\nDriver version:    4.47.0")
		return 0
	}
	o, err := parse(args, dmsetupOptions)
	if err != nil {
		fmt.Fprintf(errs, "dmsetup: %v\nCommand failed.\n", err)
		return 1
	}
	if len(o.operand) == 0 {
		fmt.Fprintln(errs, "dmsetup: a command is wanted")
		return 1
	}
	c := dmCall{s, out, errs, o, o.operand[0], o.operand[1:]}
	run, ok := dmCommands[c.name]
	if !ok {
		fmt.Fprintf(errs, "Unknown command %s.\nCommand failed.\n", c.name)
		return 1
	}
	for name := range o.values {
		if !slices.Contains(strings.Fields("yes noudevsync noudevrules verifyudev "+run.options), name) {
			fmt.Fprintf(errs, "dmsetup: %s: option --%s is not supported\nCommand failed.\n", c.name, name)
			return 1
		}
	}
	return run.do(c)
}

// dmCall is one run of dmsetup.
type dmCall struct {
	s         *Stack
	out, errs io.Writer
	options
	name string
	args []string
}

var dmCommands map[string]struct {
	options string
	do      func(c dmCall) int
}

func init() {
	const which = "uuid major minor "
	dmCommands = map[string]struct {
		options string
		do      func(c dmCall) int
	}{
		"ls":      {"target", dmCall.ls},
		"info":    {which + "columns noheadings options separator", dmCall.info},
		"table":   {which + "target", func(c dmCall) int { return c.lines((*Stack).dmTable) }},
		"status":  {which + "target noflush", func(c dmCall) int { return c.lines((*Stack).dmStatus) }},
		"deps":    {which + "options", dmCall.deps},
		"message": {which, dmCall.message},
		"remove":  {which + "force retry deferred", dmCall.remove},
		"suspend": {which + "noflush nolockfs", func(c dmCall) int { return c.suspend(true) }},
		"resume":  {which + "noflush nolockfs", func(c dmCall) int { return c.suspend(false) }},
	}
}

// maps are those that are named, or all where none is.
func (c dmCall) maps() ([]*Map, int) {
	var ms []*Map
	for _, name := range c.args {
		m := c.s.dmFind(name)
		if m == nil {
			fmt.Fprintf(c.errs, "Device %s not found\nCommand failed.\n", name)
			return nil, 1
		}
		ms = append(ms, m)
	}
	for _, m := range c.s.Maps() {
		switch {
		case c.has("uuid") && "mpath-3"+m.WWID == c.get("uuid"),
			c.has("minor") && fmt.Sprint(m.Minor) == c.get("minor") && (!c.has("major") || c.get("major") == fmt.Sprint(DMMajor)):
			ms = append(ms, m)
		}
	}
	if len(ms) == 0 {
		if c.has("uuid") || c.has("minor") {
			fmt.Fprintln(c.errs, "Device not found\nCommand failed.")
			return nil, 1
		}
		ms = c.s.Maps()
	}
	return ms, 0
}

// one is the map that a command is about.
func (c dmCall) one() *Map {
	if len(c.args) != 1 && !c.has("uuid") && !c.has("minor") {
		fmt.Fprintf(c.errs, "dmsetup: %s: one device is wanted\nCommand failed.\n", c.name)
		return nil
	}
	ms, status := c.maps()
	if status != 0 || len(ms) != 1 {
		return nil
	}
	return ms[0]
}

// dmFind takes a name, with or without /dev/mapper/, or /dev/dm-N.
func (s *Stack) dmFind(name string) *Map {
	if m := s.find(name); m != nil && "3"+m.WWID != name {
		return m
	}
	return nil
}

func (c dmCall) ls() int {
	if t := c.get("target"); c.has("target") && t != "multipath" {
		return 0
	}
	ms := c.s.Maps()
	if c.has("target") {
		ms = slices.DeleteFunc(ms, func(m *Map) bool { return m.broken })
	} else if len(ms) == 0 {
		fmt.Fprintln(c.out, "No devices found")
	}
	for _, m := range ms {
		fmt.Fprintf(c.out, "%s\t(%d, %d)\n", m.Alias, DMMajor, m.Minor)
	}
	return 0
}

func (c dmCall) lines(line func(*Stack, *Map) string) int {
	ms, status := c.maps()
	if status != 0 {
		return status
	}
	if len(ms) == 0 {
		fmt.Fprintln(c.out, "No devices found")
	}
	for _, m := range ms {
		if t := c.get("target"); t != "" && (t == "multipath") == m.broken {
			continue
		}
		name := m.Alias + ": "
		if len(c.args) == 1 || c.has("uuid") || c.has("minor") {
			name = ""
		}
		fmt.Fprintln(c.out, name+line(c.s, m))
	}
	return 0
}

func (s *Stack) dmTable(m *Map) string {
	if m.broken {
		return fmt.Sprintf("0 %d error", m.Bytes/512)
	}
	var b strings.Builder
	gs := s.groups(m)
	fmt.Fprintf(&b, "0 %d multipath %s 1 alua %d %d", m.Bytes/512, s.mapCell(m, 'f'), len(gs), min(1, len(gs)))
	for _, g := range gs {
		fmt.Fprintf(&b, " service-time 0 %d 1", len(g.paths))
		for _, d := range g.paths {
			fmt.Fprintf(&b, " %s 1", d.No)
		}
	}
	return b.String()
}

func (s *Stack) dmStatus(m *Map) string {
	if m.broken {
		return fmt.Sprintf("0 %d error", m.Bytes/512)
	}
	var b strings.Builder
	gs := s.groups(m)
	fmt.Fprintf(&b, "0 %d multipath 2 0 0 0 %d %d", m.Bytes/512, len(gs), min(1, len(gs)))
	for i, g := range gs {
		state := "E"
		if i == 0 {
			state = "A"
		}
		fmt.Fprintf(&b, " %s 0 %d 0", state, len(g.paths))
		for _, d := range g.paths {
			if s.Check(d) == Faulty {
				fmt.Fprintf(&b, " %s F 1", d.No)
			} else {
				fmt.Fprintf(&b, " %s A 0", d.No)
			}
		}
	}
	return b.String()
}

func (c dmCall) info() int {
	ms, status := c.maps()
	if status != 0 {
		return status
	}
	if len(ms) == 0 {
		fmt.Fprintln(c.out, "No devices found")
		return 0
	}
	if c.has("columns") {
		return c.columns(ms)
	}
	for _, m := range ms {
		state, open := "ACTIVE", 0
		if m.suspended {
			state = "SUSPENDED"
		}
		if m.ReadOnly {
			state += " (READ-ONLY)"
		}
		if c.s.node.InUse(m.Name()) {
			open = 1
		}
		fmt.Fprintf(c.out, "Name:              %s\nState:             %s\nRead Ahead:        256\nTables present:    LIVE\nOpen count:        %d\nEvent number:      0\nMajor, minor:      %d, %d\nNumber of targets: 1\nUUID: mpath-3%s\n\n",
			m.Alias, state, open, DMMajor, m.Minor, m.WWID)
	}
	return 0
}

// dmFields are the columns of dmsetup info -c.
var dmFields = map[string]struct {
	head string
	cell func(s *Stack, m *Map) string
}{
	"name":          {"Name", func(_ *Stack, m *Map) string { return m.Alias }},
	"major":         {"Maj", func(*Stack, *Map) string { return fmt.Sprint(DMMajor) }},
	"minor":         {"Min", func(_ *Stack, m *Map) string { return fmt.Sprint(m.Minor) }},
	"open":          {"Open", func(s *Stack, m *Map) string { return oneIf(s.node.InUse(m.Name())) }},
	"segments":      {"Targ", func(*Stack, *Map) string { return "1" }},
	"events":        {"Event", func(*Stack, *Map) string { return "0" }},
	"uuid":          {"UUID", func(_ *Stack, m *Map) string { return "mpath-3" + m.WWID }},
	"blkdevname":    {"BlkDevName", func(_ *Stack, m *Map) string { return m.Name() }},
	"attr":          {"Stat", func(_ *Stack, m *Map) string { return dmAttr(m) }},
	"devno":         {"DevNo", func(_ *Stack, m *Map) string { return Devno{DMMajor, m.Minor}.String() }},
	"blkdevs_used":  {"BlkDevNamesUsed", func(_ *Stack, m *Map) string { return strings.Join(names(m), ",") }},
	"device_count":  {"#Devs", func(_ *Stack, m *Map) string { return fmt.Sprint(len(m.paths)) }},
	"mangled_name":  {"Name", func(_ *Stack, m *Map) string { return m.Alias }},
	"suspended":     {"Suspended", func(_ *Stack, m *Map) string { return oneIf(m.suspended) }},
	"subsystem":     {"Subsys", func(*Stack, *Map) string { return "mpath" }},
	"tables_loaded": {"Tables", func(*Stack, *Map) string { return "Live" }},
	"readonly":      {"RO", func(_ *Stack, m *Map) string { return oneIf(m.ReadOnly) }},
}

func dmAttr(m *Map) string {
	a := []byte("L--w")
	if m.suspended {
		a[2] = 's'
	}
	if m.ReadOnly {
		a[3] = 'r'
	}
	return string(a)
}

func names(m *Map) []string {
	var out []string
	for _, d := range m.paths {
		out = append(out, d.Name)
	}
	return out
}

func (c dmCall) columns(ms []*Map) int {
	fields := strings.Split("name,major,minor,attr,open,segments,events,uuid", ",")
	if c.has("options") {
		fields = strings.Split(c.get("options"), ",")
	}
	var rows [][]string
	head := []string{}
	for _, f := range fields {
		x, ok := dmFields[f]
		if !ok {
			fmt.Fprintf(c.errs, "dmsetup: field %s is not supported\nCommand failed.\n", f)
			return 1
		}
		head = append(head, x.head)
	}
	if !c.has("noheadings") {
		rows = append(rows, head)
	}
	for _, m := range ms {
		var cells []string
		for _, f := range fields {
			cells = append(cells, dmFields[f].cell(c.s, m))
		}
		rows = append(rows, cells)
	}
	if c.has("separator") || c.has("noheadings") {
		separator := ":"
		if c.has("separator") {
			separator = c.get("separator")
		}
		for _, r := range rows {
			fmt.Fprintln(c.out, strings.Join(r, separator))
		}
		return 0
	}
	writeColumns(c.out, rows, nil)
	return 0
}

// writeColumns pads cells to columns; right says which are aligned to the right.
func writeColumns(out io.Writer, rows [][]string, right map[int]bool) {
	var width []int
	for _, r := range rows {
		for i, cell := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, r := range rows {
		var b strings.Builder
		for i, cell := range r {
			if i > 0 {
				b.WriteByte(' ')
			}
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if right[i] {
				b.WriteString(pad + cell)
			} else {
				b.WriteString(cell + pad)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(b.String(), " "))
	}
}

func (c dmCall) deps() int {
	ms, status := c.maps()
	if status != 0 {
		return status
	}
	for _, m := range ms {
		name := m.Alias + ": "
		if len(c.args) == 1 {
			name = ""
		}
		fmt.Fprintf(c.out, "%s%d dependencies\t:", name, len(m.paths))
		for _, d := range slices.Backward(m.paths) {
			switch o := c.get("options"); o {
			case "", "devno":
				fmt.Fprintf(c.out, " (%d, %d)", d.No.Major, d.No.Minor)
			case "devname", "blkdevname":
				fmt.Fprintf(c.out, " (%s)", d.Name)
			default:
				fmt.Fprintf(c.errs, "dmsetup: deps: option -o %s is not supported\nCommand failed.\n", o)
				return 1
			}
		}
		fmt.Fprintln(c.out)
	}
	return 0
}

func (c dmCall) message() int {
	if len(c.args) < 3 {
		fmt.Fprintln(c.errs, "dmsetup: message: device, sector and message are wanted\nCommand failed.")
		return 1
	}
	m := c.s.dmFind(c.args[0])
	if m == nil {
		fmt.Fprintf(c.errs, "Device %s not found\nCommand failed.\n", c.args[0])
		return 1
	}
	switch text := strings.Join(c.args[2:], " "); text {
	case "fail_if_no_path":
		m.noQueue = true
	case "queue_if_no_path":
		m.noQueue = false
	default:
		fmt.Fprintf(c.errs, "device-mapper: message ioctl on %s failed: Invalid argument\nCommand failed.\n", m.Alias)
		return 1
	}
	return 0
}

func (c dmCall) remove() int {
	m := c.one()
	if m == nil {
		return 1
	}
	if c.has("deferred") {
		fmt.Fprintln(c.errs, "dmsetup: remove: option --deferred is not supported\nCommand failed.")
		return 1
	}
	remove := c.s.Flush
	if c.has("force") {
		remove = c.s.Break
	}
	if err := remove(m); err != nil {
		fmt.Fprintf(c.errs, "device-mapper: remove ioctl on %s  failed: Device or resource busy\nCommand failed.\n", m.Alias)
		return 1
	}
	return 0
}

func (c dmCall) suspend(on bool) int {
	m := c.one()
	if m == nil {
		return 1
	}
	m.suspended = on
	return 0
}
