package host

import (
	"cmp"
	"errors"
	"hash/crc32"
	"maps"
	"slices"
	"syscall"

	"github.com/csilab/csilab/sim/host/scsi"
)

// volume is a mounted filesystem of a disk: the tree as of the mount plus what
// was done since, which is on the disk only after commit. Another node that
// mounts the same disk has its own idea of the tree, as with any filesystem
// that is not a cluster's.
type volume struct {
	dev     *device
	head    header
	sb      *superblock
	meta    []run // blocks of the last commit's metadata
	free    freeMap
	pending []run // freed since the last commit; the disk still refers to them
	live    int64 // blocks of files, present and promised
	usable  int64
	inodes  int64
	changed bool // something is to commit
	aborted bool // the log could not be written: nothing more is, until the next mount
}

// readAt reads from the page cache or the disk.
func (v *volume) readAt(n *inode, off int64, b []byte) (int, error) {
	if off >= n.size {
		return 0, nil
	}
	b = b[:min(int64(len(b)), n.size-off)]
	got := len(b)
	for len(b) > 0 {
		blk, in := off/blockSize, off%blockSize
		l := min(int64(len(b)), blockSize-in)
		if p := n.dirty[blk]; p != nil {
			copy(b[:l], p[in:])
		} else if at, ok := n.blocks[blk]; ok {
			if err := v.dev.read(b[:l], at*blockSize+in); err != nil {
				return 0, err
			}
		} else {
			clear(b[:l])
		}
		b, off = b[l:], off+l
	}
	return got, nil
}

// writeAt writes to the page cache; the whole of b or nothing.
func (v *volume) writeAt(n *inode, off int64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	first, last := off/blockSize, (off+int64(len(b))-1)/blockSize
	var need int64
	for blk := first; blk <= last; blk++ {
		if _, ok := n.blocks[blk]; !ok && n.dirty[blk] == nil {
			need++
		}
	}
	if v.live+need+total(v.pending) > v.usable && len(v.pending) > 0 {
		// What was freed can be used only once the disk says so too: ext4 and
		// xfs commit and try again.
		if err := v.commit(); err != nil {
			return err
		}
	}
	if v.live+need > v.usable {
		return syscall.ENOSPC
	}
	pages := map[int64][]byte{}
	for blk := first; blk <= last; blk++ {
		p := make([]byte, blockSize)
		if old := n.dirty[blk]; old != nil {
			copy(p, old)
		} else if at, ok := n.blocks[blk]; ok {
			if err := v.dev.read(p, at*blockSize); err != nil {
				if ferr := v.dev.flush(); ferr != nil && !errors.Is(ferr, scsi.ErrQueued) {
					// The whole disk fails: so does the journal soon after.
					v.abort()
				}
				return err
			}
		}
		start := max(off, blk*blockSize)
		copy(p[start-blk*blockSize:], b[start-off:])
		pages[blk] = p
	}
	if n.dirty == nil {
		n.dirty = map[int64][]byte{}
	}
	maps.Copy(n.dirty, pages)
	v.live += need
	n.size = max(n.size, off+int64(len(b)))
	v.changed = true
	return nil
}

// release gives the blocks of a file back.
func (v *volume) release(n *inode) {
	v.live -= int64(len(n.blocks))
	for blk := range n.dirty {
		if _, ok := n.blocks[blk]; !ok {
			v.live--
		}
	}
	for _, x := range runsOf(n.blocks) {
		v.pending = append(v.pending, run{x[1], x[2]})
	}
	n.blocks, n.dirty, n.size = nil, nil, 0
	v.changed = true
}

// commit brings everything to the disk. On an error the disk holds the former
// commit. ENOSPC and scsi.ErrQueued leave what was to be written in the cache;
// when the disk fails, the filesystem does what ext4 and xfs do when they can't
// write their log.
func (v *volume) commit() error {
	if v.aborted {
		return syscall.EIO
	}
	err := v.tryCommit()
	if err != nil && err != syscall.ENOSPC && !errors.Is(err, scsi.ErrQueued) {
		v.abort()
	}
	return err
}

// abort ends the writing: ext3 and ext4 become read-only, xfs shuts down and
// answers everything with EIO (see place.alive). Only a new mount helps, after the
// disk is back.
func (v *volume) abort() {
	v.aborted = true
	if v.head.Type != "xfs" {
		v.sb.ro = true
	}
}

