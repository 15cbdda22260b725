package scsi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

func init() { commands["lsblk"] = lsblk }

var lsblkOptions = map[string]spelling{
	"-a": {"all", ""}, "--all": {"all", ""}, "-b": {"bytes", ""}, "--bytes": {"bytes", ""}, "-d": {"nodeps", ""}, "--nodeps": {"nodeps", ""},
	"-f": {"fs", ""}, "--fs": {"fs", ""}, "-i": {"ascii", ""}, "--ascii": {"ascii", ""}, "-J": {"json", ""}, "--json": {"json", ""},
	"-l": {"list", ""}, "--list": {"list", ""}, "-n": {"noheadings", ""}, "--noheadings": {"noheadings", ""},
	"-o": {"output", "="}, "--output": {"output", "="}, "-p": {"paths", ""}, "--paths": {"paths", ""}, "-P": {"pairs", ""}, "--pairs": {"pairs", ""},
	"-r": {"raw", ""}, "--raw": {"raw", ""}, "-s": {"inverse", ""}, "--inverse": {"inverse", ""}, "-S": {"scsi", ""}, "--scsi": {"scsi", ""},
	"-e": {"exclude", "="}, "--exclude": {"exclude", "="}, "-I": {"include", "="}, "--include": {"include", "="},
}

// blockNode is a block device in lsblk's tree.
type blockNode struct {
	Block
	kname    string
	state    string
	children []*blockNode // what is made of it
	parents  []*blockNode
}

// blockTree are all block devices: those of the node and the stack's, by name.
func (s *Stack) blockTree() []*blockNode {
	var all []*blockNode
	for _, b := range s.node.Others() {
		all = append(all, &blockNode{Block: b, kname: b.Name, state: "running"})
	}
	byMap := map[*Map]*blockNode{}
	for _, d := range s.Disks() {
		n := &blockNode{kname: d.Name, state: s.state(d), Block: Block{Name: d.Name, Type: "disk", No: d.No, Bytes: d.Bytes, ReadOnly: d.ReadOnly,
			WWN: d.wwid, Serial: d.wwid, Vendor: d.Vendor, Model: d.Product, HCTL: d.Address.String(), Protocol: string(d.nexus.Target.Protocol)}}
		all = append(all, n)
		if m := d.inMap; m != nil {
			if byMap[m] == nil {
				byMap[m] = s.mapNode(m)
			}
			n.children = append(n.children, byMap[m])
			byMap[m].parents = append(byMap[m].parents, n)
		}
	}
	for _, m := range s.Maps() {
		n := byMap[m]
		if n == nil {
			n = s.mapNode(m) // without a path
		}
		all = append(all, n)
	}
	slices.SortStableFunc(all, func(a, b *blockNode) int {
		return strings.Compare(fmt.Sprintf("%3d%s", len(a.kname), a.kname), fmt.Sprintf("%3d%s", len(b.kname), b.kname))
	})
	return all
}

func (s *Stack) mapNode(m *Map) *blockNode {
	state := "running"
	if m.suspended {
		state = "suspended"
	}
	kind := "mpath"
	if m.broken {
		kind = "dm"
	}
	return &blockNode{kname: m.Name(), state: state, Block: Block{Name: m.Alias, Type: kind, No: Devno{DMMajor, m.Minor}, Bytes: m.Bytes, ReadOnly: m.ReadOnly, WWN: m.WWID}}
}

// lsblk is lsblk(8), as of util-linux 2.38.
func lsblk(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, lsblkOptions)
	if err != nil {
		fmt.Fprintf(errs, "lsblk: %v\n", err)
		return 1
	}
	l := lister{s: s, options: o}
	l.columns = strings.Split("NAME,MAJ:MIN,RM,SIZE,RO,TYPE,MOUNTPOINTS", ",")
	switch {
	case o.has("output"):
		l.columns = nil
		for _, v := range o.values["output"] {
			l.columns = append(l.columns, strings.Split(strings.ToUpper(v), ",")...)
		}
	case o.has("fs"):
		l.columns = strings.Split("NAME,FSTYPE,UUID,MOUNTPOINTS", ",")
	case o.has("scsi"):
		l.columns = strings.Split("NAME,HCTL,TYPE,VENDOR,MODEL,REV,SERIAL,TRAN", ",")
	}
	for _, c := range l.columns {
		if _, ok := lsblkColumns[c]; !ok {
			fmt.Fprintf(errs, "lsblk: unknown column: %s\n", c)
			return 1
		}
	}
	all := s.blockTree()
	var roots []*blockNode
	status := 0
	if len(o.operand) > 0 {
		for _, p := range o.operand {
			n := findBlock(s, all, p)
			if n == nil {
				fmt.Fprintf(errs, "lsblk: %s: not a block device\n", p)
				status = 32
				continue
			}
			roots = append(roots, n)
		}
		if len(roots) > 0 && status != 0 {
			status = 64
		}
	} else {
		for _, n := range all {
			top := n.parents
			if o.has("inverse") {
				top = n.children
			}
			if len(top) == 0 && (n.Bytes > 0 || o.has("all")) && l.major(n.No.Major) && (!o.has("scsi") || n.HCTL != "") {
				roots = append(roots, n)
			}
		}
	}
	if o.has("scsi") {
		l.values["nodeps"] = []string{""}
	}
	if status != 32 {
		l.print(out, roots)
	}
	return status
}

