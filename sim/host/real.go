package host

import (
	"log/slog"
	"path/filepath"

	"github.com/csilab/csilab/sim/fault"
)

// RealConfig describes a real node.
type RealConfig struct {
	// Name of the node.
	Name string
	// Seed makes ids a pure function of it.
	Seed uint64
	// BIOSUUID is the virtual machine's config.uuid, shown in
	// /sys/class/dmi/id. Empty: derived from Seed and Name.
	BIOSUUID string
	// Dir is the node's state directory. It is made, and removed by Close. It
	// must be absolute and not below /dev, /sys, /proc, /run or /var/lib, which
	// the node has its own view of. Keep it short: socket paths below it hold
	// about 100 bytes.
	Dir string
	// SAN is the storage network that the node is connected to with Adapters; nil:
	// none. A node that has one is no virtual machine of VMware's. It wants
	// /dev/fuse.
	SAN      SAN
	Adapters Adapters
	// RecheckWWID is recheck_wwid of /etc/multipath.conf; see scsi.Config.
	RecheckWWID bool
	// NoPathRetry is no_path_retry of /etc/multipath.conf: what I/O does that has
	// no path.
	NoPathRetry NoPathRetry
	// Log receives messages; nil discards them.
	Log *slog.Logger
	// Interceptor sees the storage commands (mount, mkfs.ext4, …) that
	// processes of the node run (StartProcess); nil: they run unseen. What is
	// called through the Host interface goes through Intercept instead.
	Interceptor *fault.Interceptor
	// Component is who those processes are in the ledger. Empty: "driver@" and
	// the name.
	Component string
}

// SocketRootOf is where other processes see /var/lib/kubelet of the node that has
// the state directory dir.
func SocketRootOf(dir string) string { return filepath.Join(dir, "kubelet") }
