// Package shim is what a storage command of a real node is before it is the
// real one: a link to this binary, which asks the node's interceptor over a
// socket before it runs the command, and tells it the exit status before it
// ends. So faults and ledger cover a driver that is a process of its own,
// unchanged.
//
// It imports os, io and syscall alone, so that it starts fast: a program's
// packages are initialised in the order of their import paths, each when what it
// imports is. What imports fmt, strings or net comes after hundreds of packages
// of the rest of this binary.
package shim

// Environment of the processes of a node.
const (
	EnvNode  = "CSILAB_HOST_NODE"  // state directory of the node that a process belongs to
	EnvCalls = "CSILAB_HOST_CALLS" // where commands ask the interceptor
)

// Names are the commands that have a link.
var Names = []string{"mount", "umount", "blkid", "blockdev", "fsck", "e2fsck", "mkfs", "mkfs.ext3", "mkfs.ext4", "mkfs.xfs",
	"resize2fs", "dumpe2fs", "tune2fs", "xfs_growfs", "xfs_io", "xfs_admin", "xfs_repair"}

// Emulated are the commands of a node on a storage network that this machine
// can't run for real: the node itself answers them.
var Emulated = []string{"cryptsetup", "dmsetup", "ip", "iscsiadm", "lsblk", "multipath", "multipathd", "rescan-scsi-bus", "rescan-scsi-bus.sh",
	"scsi_id", "sg_inq", "udevadm"}

// Sbin are where the storage commands are when PATH doesn't say so.
var Sbin = []string{"/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"}
