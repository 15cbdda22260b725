package host

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"syscall"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host/scsi"
)

// blockSize is the block of the page cache and of volumes, in bytes.
const blockSize = 4096

// scsiMajor is the major number of the first SCSI disks; each has 16 minors.
const scsiMajor = 8

// device is a SCSI disk with its part of the page cache. Data is on the disk
// only after flush.
type device struct {
	wwn   string
	img   disk.Image
	name  string // sdb
	no    devno
	size  int64 // as last scanned
	gone  bool
	ro    bool
	refs  int // mounted filesystems, and opens, keep the number of a disk that is gone
	opens int
	dirty map[int64][]byte
}

func (d *device) path() string { return "/dev/" + d.name }

// read fills b from off. The caller keeps within the size.
func (d *device) read(b []byte, off int64) error {
	if d.gone {
		return syscall.EIO
	}
	if off < 0 || off+int64(len(b)) > d.size {
		return syscall.EIO
	}
	for len(b) > 0 {
		blk, in := off/blockSize, off%blockSize
		n := min(int64(len(b)), blockSize-in)
		if p := d.dirty[blk]; p != nil {
			copy(b[:n], p[in:])
			b, off = b[n:], off+n
			continue
		}
		// Up to the next block that the cache has.
		for next := blk + 1; n < int64(len(b)) && (len(d.dirty) == 0 || d.dirty[next] == nil); next++ {
			n = min(int64(len(b)), n+blockSize)
		}
		if got, err := d.img.ReadAt(b[:n], off); errors.Is(err, scsi.ErrQueued) {
			return err
		} else if int64(got) < n && err != nil {
			return syscall.EIO
		}
		b, off = b[n:], off+n
	}
	return nil
}

// write puts b in the cache.
func (d *device) write(b []byte, off int64) error {
	if d.gone {
		return syscall.EIO
	}
	if d.ro {
		return syscall.EPERM
	}
	if off < 0 || off+int64(len(b)) > d.size {
		return syscall.ENOSPC
	}
	for len(b) > 0 {
		blk, in := off/blockSize, off%blockSize
		n := min(int64(len(b)), blockSize-in)
		p := d.dirty[blk]
		if p == nil {
			p = make([]byte, blockSize)
			if have := min(blockSize, d.size-blk*blockSize); n < have {
				if err := d.read(p[:have], blk*blockSize); err != nil {
					return err
				}
			}
			d.dirty[blk] = p
		}
		copy(p[in:], b[:n])
		b, off = b[n:], off+n
	}
	return nil
}

// flush brings the cache to the disk. What can't be written is dropped, as the
// kernel drops pages whose write-back failed, and the error told once; what has
// to wait for a path (scsi.ErrQueued) stays.
func (d *device) flush() error {
	blks := slices.Sorted(maps.Keys(d.dirty))
	var failed error
	var run []byte
	first := 0
	for i, blk := range blks {
		// Neighbours go in one write.
		run = append(run, d.dirty[blk][:max(0, min(blockSize, d.size-blk*blockSize))]...)
		if i+1 < len(blks) && blks[i+1] == blk+1 && len(run) < maxWrite {
			continue
		}
		if d.gone {
			failed = syscall.EIO
		} else if _, err := d.img.WriteAt(run, blks[first]*blockSize); errors.Is(err, scsi.ErrQueued) {
			return err
		} else if err != nil {
			failed = syscall.EIO
		}
		for _, done := range blks[first : i+1] {
			delete(d.dirty, done)
		}
		run, first = run[:0], i+1
	}
	if failed != nil || d.gone {
		return syscall.EIO
	}
	if err := d.img.Sync(); errors.Is(err, scsi.ErrQueued) {
		return err
	} else if err != nil {
		return syscall.EIO
	}
	return nil
}

// maxWrite is the largest write to a disk, in bytes.
const maxWrite = 1 << 20

// rescan takes over the present size of the disk.
func (d *device) rescan() error {
	if d.gone {
		return syscall.ENODEV
	}
	d.size = d.img.Size()
	return nil
}

// diskName gives the name of the nth SCSI disk: sda … sdz, sdaa ….
func diskName(i int) string { return scsi.DiskName(i) }

// freeDisk is the lowest number that no disk has. 0 is the node's own disk.
// A number is free again once its disk is pulled and nothing of it is mounted,
// so that a name comes to stand for another disk, as in life.
func (h *Memory) freeDisk() int {
	for i := 1; ; i++ {
		if h.devices[diskNo(i)] == nil {
			return i
		}
	}
}

func diskNo(i int) devno {
	no := scsi.DiskNo(i)
	return devno{no.Major, no.Minor}
}

// plug gives a disk its name, device node, links and sysfs entries.
func (h *Memory) plug(d *device) {
	i := h.freeDisk()
	d.name, d.no, d.gone = diskName(i), diskNo(i), false
	d.size = d.img.Size()
	d.dirty = map[int64][]byte{}
	h.devices[d.no] = d
	dev := h.dev.root
	node := dev.add(d.name, fs.ModeDevice|0o660)
	node.dev = d.no
	for _, link := range links(d.wwn) {
		l := dev.at("disk/by-id").add(link, fs.ModeSymlink|0o777)
		l.target = "../../" + d.name
	}
	sys := h.sys.root
	dir := "block/" + d.name
	sys.file(dir+"/size", func() []byte { return fmt.Appendf(nil, "%d\n", d.size/512) }, nil)
	sys.file(dir+"/ro", func() []byte { return []byte("0\n") }, nil)
	sys.file(dir+"/dev", func() []byte { return fmt.Appendf(nil, "%d:%d\n", d.no.major, d.no.minor) }, nil)
	sys.file(dir+"/device/wwid", func() []byte { return []byte("naa." + d.wwn + "\n") }, nil)
	sys.file(dir+"/device/state", func() []byte { return []byte("running\n") }, nil)
	sys.file(dir+"/device/rescan", nil, func([]byte) error { return d.rescan() })
	h.log.Debug("disk attached", "node", h.cfg.Name, "wwn", d.wwn, "device", d.name)
}

// links are the names of a disk in /dev/disk/by-id.
func links(wwn string) []string { return []string{"wwn-0x" + wwn, "scsi-3" + wwn} }

// unplug takes them away. The device stays known while it is mounted.
func (h *Memory) unplug(d *device) {
	for _, link := range links(d.wwn) {
		if l := h.dev.root.at("disk/by-id").children[link]; l != nil && l.target == "../../"+d.name {
			l.drop()
		}
	}
	if n := h.dev.root.children[d.name]; n != nil {
		n.drop()
	}
	if n := h.sys.root.at("block").children[d.name]; n != nil {
		n.drop()
	}
	d.gone = true
	clear(d.dirty)
	h.settle(d)
}

// settle frees the number of a disk that is gone and not mounted.
func (h *Memory) settle(d *device) {
	if d.gone && d.refs == 0 && d.opens == 0 && h.devices[d.no] == d {
		delete(h.devices, d.no)
	}
}

// open finds the disk behind a device node.
func (h *Memory) open(n *inode) (*device, error) {
	if n.mode&fs.ModeDevice == 0 {
		return nil, syscall.ENOTBLK
	}
	d := h.devices[n.dev]
	if d == nil || d.gone {
		return nil, syscall.ENXIO
	}
	h.now.dev = d
	return d, nil
}
