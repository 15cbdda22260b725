package cns

import (
	"encoding/hex"
	"strings"
)

// BackingName is the name of the file of a first class disk, without its
// ending: 32 hex digits that are not those of the id, as the disk
// 932a0c64-2dac-42f8-8c16-5572dce490b8 of a real vCenter lies at
// fcd/50f2957d2c564162b2a959b580c88259.vmdk
// (ansible-collections/community.vmware#1988). Here they are the id's under a
// mask, so that a file leads to its disk without an index. An id that is no
// uuid in lower case is the name itself.
func BackingName(id string) string {
	digits := strings.ReplaceAll(id, "-", "")
	if name, ok := masked(digits); ok && dashed(digits) == id {
		return name
	}
	return id
}

// diskOfName is the id of the disk whose file has a name.
func diskOfName(name string) string {
	if digits, ok := masked(name); ok {
		return dashed(digits)
	}
	return name
}

// nameMask leaves the version and the variant of a uuid as they are.
var nameMask = [16]byte{0xc2, 0xf7, 0x25, 0x19, 0x01, 0x8e, 0x06, 0x9a, 0x2e, 0xbf, 0xcc, 0xe7, 0xad, 0x58, 0x36, 0xe1}

// masked puts the mask over 32 lower case hex digits. Twice it gives them back.
func masked(digits string) (string, bool) {
	var b [len(nameMask)]byte
	if len(digits) != hex.EncodedLen(len(b)) || strings.ToLower(digits) != digits {
		return "", false
	}
	if _, err := hex.Decode(b[:], []byte(digits)); err != nil {
		return "", false
	}
	for i := range b {
		b[i] ^= nameMask[i]
	}
	return hex.EncodeToString(b[:]), true
}

func dashed(digits string) string {
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}
