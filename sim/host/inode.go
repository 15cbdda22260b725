package host

import (
	"io/fs"
	"maps"
	"path"
	"slices"
	"syscall"
	"time"
)

// devno is a device number.
type devno struct{ major, minor int }

// inode is a file, directory, link or device node of the kernel in memory. No
// inode has two names, so that it is its own directory entry.
type inode struct {
	sb     *superblock
	ino    int64
	mode   fs.FileMode // type, permissions, setgid
	uid    int
	gid    int
	mtime  time.Time
	parent *inode
	name   string
	mounts int // mounts on it: it can't be removed or renamed

	children map[string]*inode // directory
	target   string            // symbolic link
	dev      devno             // device node

	// Content of a regular file: in data on filesystems in memory, in blocks
	// and dirty on a volume; made by gen or taken by set in /proc and /sys.
	data   []byte
	gen    func() ([]byte, error)
	set    func([]byte) error
	size   int64
	blocks map[int64]int64  // block of the file -> block of the device
	dirty  map[int64][]byte // block of the file -> content not yet on the device
}

// superblock is a filesystem that is in use.
type superblock struct {
	fstype string
	source string
	dev    devno
	ro     bool
	vol    *volume // nil in memory
	root   *inode
	refs   int // mounts
	next   int64
	count  int64 // inodes
	now    func() time.Time
}

func newSuperblock(fstype, source string, dev devno) *superblock {
	sb := &superblock{fstype: fstype, source: source, dev: dev, now: time.Now}
	sb.root = sb.inode(fs.ModeDir | 0o755)
	sb.root.name = "/"
	return sb
}

func (sb *superblock) inode(mode fs.FileMode) *inode {
	sb.next++
	sb.count++
	n := &inode{sb: sb, ino: sb.next, mode: mode, mtime: sb.now()}
	if mode.IsDir() {
		n.children = map[string]*inode{}
	}
	return n
}

// add makes a child. The name must be free.
func (n *inode) add(name string, mode fs.FileMode) *inode {
	c := n.sb.inode(mode)
	// A directory with the setgid bit hands its group down (inode(7)).
	if n.mode&fs.ModeSetgid != 0 {
		c.gid = n.gid
		if mode.IsDir() {
			c.mode |= fs.ModeSetgid
		}
	}
	c.parent, c.name = n, name
	n.children[name] = c
	n.touch()
	return c
}

// at gives the descendant at a relative path, making directories: for the
// kernel's own trees (/dev, /sys, /proc).
func (n *inode) at(rel string) *inode {
	for _, name := range splitPath(rel) {
		c := n.children[name]
		if c == nil {
			c = n.add(name, fs.ModeDir|0o755)
		}
		n = c
	}
	return n
}

// file puts a file with made content in the kernel's own trees.
func (n *inode) file(rel string, gen func() []byte, set func([]byte) error) {
	dir, base := path.Split(rel)
	mode := fs.FileMode(0o444)
	if set != nil {
		mode = 0o644
	}
	f := n.at(dir).add(base, mode)
	if gen != nil {
		f.gen = func() ([]byte, error) { return gen(), nil }
	}
	f.set = set
}

// drop takes n out of its directory.
func (n *inode) drop() {
	delete(n.parent.children, n.name)
	n.parent.touch()
	n.sb.gone(n)
}

// gone accounts for an inode, and what is below it, that has no name any more.
func (sb *superblock) gone(n *inode) {
	for _, c := range n.children {
		sb.gone(c)
	}
	sb.count--
	if sb.vol != nil {
		sb.vol.release(n)
	}
}

func (n *inode) touch() {
	n.mtime = n.sb.now()
	if n.sb.vol != nil {
		n.sb.vol.changed = true
	}
}

func (n *inode) names() []string { return slices.Sorted(maps.Keys(n.children)) }

func (n *inode) length() int64 {
	switch {
	case n.gen != nil:
		return 4096 // as sysfs says
	case n.mode&fs.ModeSymlink != 0:
		return int64(len(n.target))
	case n.sb.vol != nil:
		return n.size
	}
	return int64(len(n.data))
}

// readAt reads a regular file.
func (n *inode) readAt(off int64, b []byte) (int, error) {
	if n.sb.vol != nil {
		return n.sb.vol.readAt(n, off, b)
	}
	data := n.data
	if n.gen != nil {
		var err error
		if data, err = n.gen(); err != nil {
			return 0, err
		}
	}
	if off >= int64(len(data)) {
		return 0, nil
	}
	return copy(b, data[off:]), nil
}

// writeAt writes a regular file and makes it longer where needed.
func (n *inode) writeAt(off int64, b []byte) error {
	switch {
	case n.set != nil:
		return n.set(b)
	case n.gen != nil:
		return syscall.EACCES
	case n.sb.vol != nil:
		if err := n.sb.vol.writeAt(n, off, b); err != nil {
			return err
		}
	default:
		if end := off + int64(len(b)); end > int64(len(n.data)) {
			n.data = append(n.data, make([]byte, end-int64(len(n.data)))...)
		}
		copy(n.data[off:], b)
	}
	n.touch()
	return nil
}

// truncate empties a regular file.
func (n *inode) truncate() {
	if n.sb.vol != nil {
		n.sb.vol.release(n)
	}
	n.data = nil
	n.touch()
}

// info is the fs.FileInfo of an inode under the name that was asked for.
type info struct {
	name  string
	size  int64
	mode  fs.FileMode
	mtime time.Time
}

func (n *inode) info(name string) fs.FileInfo {
	return info{name, n.length(), n.mode, n.mtime}
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return i.mtime }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }
