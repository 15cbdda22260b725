package host

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"slices"
	"time"
)

// The format of a filesystem on a disk's bytes.
//
// Block 0 is the superblock: magic, length and checksum, then a JSON header.
// The header names the blocks that hold the metadata: a JSON list of inodes,
// with a checksum too. A commit writes data and new metadata to blocks that
// the last commit doesn't use, flushes, and then writes block 0 in one piece:
// at any time the disk holds one whole commit, so that a snapshot or a power
// loss sees the last one. Data that is overwritten in a file goes to the same
// block, as ext4 does in ordered mode, and has no checksum, as there.

const formatMagic = "csilabfs"

// Errors of a mount; the texts of mount(8) are made from them.
var (
	errNoFilesystem = errors.New("no filesystem that is known")
	errUnclean      = errors.New("structure needs cleaning")
)

// run is a range of blocks.
type run struct {
	At  int64 `json:"at"`
	Len int64 `json:"len"`
}

// inside says whether a run is within a filesystem and not over block 0.
func (r run) inside(blocks int64) bool { return r.At > 0 && r.Len > 0 && r.Len <= blocks-r.At }

// maxFileBlock bounds the offset of a block in a file (16 TiB, as ext4).
const maxFileBlock = 1 << 32

// header is what block 0 holds.
type header struct {
	Type       string `json:"type"` // ext3, ext4, xfs
	UUID       string `json:"uuid"`
	Blocks     int64  `json:"blocks"` // size of the filesystem
	Generation int64  `json:"generation"`
	Meta       []run  `json:"meta"`
	MetaLen    int64  `json:"metaLen"`
	MetaSum    uint32 `json:"metaSum"`
	// Checked says that no one mounted it read-write since it was made or
	// checked by e2fsck -f. resize2fs wants that for offline work.
	Checked bool `json:"checked"`
}

// record is an inode in the metadata.
type record struct {
	Ino    int64       `json:"i"`
	Parent int64       `json:"p,omitempty"`
	Name   string      `json:"n,omitempty"`
	Mode   fs.FileMode `json:"m"`
	UID    int         `json:"u,omitempty"`
	GID    int         `json:"g,omitempty"`
	MTime  int64       `json:"t"`
	Target string      `json:"l,omitempty"`
	Size   int64       `json:"s,omitempty"`
	Blocks [][3]int64  `json:"x,omitempty"` // block of the file, block of the disk, number
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encodeHeader makes block 0.
func encodeHeader(h header) ([]byte, error) {
	body, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if len(body) > blockSize-16 {
		return nil, fmt.Errorf("superblock of %d bytes", len(body))
	}
	b := make([]byte, blockSize)
	copy(b, formatMagic)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(body)))
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(body, castagnoli))
	copy(b[16:], body)
	return b, nil
}

// decodeHeader reads block 0. Errors: errNoFilesystem, errUnclean.
func decodeHeader(b []byte) (header, error) {
	var h header
	if len(b) < 16 || string(b[:8]) != formatMagic {
		return h, errNoFilesystem
	}
	n := int(binary.LittleEndian.Uint32(b[8:]))
	if n > len(b)-16 || crc32.Checksum(b[16:16+n], castagnoli) != binary.LittleEndian.Uint32(b[12:]) {
		return h, errUnclean
	}
	if err := json.Unmarshal(b[16:16+n], &h); err != nil || h.Blocks <= 0 || h.MetaLen < 0 {
		return h, errUnclean
	}
	return h, nil
}

// readHeader reads block 0 of a device. Errors: also those of the device.
func readHeader(d *device) (header, error) {
	b := make([]byte, blockSize)
	if d.size < blockSize {
		return header{}, errNoFilesystem
	}
	if err := d.read(b, 0); err != nil {
		return header{}, err
	}
	return decodeHeader(b)
}

// signatures are the marks by which blkid knows foreign content (the magic
// strings of libblkid's superblock and partition probes): what is no
// filesystem of ours must not be taken for an empty disk.
var signatures = []struct {
	at    int64
	magic string
	token string
}{
	{1024 + 56, "\x53\xef", "TYPE=ext4"},
	{0, "XFSB", "TYPE=xfs"},
	{0x10040, "_BHRfS_M", "TYPE=btrfs"},
	{blockSize - 10, "SWAPSPACE2", "TYPE=swap"},
	{0, "LUKS\xba\xbe", "TYPE=crypto_LUKS"},
	{512 + 24, "LVM2 001", "TYPE=LVM2_member"},
	{512, "EFI PART", "PTTYPE=gpt"},
	{510, "\x55\xaa", "PTTYPE=dos"},
}

// probe says what is on a device as blkid -p does: TYPE=… or PTTYPE=…, or
// "" when nothing is known. Errors are those of the device.
func probe(d *device) (string, error) {
	b := make([]byte, min(d.size, 128<<10))
	if err := d.read(b, 0); err != nil {
		return "", err
	}
	h, err := decodeHeader(b[:min(len(b), blockSize)])
	if err == nil {
		return "TYPE=" + h.Type, nil
	}
	if errors.Is(err, errUnclean) {
		// blkid knows ext4 and xfs by their magic; the type is in the body.
		for _, t := range []string{"ext3", "xfs"} {
			if slices.Contains(jsonStrings(b[16:blockSize]), t) {
				return "TYPE=" + t, nil
			}
		}
		return "TYPE=ext4", nil
	}
	for _, s := range signatures {
		if end := s.at + int64(len(s.magic)); end <= int64(len(b)) && string(b[s.at:end]) == s.magic {
			return s.token, nil
		}
	}
	return "", nil
}

