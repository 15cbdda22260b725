package host

import (
	"crypto/sha256"
	"fmt"
)

// UUIDOf derives a UUID from what it is for.
func UUIDOf(subject string) string {
	sum := sha256.Sum256([]byte(subject))
	b := sum[:16]
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return formatUUID(b)
}

func formatUUID(b []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
