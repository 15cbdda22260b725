// Package relay is the process that holds a node's /dev/fuse: this binary once
// more, between the kernel and the node.
package relay

// Env in the environment makes this binary a relay.
const Env = "CSILAB_HOST_RELAY"

// File descriptors of a relay.
const (
	FUSE   = 3 // /dev/fuse, mounted
	Socket = 4 // to the node; SOCK_SEQPACKET
	Notify = 5 // for what the node tells the kernel; SOCK_SEQPACKET
)

// MaxMessage bounds a message in bytes: 128 KiB of data and the headers.
const MaxMessage = 128<<10 + 4096
