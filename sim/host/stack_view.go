package host

import (
	"io/fs"
	"path"

	"github.com/csilab/csilab/sim/host/scsi"
)

// stackView shows the things of a SCSI stack below a node's /sys.
type stackView struct {
	stack *scsi.Stack
	root  *inode
	// written is called after each write to a file: it may have changed the stack.
	written func()
	// dropped is called before a name goes; nil: nobody wants to know.
	dropped func(n *inode)
	shown   map[scsi.Object]map[string]*inode // by path
	fixed   map[*inode]bool                   // directories that stay
}

func newStackView(s *scsi.Stack, root *inode, written func()) *stackView {
	v := &stackView{stack: s, root: root, written: written, shown: map[scsi.Object]map[string]*inode{}, fixed: map[*inode]bool{}}
	for _, f := range s.Static() {
		v.keep(f.Path)
	}
	return v
}

// keep makes a directory that stays.
func (v *stackView) keep(rel string) { v.fixed[v.root.at(rel)] = true }

// update shows an object as it is now: its files come, stay, or go.
func (v *stackView) update(o scsi.Object) {
	had, has := v.shown[o], map[string]*inode{}
	for _, f := range v.stack.Sysfs(o) {
		n := had[f.Path]
		if n == nil || !sameFile(n, f) {
			if n != nil {
				v.drop(n)
			}
			if n = v.add(f); n == nil {
				continue // it is another object's
			}
		}
		v.bind(n, f)
		has[f.Path] = n
		delete(had, f.Path)
	}
	for _, n := range had {
		if n.parent.children[n.name] == n {
			v.drop(n)
		}
	}
	if len(has) == 0 {
		delete(v.shown, o)
		return
	}
	v.shown[o] = has
}

// sameFile says whether an inode is of the same kind as a file.
func sameFile(n *inode, f scsi.File) bool {
	return n.parent.children[n.name] == n && n.mode == fileMode(f) && n.target == f.Link
}

func fileMode(f scsi.File) fs.FileMode {
	switch {
	case f.Link != "":
		return fs.ModeSymlink | 0o777
	case f.Read == nil && f.Write == nil:
		return fs.ModeDir | 0o755
	}
	mode := fs.FileMode(0)
	if f.Read != nil {
		mode |= 0o444
	}
	if f.Write != nil {
		mode |= 0o200
	}
	return mode
}

// add makes the inode of a file; nil: its name is taken.
func (v *stackView) add(f scsi.File) *inode {
	dir, name := path.Split(f.Path)
	at := v.root.at(dir)
	if at.children[name] != nil {
		return nil
	}
	n := at.add(name, fileMode(f))
	n.target = f.Link
	return n
}

// bind gives an inode its content.
func (v *stackView) bind(n *inode, f scsi.File) {
	n.gen, n.set = f.Read, nil
	if f.Write != nil {
		n.set = func(b []byte) error {
			defer v.written()
			return f.Write(b)
		}
	}
}

// drop takes a file away, and the directories that are empty then.
func (v *stackView) drop(n *inode) {
	for n != v.root && len(n.children) == 0 && !v.fixed[n] && n.parent.children[n.name] == n {
		up := n.parent
		if v.dropped != nil {
			v.dropped(n)
		}
		n.drop()
		n = up
	}
}
