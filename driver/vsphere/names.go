package vsphere

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxName is the longest name of a volume in CNS, in bytes.
const maxName = 80

// volumeName maps the name of a request: one that fits stays as it is, as
// pvc-<uuid> does, and a longer one becomes a prefix and a digest of the whole.
func volumeName(name string) string {
	if len(name) <= maxName {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	digest := "-" + hex.EncodeToString(sum[:16])
	prefix := name[:maxName-len(digest)]
	for !utf8.ValidString(prefix) {
		prefix = prefix[:len(prefix)-1]
	}
	return prefix + digest
}

var uuidForm = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

func isUUID(s string) bool { return uuidForm.MatchString(s) }

// diskUUID is the form of a publish context: 32 lower case hex digits.
func diskUUID(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }

// A snapshot's id is its volume's and its own, joined by +.
func snapshotID(volume, snapshot string) string { return volume + "+" + snapshot }

func splitSnapshotID(id string) (volume, snapshot string, ok bool) {
	volume, snapshot, ok = strings.Cut(id, "+")
	return volume, snapshot, ok && isUUID(volume) && isUUID(snapshot)
}

// snapshotDescription is what a snapshot is found by: CNS keeps no name.
func snapshotDescription(name, volume string) string { return name + "-" + volume }

func snapshotName(description, volume string) (string, bool) {
	return strings.CutSuffix(description, "-"+volume)
}

// The keys of records.
func createKey(name string) string       { return "create/" + name }
func volumeKey(id string) string         { return "volume/" + strings.ToLower(id) }
func snapshotNameKey(name string) string { return "snapshot/" + name }