// findBlock takes a path: a node in /dev, or a link to one.
func findBlock(s *Stack, all []*blockNode, p string) *blockNode {
	rest, ok := strings.CutPrefix(p, "/dev/")
	if !ok {
		return nil
	}
	if target, ok := s.Link(rest); ok {
		rest = target[strings.LastIndex(target, "/")+1:]
	}
	for _, n := range all {
		if n.kname == rest {
			return n
		}
	}
	return nil
}

// lister is one run of lsblk.
type lister struct {
	s *Stack
	options
	columns []string
}

func (l lister) major(n int) bool {
	in := func(list string) bool { return slices.Contains(strings.Split(list, ","), strconv.Itoa(n)) }
	return !(l.has("exclude") && in(l.get("exclude"))) && !(l.has("include") && !in(l.get("include")))
}

// lsblkColumns make the cells; numbers and booleans are such in JSON.
var lsblkColumns = map[string]func(l lister, n *blockNode, parent *blockNode) any{
	"NAME": func(l lister, n, _ *blockNode) any {
		if !l.has("paths") {
			return n.Name
		}
		return n.path()
	},
	"KNAME": func(l lister, n, _ *blockNode) any {
		if l.has("paths") {
			return "/dev/" + n.kname
		}
		return n.kname
	},
	"PKNAME": func(l lister, _, parent *blockNode) any {
		switch {
		case parent == nil:
			return nil
		case l.has("paths"):
			return "/dev/" + parent.kname
		}
		return parent.kname
	},
	"PATH":    func(_ lister, n, _ *blockNode) any { return n.path() },
	"MAJ:MIN": func(_ lister, n, _ *blockNode) any { return n.No.String() },
	"TYPE":    func(_ lister, n, _ *blockNode) any { return n.Type },
	"SIZE": func(l lister, n, _ *blockNode) any {
		if l.has("bytes") {
			return n.Bytes
		}
		return lsblkSize(n.Bytes)
	},
	"RO":     func(_ lister, n, _ *blockNode) any { return n.ReadOnly },
	"RM":     func(lister, *blockNode, *blockNode) any { return false },
	"ROTA":   func(lister, *blockNode, *blockNode) any { return false },
	"FSTYPE": func(l lister, n, _ *blockNode) any { return orNil(l.content(n).Type) },
	"UUID":   func(l lister, n, _ *blockNode) any { return orNil(l.content(n).UUID) },
	"LABEL":  func(lister, *blockNode, *blockNode) any { return nil },
	"MOUNTPOINT": func(l lister, n, _ *blockNode) any {
		if m := l.s.node.Content(n.kname).Mounts; len(m) > 0 {
			return m[0]
		}
		return nil
	},
	"MOUNTPOINTS": func(l lister, n, _ *blockNode) any { return l.s.node.Content(n.kname).Mounts },
	"WWN": func(_ lister, n, _ *blockNode) any {
		if n.WWN == "" {
			return nil
		}
		return "0x" + n.WWN
	},
	"SERIAL":     func(_ lister, n, _ *blockNode) any { return orNil(n.Serial) },
	"VENDOR":     func(_ lister, n, _ *blockNode) any { return orNil(fmt.Sprintf("%-8s", n.Vendor)) },
	"MODEL":      func(_ lister, n, _ *blockNode) any { return orNil(n.Model) },
	"REV":        func(_ lister, n, _ *blockNode) any { return orNil(n.rev()) },
	"STATE":      func(_ lister, n, _ *blockNode) any { return n.state },
	"HCTL":       func(_ lister, n, _ *blockNode) any { return orNil(n.HCTL) },
	"TRAN":       func(_ lister, n, _ *blockNode) any { return orNil(n.Protocol) },
	"SUBSYSTEMS": func(_ lister, n, _ *blockNode) any { return n.subsystems() },
}

// content is what is on a device; a member of a map shows mpath_member.
func (l lister) content(n *blockNode) Content {
	if len(n.children) > 0 && n.children[0].Type == "mpath" {
		return Content{Type: "mpath_member"}
	}
	return l.s.node.Content(n.kname)
}

func (n *blockNode) path() string {
	if strings.HasPrefix(n.kname, "dm-") {
		return "/dev/mapper/" + n.Name
	}
	return "/dev/" + n.kname
}

func (n *blockNode) rev() string {
	if n.HCTL == "" {
		return ""
	}
	return revision
}

