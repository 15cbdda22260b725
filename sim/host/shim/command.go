// Package shim is what a storage command of a real node is before it is the
// real one: a link to this binary, which asks the node's interceptor over a
// socket before it runs the command, and tells it the exit status before it
// ends. So faults and ledger cover a driver that is a process of its own,
// unchanged. It imports little, so that it starts fast.
package shim

// Environment of the processes of a node.
const (
	EnvNode  = "CSILAB_HOST_NODE"  // state directory of the node that a process belongs to
	EnvCalls = "CSILAB_HOST_CALLS" // where commands ask the interceptor
	EnvRelay = "CSILAB_HOST_RELAY" // makes this binary the relay of a node's FUSE connection
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

// Message is a line of the protocol. The command sends its name and arguments;
// the node answers go, or an exit status and the output of a command that it has
// emulated; after go the command sends its own exit status and the node answers
// with the one to end with.
type Message struct {
	Name string   `json:"name,omitempty"`
	Args []string `json:"args,omitempty"`
	Go   bool     `json:"go,omitempty"`
	Exit int      `json:"exit"`
	Out  string   `json:"out,omitempty"`  // for the standard output
	Text string   `json:"text,omitempty"` // for the standard error output
}
