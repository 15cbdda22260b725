package host

import (
	"errors"
	"io/fs"
	"strconv"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// nodeFS is what the FUSE filesystem of a node shows: its /sys below "sys", and
// below "lun" a file for each block device of its SCSI stack, which a loop
// device makes a block device of again.
//
// The kernel keeps the names of /sys until it is told that they went, and no
// content: files change without it, and what is behind a device may, too.
type nodeFS struct {
	fuse.RawFileSystem // answers ENOSYS to the rest
	san                *realSAN

	mu    sync.Mutex
	known map[uint64]*knownInode
}

// knownInode is an inode of /sys that the kernel knows.
type knownInode struct {
	n       *inode
	lookups uint64
}

// Ids of nodes: the root, the directory of devices, inodes of /sys and devices.
const (
	fsRoot  = fuse.FUSE_ROOT_ID
	fsLUNs  = 2
	fsReady = 3       // an empty file, see mountFUSE
	fsInode = 1 << 32 // + inode number
	fsLUN   = 1 << 33 // + number of the device
)

// namesValid is for how long the kernel keeps a name, in seconds: for good.
const namesValid = 1 << 30

func newNodeFS(x *realSAN) *nodeFS {
	return &nodeFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), san: x, known: map[uint64]*knownInode{}}
}

func (f *nodeFS) String() string { return "csilab" }

// inode finds an inode of /sys.
func (f *nodeFS) inode(id uint64) *inode {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.known[id]; k != nil {
		return k.n
	}
	return nil
}

// attached says whether an inode has a path still.
func attached(n *inode) bool {
	for ; n.parent != nil; n = n.parent {
		if n.parent.children[n.name] != n {
			return false
		}
	}
	return true
}

func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	switch {
	case m.IsDir():
		return bits | syscall.S_IFDIR
	case m&fs.ModeSymlink != 0:
		return bits | syscall.S_IFLNK
	}
	return bits | syscall.S_IFREG
}

func inodeAttr(n *inode, a *fuse.Attr) {
	a.Ino, a.Mode, a.Nlink, a.Size = fsInode+uint64(n.ino), unixMode(n.mode), 1, uint64(n.length())
	if n.mode.IsDir() {
		a.Nlink, a.Size = 2, 0
	}
	a.SetTimes(&n.mtime, &n.mtime, &n.mtime)
}

func directory(id uint64, a *fuse.Attr) { a.Ino, a.Mode, a.Nlink = id, syscall.S_IFDIR|0o700, 2 }

// attr describes a node.
func (f *nodeFS) attr(id uint64, a *fuse.Attr) fuse.Status {
	switch {
	case id == fsRoot, id == fsLUNs:
		directory(id, a)
	case id == fsReady:
		a.Ino, a.Mode, a.Nlink = id, syscall.S_IFREG|0o400, 1
	case id >= fsLUN:
		size, ro, ok := f.san.lunInfo(id - fsLUN)
		if !ok {
			return fuse.Status(syscall.ESTALE)
		}
		a.Ino, a.Mode, a.Nlink, a.Size, a.Blocks = id, syscall.S_IFREG|0o600, 1, uint64(size), uint64(size/512)
		if ro {
			a.Mode = syscall.S_IFREG | 0o400
		}
	default:
		n := f.inode(id)
		if n == nil {
			return fuse.Status(syscall.ESTALE)
		}
		f.san.mu.Lock()
		defer f.san.mu.Unlock()
		inodeAttr(n, a)
	}
	return fuse.OK
}

func (f *nodeFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.attr(in.NodeId, &out.Attr)
}

// SetAttr truncates: the shell's > does. In /sys that does nothing.
func (f *nodeFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if in.Valid&^(fuse.FATTR_SIZE|fuse.FATTR_FH|fuse.FATTR_LOCKOWNER|fuse.FATTR_MTIME|fuse.FATTR_CTIME|fuse.FATTR_KILL_SUIDGID) != 0 {
		return fuse.EPERM
	}
	return f.attr(in.NodeId, &out.Attr)
}

func (f *nodeFS) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	switch {
	case h.NodeId == fsRoot && name == "lun":
		out.NodeId = fsLUNs
		directory(fsLUNs, &out.Attr)
		return fuse.OK
	case h.NodeId == fsRoot && name == readyFile:
		out.NodeId = fsReady
		return f.attr(fsReady, &out.Attr)
	case h.NodeId == fsLUNs:
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			return fuse.ENOENT
		}
		if f.attr(fsLUN+id, &out.Attr) != fuse.OK {
			return fuse.ENOENT
		}
		out.NodeId = fsLUN + id
		return fuse.OK
	}
	f.san.mu.Lock()
	var n *inode
	switch dir := f.inode(h.NodeId); {
	case h.NodeId == fsRoot && name == "sys":
		n = f.san.sys.root
	case dir != nil:
		n = dir.children[name]
	}
	if n != nil {
		inodeAttr(n, &out.Attr)
		out.EntryValid, out.AttrValid = namesValid, namesValid
	}
	f.san.mu.Unlock()
	if n == nil {
		return fuse.ENOENT
	}
	out.NodeId = fsInode + uint64(n.ino)
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.known[out.NodeId]
	if k == nil {
		k = &knownInode{n: n}
		f.known[out.NodeId] = k
	}
	k.lookups++
	return fuse.OK
}

