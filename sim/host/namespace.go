package host

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"
)

// mounted is an entry of the mount table.
type mounted struct {
	id     int
	parent *mounted // nil for /
	on     *inode   // mount point, in parent
	root   *inode   // what is seen there
	sb     *superblock
	source string
	ro     bool     // of this mount; the superblock may be read-only besides
	opts   []string // others, as shown in /proc/mounts
	busy   int      // open files
	remote *remote  // of a share on a server
}

func (m *mounted) readOnly() bool { return m.ro || m.sb.ro }

func (m *mounted) options() []string {
	o := []string{"rw"}
	if m.readOnly() {
		o[0] = "ro"
	}
	o = append(o, m.opts...)
	if !slices.Contains(o, "noatime") {
		o = append(o, "relatime")
	}
	return o
}

// place is a path that has been walked.
type place struct {
	m *mounted
	n *inode
}

// namespace is the mount table; the order is the order of mounting.
type namespace struct {
	table []*mounted
	next  int
}

func splitPath(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." })
}

// top steps to what is mounted on p last.
func (ns *namespace) top(p place) place {
	for p.n.mounts > 0 {
		i := slices.IndexFunc(ns.table, func(m *mounted) bool { return m.parent == p.m && m.on == p.n })
		if i < 0 {
			break
		}
		p = place{ns.table[i], ns.table[i].root}
	}
	return p
}

func (ns *namespace) root() place { return ns.top(place{ns.table[0], ns.table[0].root}) }

// maxLinks is the kernel's limit of symbolic links in one walk (path_resolution(7)).
const maxLinks = 40

// walk resolves an absolute path; follow says whether a link at its end is
// followed too.
func (ns *namespace) walk(p string, follow bool) (place, error) {
	if !strings.HasPrefix(p, "/") {
		return place{}, syscall.ENOENT
	}
	todo := splitPath(p)
	if strings.HasSuffix(p, "/") {
		follow = true
	}
	at := ns.root()
	links := 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		if !at.n.mode.IsDir() {
			return place{}, syscall.ENOTDIR
		}
		if name == ".." {
			for at.n == at.m.root && at.m.parent != nil {
				at = place{at.m.parent, at.m.on}
			}
			if at.n.parent != nil && at.n != at.m.root {
				at.n = at.n.parent
			}
			at = ns.top(at)
			continue
		}
		c := at.n.children[name]
		if c == nil {
			return place{}, syscall.ENOENT
		}
		next := ns.top(place{at.m, c})
		if next.n.mode&fs.ModeSymlink != 0 && (follow || len(todo) > 0) {
			if links++; links > maxLinks {
				return place{}, syscall.ELOOP
			}
			todo = append(splitPath(next.n.target), todo...)
			if strings.HasPrefix(next.n.target, "/") {
				at = ns.root()
			}
			continue
		}
		at = next
	}
	return at, nil
}

// parent resolves the directory that holds the last name of p.
func (ns *namespace) parent(p string) (dir place, name string, err error) {
	clean := path.Clean(p)
	if clean == "/" || !path.IsAbs(clean) {
		return place{}, "", syscall.EBUSY
	}
	dir, err = ns.walk(path.Dir(clean), true)
	if err == nil && !dir.n.mode.IsDir() {
		err = syscall.ENOTDIR
	}
	return dir, path.Base(clean), err
}

// path is the name of a place from the root.
func (ns *namespace) path(p place) string {
	var names []string
	for {
		for p.n != p.m.root {
			names = append(names, p.n.name)
			if p.n.parent == nil {
				break
			}
			p.n = p.n.parent
		}
		if p.m.parent == nil {
			break
		}
		p = place{p.m.parent, p.m.on}
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/")
}

// within is the path of an inode inside its filesystem (the root field of mountinfo).
func within(n *inode) string {
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	slices.Reverse(names)
	return "/" + strings.Join(names, "/")
}

// attach puts a mount in the table.
func (ns *namespace) attach(at place, root *inode, source string, ro bool, opts []string) *mounted {
	ns.next++
	m := &mounted{id: ns.next, parent: at.m, on: at.n, root: root, sb: root.sb, source: source, ro: ro, opts: opts}
	if at.n != nil {
		at.n.mounts++
	}
	root.sb.refs++
	ns.table = append(ns.table, m)
	return m
}

// children says whether something is mounted below m.
func (ns *namespace) children(m *mounted) bool {
	return slices.ContainsFunc(ns.table, func(c *mounted) bool { return c.parent == m })
}

// detach takes a mount out of the table.
func (ns *namespace) detach(m *mounted) {
	ns.table = slices.DeleteFunc(ns.table, func(x *mounted) bool { return x == m })
	if m.on != nil {
		m.on.mounts--
	}
	m.sb.refs--
}

func (ns *namespace) where(m *mounted) string { return ns.path(place{m, m.root}) }

// info is the content of /proc/self/mountinfo (proc_pid_mountinfo(5)).
func (ns *namespace) info() []byte {
	var b strings.Builder
	for _, m := range ns.table {
		parent := 0
		if m.parent != nil {
			parent = m.parent.id
		}
		own := "rw"
		if m.ro {
			own = "ro"
		}
		super := "rw"
		if m.sb.ro {
			super = "ro"
		}
		fmt.Fprintf(&b, "%d %d %d:%d %s %s %s - %s %s %s\n", m.id, parent, m.sb.dev.major, m.sb.dev.minor,
			within(m.root), ns.where(m), strings.Join(append([]string{own}, m.options()[1:]...), ","), m.sb.fstype, m.source, super)
	}
	return []byte(b.String())
}

// mounts is the content of /proc/mounts.
func (ns *namespace) mounts() []byte {
	var b strings.Builder
	for _, m := range ns.table {
		fmt.Fprintf(&b, "%s %s %s %s 0 0\n", m.source, ns.where(m), m.sb.fstype, strings.Join(m.options(), ","))
	}
	return []byte(b.String())
}
