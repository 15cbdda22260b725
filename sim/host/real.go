package host

import (
	"log/slog"

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