func (f *nodeFS) Forget(id, lookups uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.known[id]
	if k == nil {
		return
	}
	if k.lookups <= lookups {
		delete(f.known, id)
		return
	}
	k.lookups -= lookups
}

func (f *nodeFS) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	n := f.inode(h.NodeId)
	if n == nil || n.mode&fs.ModeSymlink == 0 {
		return nil, fuse.EINVAL
	}
	return []byte(n.target), fuse.OK
}

// Open lets nobody, root neither, read or write what has no reader or writer,
// as kernfs does.
func (f *nodeFS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	out.OpenFlags = fuse.FOPEN_DIRECT_IO
	if in.NodeId >= fsLUN || in.NodeId == fsReady {
		return fuse.OK
	}
	n := f.inode(in.NodeId)
	if n == nil {
		return fuse.Status(syscall.ESTALE)
	}
	access := in.Flags & syscall.O_ACCMODE
	if access != syscall.O_WRONLY && n.gen == nil || access != syscall.O_RDONLY && n.set == nil {
		return fuse.EACCES
	}
	return fuse.OK
}

// status maps an error of the node.
func status(err error) fuse.Status {
	var errno syscall.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, &errno):
		return fuse.Status(errno)
	}
	return fuse.EIO
}

func (f *nodeFS) Read(_ <-chan struct{}, in *fuse.ReadIn, b []byte) (fuse.ReadResult, fuse.Status) {
	b = b[:min(len(b), int(in.Size))]
	if in.NodeId >= fsLUN {
		n, err := f.san.readLUN(in.NodeId-fsLUN, b, int64(in.Offset))
		if err != nil {
			return nil, fuse.EIO
		}
		return fuse.ReadResultData(b[:n]), fuse.OK
	}
	n := f.inode(in.NodeId)
	if n == nil || n.gen == nil {
		return nil, fuse.EIO
	}
	f.san.mu.Lock()
	defer f.san.mu.Unlock()
	if !attached(n) {
		return nil, fuse.Status(syscall.ENODEV)
	}
	got, err := n.readAt(int64(in.Offset), b)
	if err != nil {
		return nil, status(err)
	}
	return fuse.ReadResultData(b[:got]), fuse.OK
}

func (f *nodeFS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if in.NodeId >= fsLUN {
		if f.san.writeLUN(in.NodeId-fsLUN, data, int64(in.Offset)) != nil {
			return 0, fuse.EIO
		}
		return uint32(len(data)), fuse.OK
	}
	n := f.inode(in.NodeId)
	if n == nil || n.set == nil {
		return 0, fuse.EIO
	}
	if err := f.san.writeSys(n, data); err != nil {
		return 0, status(err)
	}
	return uint32(len(data)), fuse.OK
}

func (f *nodeFS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if in.NodeId >= fsLUN && f.san.syncLUN(in.NodeId-fsLUN) != nil {
		return fuse.EIO
	}
	return fuse.OK
}

// Flush at a close: the kernel need not ask again.
func (f *nodeFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

func (f *nodeFS) Fallocate(<-chan struct{}, *fuse.FallocateIn) fuse.Status {
	return fuse.Status(syscall.EOPNOTSUPP)
}

func (f *nodeFS) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	out.Bsize, out.Frsize, out.NameLen = blockSize, blockSize, 255
	return fuse.OK
}

func (f *nodeFS) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	return fuse.OK
}

// ReadDir lists a directory; the offset is the index among the names in order.
func (f *nodeFS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	entries := []fuse.DirEntry{{Name: ".", Mode: syscall.S_IFDIR}, {Name: "..", Mode: syscall.S_IFDIR}}
	switch {
	case in.NodeId == fsRoot:
		entries = append(entries, fuse.DirEntry{Name: "lun", Mode: syscall.S_IFDIR}, fuse.DirEntry{Name: "sys", Mode: syscall.S_IFDIR})
	case in.NodeId == fsLUNs: // they are opened by number
	default:
		n := f.inode(in.NodeId)
		if n == nil {
			return fuse.Status(syscall.ESTALE)
		}
		f.san.mu.Lock()
		for _, name := range n.names() {
			c := n.children[name]
			entries = append(entries, fuse.DirEntry{Name: name, Mode: unixMode(c.mode), Ino: fsInode + uint64(c.ino)})
		}
		f.san.mu.Unlock()
	}
	for i := int(in.Offset); i < len(entries); i++ {
		if !out.AddDirEntry(entries[i]) {
			break
		}
	}
	return fuse.OK
}

// What would make or remove something in /sys.

func (f *nodeFS) Create(<-chan struct{}, *fuse.CreateIn, string, *fuse.CreateOut) fuse.Status {
	return fuse.EACCES
}

func (f *nodeFS) Mknod(<-chan struct{}, *fuse.MknodIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EACCES
}

func (f *nodeFS) Symlink(<-chan struct{}, *fuse.InHeader, string, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

func (f *nodeFS) Mkdir(<-chan struct{}, *fuse.MkdirIn, string, *fuse.EntryOut) fuse.Status {
	return fuse.EPERM
}

func (f *nodeFS) Unlink(<-chan struct{}, *fuse.InHeader, string) fuse.Status { return fuse.EPERM }
func (f *nodeFS) Rmdir(<-chan struct{}, *fuse.InHeader, string) fuse.Status  { return fuse.EPERM }

func (f *nodeFS) Rename(<-chan struct{}, *fuse.RenameIn, string, string) fuse.Status {
	return fuse.EPERM
}