// jsonStrings gives the quoted strings in damaged JSON.
func jsonStrings(b []byte) []string {
	var out []string
	start := -1
	for i, c := range b {
		if c != '"' {
			continue
		}
		if start >= 0 {
			out = append(out, string(b[start:i]))
			start = -1
		} else {
			start = i + 1
		}
	}
	return out
}

// xfsMinimum is the smallest size that mkfs.xfs takes, in bytes (xfsprogs
// 5.19 and later: "Filesystem must be larger than 300MB.").
const xfsMinimum = 300 << 20

// makeFilesystem writes an empty filesystem.
func makeFilesystem(d *device, fstype, uuid string) (header, error) {
	clear(d.dirty)
	// What was there before is no longer found.
	if err := d.write(make([]byte, min(d.size, 128<<10)), 0); err != nil {
		return header{}, err
	}
	v := &volume{dev: d, head: header{Type: fstype, UUID: uuid, Blocks: d.size / blockSize, Checked: true}}
	v.sb = newSuperblock(fstype, d.path(), d.no)
	v.sb.vol = v
	if fstype != "xfs" {
		v.sb.root.add("lost+found", fs.ModeDir|0o700)
	}
	v.limit()
	if err := v.commit(); err != nil {
		return header{}, err
	}
	return v.head, nil
}

// limit sets what the size of the filesystem allows.
func (v *volume) limit() {
	v.free.end = v.head.Blocks
	if v.free.next == 0 {
		v.free.next = 1 // block 0
	}
	// Room for metadata, old and new; ext4's tables and journal and xfs' log
	// take a few per cent as well.
	v.usable = v.head.Blocks - 1 - max(16, v.head.Blocks/64)
	// ext4 has an inode for each 16 KiB (mke2fs.conf inode_ratio); xfs makes
	// them as needed and counts much the same on an empty filesystem.
	v.inodes = max(64, v.head.Blocks/4)
}

// encode writes down the tree below the root.
func (v *volume) encode() ([]byte, error) {
	var recs []record
	var visit func(n *inode, parent int64)
	visit = func(n *inode, parent int64) {
		r := record{Ino: n.ino, Parent: parent, Name: n.name, Mode: n.mode, UID: n.uid, GID: n.gid,
			MTime: n.mtime.UnixNano(), Target: n.target, Size: n.size, Blocks: runsOf(n.blocks)}
		recs = append(recs, r)
		for _, name := range n.names() {
			visit(n.children[name], n.ino)
		}
	}
	visit(v.sb.root, 0)
	return json.Marshal(recs)
}

func runsOf(m map[int64]int64) [][3]int64 {
	keys := make([]int64, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var out [][3]int64
	for _, k := range keys {
		if l := len(out) - 1; l >= 0 && out[l][0]+out[l][2] == k && out[l][1]+out[l][2] == m[k] {
			out[l][2]++
		} else {
			out = append(out, [3]int64{k, m[k], 1})
		}
	}
	return out
}

// load reads the filesystem of a device. Errors: errNoFilesystem, errUnclean,
// those of the device.
func load(d *device) (*volume, error) {
	h, err := readHeader(d)
	if err != nil {
		return nil, err
	}
	if h.Blocks > d.size/blockSize {
		// ext4: "bad geometry: block count exceeds size of device".
		return nil, errUnclean
	}
	meta := make([]byte, 0, h.MetaLen)
	for _, r := range h.Meta {
		if !r.inside(h.Blocks) {
			return nil, errUnclean
		}
		b := make([]byte, r.Len*blockSize)
		if err := d.read(b, r.At*blockSize); err != nil {
			return nil, err
		}
		meta = append(meta, b...)
	}
	if int64(len(meta)) < h.MetaLen || crc32.Checksum(meta[:h.MetaLen], castagnoli) != h.MetaSum {
		return nil, errUnclean
	}
	var recs []record
	if err := json.Unmarshal(meta[:h.MetaLen], &recs); err != nil {
		return nil, errUnclean
	}
	v := &volume{dev: d, head: h, meta: h.Meta}
	v.sb = &superblock{fstype: h.Type, source: d.path(), dev: d.no, vol: v, now: time.Now}
	used := slices.Clone(h.Meta)
	byIno := map[int64]*inode{}
	for _, r := range recs {
		n := &inode{sb: v.sb, ino: r.Ino, mode: r.Mode, uid: r.UID, gid: r.GID, mtime: time.Unix(0, r.MTime),
			name: r.Name, target: r.Target, size: r.Size}
		if n.mode.IsDir() {
			n.children = map[string]*inode{}
		}
		for _, x := range r.Blocks {
			if x[0] < 0 || x[0] > maxFileBlock || !(run{x[1], x[2]}).inside(h.Blocks) {
				return nil, errUnclean
			}
			if n.blocks == nil {
				n.blocks = map[int64]int64{}
			}
			for i := range x[2] {
				n.blocks[x[0]+i] = x[1] + i
			}
			used = append(used, run{x[1], x[2]})
			v.live += x[2]
		}
		if r.Parent == 0 {
			v.sb.root = n
		} else if p := byIno[r.Parent]; p == nil || p.children == nil {
			return nil, errUnclean
		} else {
			n.parent, p.children[n.name] = p, n
		}
		byIno[n.ino] = n
		v.sb.next = max(v.sb.next, n.ino)
		v.sb.count++
	}
	if v.sb.root == nil || v.sb.root.children == nil {
		return nil, errUnclean
	}
	v.free.build(used)
	v.limit()
	return v, nil
}
