package vcenter

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// identity derives 16 bytes from the seed of the lab, a kind and a name, so
// that a lab that is started again has the same identities.
func identity(seed uint64, kind, name string) [16]byte {
	h := sha256.New()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], seed)
	h.Write(b[:])
	fmt.Fprintf(h, "|%d:%s|%s", len(kind), kind, name)
	var id [16]byte
	copy(id[:], h.Sum(nil))
	return id
}

// uuidOf formats an identity as an RFC 9562 version 4 UUID.
func uuidOf(seed uint64, kind, name string) string {
	id := identity(seed, kind, name)
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return dashed(id)
}

// biosUUID is the SMBIOS UUID of a VM. vCenter gives out UUIDs that start
// with 42 (BIOS) and 50 (instance).
func biosUUID(seed uint64, vm string) string {
	id := identity(seed, "vm bios", vm)
	id[0] = 0x42
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return dashed(id)
}

func instanceUUID(seed uint64, vm string) string {
	id := identity(seed, "vm instance", vm)
	id[0] = 0x50
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return dashed(id)
}

func dashed(id [16]byte) string {
	s := hex.EncodeToString(id[:])
	return strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}

// datastoreID is the id of a volume in the form that hosts have for its type:
// VMFS 8-8-4-12 hex digits, NFS 8-8, vSAN and vVols 16-16 behind their name
// (logs in kubernetes-sigs/vsphere-csi-driver#122, #473).
func datastoreID(seed uint64, name, kind string) string {
	id := identity(seed, "datastore", name)
	s := hex.EncodeToString(id[:])
	switch kind {
	case "NFS", "NFS41":
		return s[:8] + "-" + s[8:16]
	case "vsan":
		return "vsan:" + s[:16] + "-" + s[16:]
	case "VVOL":
		return "vvol:" + s[:16] + "-" + s[16:]
	}
	return strings.Join([]string{s[:8], s[8:16], s[16:20], s[20:]}, "-")
}

// datastoreURL is where hosts mount a datastore: the same for the same lab,
// whatever the datastore is called.
func datastoreURL(seed uint64, name, kind string) string {
	return "ds:///vmfs/volumes/" + datastoreID(seed, name, kind) + "/"
}