func (n *blockNode) subsystems() string {
	if n.HCTL == "" {
		return "block"
	}
	return "block:scsi"
}

func orNil(text string) any {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return text
}

// lsblkSize is as lsblk prints it: 10G, 1.5G, 512M.
func lsblkSize(bytes int64) string {
	n, units := float64(bytes), "BKMGTPE"
	i := 0
	for n >= 1024 && i < len(units)-1 {
		n /= 1024
		i++
	}
	text := strings.TrimSuffix(strconv.FormatFloat(n, 'f', 1, 64), ".0")
	return text + units[i:i+1]
}

func cellText(v any) string {
	switch x := v.(type) {
	case nil:
		return ""
	case bool:
		return oneIf(x)
	case []string:
		return strings.Join(x, `\n`)
	}
	return fmt.Sprint(v)
}

type row struct {
	n, parent *blockNode
	prefix    string // of the tree
}

// rows are the devices in order. In a list each comes once, in a tree below
// each of those that it is made of.
func (l lister) rows(roots []*blockNode, tree bool) []row {
	var out []row
	seen := map[*blockNode]bool{}
	var visit func(n, parent *blockNode, prefix, deeper string)
	visit = func(n, parent *blockNode, prefix, deeper string) {
		if !tree && seen[n] {
			return
		}
		seen[n] = true
		out = append(out, row{n, parent, prefix})
		if l.has("nodeps") {
			return
		}
		below := n.children
		if l.has("inverse") {
			below = n.parents
		}
		for i, c := range below {
			branch, bar := "├─", "│ "
			if i == len(below)-1 {
				branch, bar = "└─", "  "
			}
			if l.has("ascii") {
				branch, bar = strings.NewReplacer("├", "|", "└", "`", "─", "-").Replace(branch), strings.ReplaceAll(bar, "│", "|")
			}
			visit(c, n, deeper+branch, deeper+bar)
		}
	}
	for _, r := range roots {
		visit(r, nil, "", "")
	}
	return out
}

func (l lister) print(out io.Writer, roots []*blockNode) {
	flat := l.has("list") || l.has("raw") || l.has("pairs") || !slices.Contains(l.columns, "NAME")
	if l.has("json") {
		l.json(out, roots, flat)
		return
	}
	rs := l.rows(roots, !flat)
	var lines [][]string
	right := map[int]bool{}
	if !l.has("noheadings") && !l.has("pairs") {
		lines = append(lines, l.columns)
	}
	for i, c := range l.columns {
		right[i] = slices.Contains([]string{"SIZE", "RO", "RM", "ROTA"}, c)
	}
	for _, r := range rs {
		var cells []string
		for _, c := range l.columns {
			text := cellText(lsblkColumns[c](l, r.n, r.parent))
			switch {
			case l.has("pairs"):
				text = c + "=" + strconv.Quote(text)
			case c == "NAME" && !flat:
				text = r.prefix + text
			case c == "MOUNTPOINTS":
				text = strings.ReplaceAll(text, `\n`, " ")
			}
			cells = append(cells, text)
		}
		lines = append(lines, cells)
	}
	if l.has("raw") || l.has("pairs") {
		for _, c := range lines {
			fmt.Fprintln(out, strings.Join(c, " "))
		}
		return
	}
	writeColumns(out, lines, right)
}

// json prints {"blockdevices": […]}; in a tree with children.
func (l lister) json(out io.Writer, roots []*blockNode, flat bool) {
	var object func(b *bytes.Buffer, n, parent *blockNode)
	object = func(b *bytes.Buffer, n, parent *blockNode) {
		b.WriteByte('{')
		for i, c := range l.columns {
			if i > 0 {
				b.WriteByte(',')
			}
			v := lsblkColumns[c](l, n, parent)
			if m, ok := v.([]string); ok && len(m) == 0 {
				v = []any{nil} // as lsblk does
			}
			text, _ := json.Marshal(v)
			fmt.Fprintf(b, "%q:%s", strings.ToLower(c), text)
		}
		below := n.children
		if l.has("inverse") {
			below = n.parents
		}
		if !flat && len(below) > 0 && !l.has("nodeps") {
			b.WriteString(`,"children":[`)
			for i, c := range below {
				if i > 0 {
					b.WriteByte(',')
				}
				object(b, c, n)
			}
			b.WriteByte(']')
		}
		b.WriteByte('}')
	}
	var b, pretty bytes.Buffer
	b.WriteString(`{"blockdevices":[`)
	if flat {
		for i, r := range l.rows(roots, false) {
			if i > 0 {
				b.WriteByte(',')
			}
			object(&b, r.n, r.parent)
		}
	} else {
		for i, n := range roots {
			if i > 0 {
				b.WriteByte(',')
			}
			object(&b, n, nil)
		}
	}
	b.WriteString("]}")
	if json.Indent(&pretty, b.Bytes(), "", "   ") == nil {
		fmt.Fprintln(out, pretty.String())
	}
}