func (v *volume) tryCommit() error {
	if !v.changed && v.head.Generation > 0 {
		return v.dev.flush()
	}
	var files []*inode
	var visit func(*inode)
	visit = func(n *inode) {
		if len(n.dirty) > 0 {
			files = append(files, n)
		}
		for _, name := range n.names() {
			visit(n.children[name])
		}
	}
	visit(v.sb.root)
	for _, n := range files {
		if n.blocks == nil {
			n.blocks = map[int64]int64{}
		}
		for _, blk := range slices.Sorted(maps.Keys(n.dirty)) {
			at, ok := n.blocks[blk]
			if !ok {
				r := v.free.take(1)
				if len(r) == 0 {
					return syscall.ENOSPC
				}
				at = r[0].At
				n.blocks[blk] = at
			}
			if err := v.dev.write(n.dirty[blk], at*blockSize); err != nil {
				return err
			}
		}
	}
	body, err := v.encode()
	if err != nil {
		return syscall.EIO
	}
	padded := append(body, make([]byte, -len(body)&(blockSize-1))...)
	meta := v.free.take(int64(len(padded) / blockSize))
	if meta == nil {
		return syscall.ENOSPC
	}
	head := v.head
	head.Generation++
	head.Meta, head.MetaLen, head.MetaSum = meta, int64(len(body)), crc32.Checksum(body, castagnoli)
	if err := v.write(head, padded); err != nil {
		v.free.put(meta)
		return err
	}
	v.free.put(v.meta)
	v.free.put(v.pending)
	v.head, v.meta, v.pending, v.changed = head, meta, nil, false
	for _, n := range files {
		n.dirty = nil
	}
	return nil
}

// write puts metadata and then block 0 on the disk.
func (v *volume) write(head header, meta []byte) error {
	block0, err := encodeHeader(head)
	if err != nil {
		return syscall.ENOSPC // metadata in too many pieces
	}
	for _, r := range head.Meta {
		if err := v.dev.write(meta[:r.Len*blockSize], r.At*blockSize); err != nil {
			return err
		}
		meta = meta[r.Len*blockSize:]
	}
	if err := v.dev.flush(); err != nil {
		return err
	}
	if err := v.dev.write(block0, 0); err != nil {
		return err
	}
	return v.dev.flush()
}

// grow makes the filesystem as large as the device. It says whether it grew.
func (v *volume) grow() (bool, error) {
	blocks := v.dev.size / blockSize
	if blocks <= v.head.Blocks {
		return false, nil
	}
	old := v.head.Blocks
	v.head.Blocks = blocks
	v.limit()
	v.changed = true
	if err := v.commit(); err != nil {
		v.head.Blocks = old
		v.limit()
		return false, err
	}
	return true, nil
}

func (v *volume) usage() Usage {
	free := max(0, v.usable-v.live)
	return Usage{
		TotalBytes: v.usable * blockSize, FreeBytes: free * blockSize, AvailableBytes: free * blockSize,
		TotalInodes: v.inodes, FreeInodes: max(0, v.inodes-v.sb.count),
	}
}

// room says whether another inode fits.
func (sb *superblock) room() error {
	if sb.vol != nil && sb.count >= sb.vol.inodes {
		return syscall.ENOSPC
	}
	return nil
}

// sync commits what is mounted from a disk.
func (sb *superblock) sync() error {
	if sb.vol == nil {
		return nil
	}
	if sb.ro {
		return nil
	}
	return sb.vol.commit()
}

func total(rs []run) int64 {
	var n int64
	for _, r := range rs {
		n += r.Len
	}
	return n
}

// freeMap knows the free blocks: holes below next, and everything from next to end.
type freeMap struct {
	holes     []run // sorted, not adjacent
	next, end int64
}

// build starts from the blocks in use.
func (f *freeMap) build(used []run) {
	slices.SortFunc(used, func(a, b run) int { return cmp.Compare(a.At, b.At) })
	f.next = 1
	for _, r := range used {
		if r.At > f.next {
			f.holes = append(f.holes, run{f.next, r.At - f.next})
		}
		f.next = max(f.next, r.At+r.Len)
	}
}

// take finds n blocks, in one piece where it can. nil: there are not so many.
func (f *freeMap) take(n int64) []run {
	for i, r := range f.holes {
		if r.Len >= n {
			f.holes[i] = run{r.At + n, r.Len - n}
			if r.Len == n {
				f.holes = slices.Delete(f.holes, i, i+1)
			}
			return []run{{r.At, n}}
		}
	}
	if f.end-f.next >= n {
		f.next += n
		return []run{{f.next - n, n}}
	}
	if total(f.holes)+f.end-f.next < n {
		return nil
	}
	var out []run
	for len(f.holes) > 0 && n > 0 {
		l := min(n, f.holes[0].Len)
		out = append(out, run{f.holes[0].At, l})
		if f.holes[0].Len -= l; f.holes[0].Len == 0 {
			f.holes = f.holes[1:]
		} else {
			f.holes[0].At += l
		}
		n -= l
	}
	if n > 0 {
		out = append(out, run{f.next, n})
		f.next += n
	}
	return out
}

// put gives blocks back.
func (f *freeMap) put(rs []run) {
	if len(rs) == 0 {
		return
	}
	all := append(slices.Clone(f.holes), rs...)
	slices.SortFunc(all, func(a, b run) int { return cmp.Compare(a.At, b.At) })
	f.holes = f.holes[:0]
	for _, r := range all {
		if l := len(f.holes) - 1; l >= 0 && f.holes[l].At+f.holes[l].Len == r.At {
			f.holes[l].Len += r.Len
		} else {
			f.holes = append(f.holes, r)
		}
	}
	if l := len(f.holes) - 1; l >= 0 && f.holes[l].At+f.holes[l].Len == f.next {
		f.next = f.holes[l].At
		f.holes = f.holes[:l]
	}
}
