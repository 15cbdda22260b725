package sim

import (
	"bytes"

	"github.com/csilab/csilab/sim/disk"
)

// filesystem names what blkid would find on an image: "ext", "xfs", "memory"
// (the format of memory hosts) or "" for none. mkfs writes its superblock
// last, so that a mkfs that was killed half way leaves none.
func filesystem(img disk.Image) string {
	b := make([]byte, 2048)
	if n, err := img.ReadAt(b, 0); n < len(b) && err != nil {
		return ""
	}
	switch {
	case bytes.HasPrefix(b, []byte("csilabfs")):
		return "memory"
	case bytes.HasPrefix(b, []byte("XFSB")):
		return "xfs"
	case b[1080] == 0x53 && b[1081] == 0xef: // s_magic of the superblock at 1024
		return "ext"
	}
	return ""
}
