package host

import (
	"io/fs"
	"path"
	"slices"

	"github.com/csilab/csilab/sim/host/scsi"
)

// stackView shows the things of a SCSI stack below a node's /sys.
type stackView struct {
	stack *scsi.Stack
	root  *inode
	// written is called after each write to a file: it may have changed the stack.
	written func()
	shown   map[scsi.Object][]*inode
	fixed   map[*inode]bool // directories that stay
}

func newStackView(s *scsi.Stack, root *inode, written func()) *stackView {
	v := &stackView{stack: s, root: root, written: written, shown: map[scsi.Object][]*inode{}, fixed: map[*inode]bool{}}
	for _, f := range s.Static() {
		v.keep(f.Path)
	}
	return v
}

// keep makes a directory that stays.
func (v *stackView) keep(rel string) { v.fixed[v.root.at(rel)] = true }

// show puts the files of an object in /sys.
func (v *stackView) show(o scsi.Object) {
	for _, f := range v.stack.Sysfs(o) {
		dir, name := path.Split(f.Path)
		at := v.root.at(dir)
		if at.children[name] != nil {
			continue
		}
		var n *inode
		switch {
		case f.Link != "":
			n = at.add(name, fs.ModeSymlink|0o777)
			n.target = f.Link
		case f.Read == nil && f.Write == nil:
			n = at.add(name, fs.ModeDir|0o755)
		default:
			mode := fs.FileMode(0)
			if f.Read != nil {
				mode |= 0o444
			}
			if f.Write != nil {
				mode |= 0o200
			}
			n = at.add(name, mode)
			n.gen = f.Read
			if f.Write != nil {
				n.set = func(b []byte) error {
					defer v.written()
					return f.Write(b)
				}
			}
		}
		v.shown[o] = append(v.shown[o], n)
	}
}

// hide takes them away, and the directories that are empty then.
func (v *stackView) hide(o scsi.Object) {
	for _, n := range slices.Backward(v.shown[o]) {
		for n != v.root && len(n.children) == 0 && !v.fixed[n] && n.parent.children[n.name] == n {
			up := n.parent
			n.drop()
			n = up
		}
	}
	delete(v.shown, o)
}
