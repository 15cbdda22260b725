package relay

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// readers is how many requests wait for room in the socket at a time.
const readers = 2

func init() {
	if os.Getenv(Env) != "" {
		os.Exit(run())
	}
}

// run passes the requests of a FUSE connection on to the node and its answers
// back, until either is gone. It is a process of its own, outside the node's
// mount namespace, because of how things end: who holds /dev/fuse must not wait
// for I/O on what is mounted there, or a SIGKILL leaves processes behind that
// wait for each other. When the relay is killed the kernel ends the connection,
// and everything that waits for it fails.
func run() int {
	for range readers {
		go func() {
			unix.Exit(pass(Socket, FUSE))
		}()
	}
	go func() {
		unix.Exit(notify())
	}()
	return pass(FUSE, Socket)
}

// notify passes on notifications, as many as a message has, and says when the
// kernel has taken them. It waits where a directory is being looked at, which may
// take an answer that comes through the other socket.
func notify() int {
	b := make([]byte, MaxMessage)
	for {
		n, err := unix.Read(Notify, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0:
			return 1
		}
		for rest := b[:n]; len(rest) >= 4; {
			size := min(int(binary.NativeEndian.Uint32(rest)), len(rest))
			if size == 0 {
				return 1
			}
			_, _ = unix.Write(FUSE, rest[:size]) // ENOENT: the kernel doesn't know it
			rest = rest[size:]
		}
		if _, err := unix.Write(Notify, b[:1]); err != nil {
			return 1
		}
	}
}

// pass copies messages one by one.
func pass(to, from int) int {
	b := make([]byte, MaxMessage)
	for {
		n, err := unix.Read(from, b)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), from == FUSE && errors.Is(err, unix.ENOENT):
			continue // ENOENT: the request was interrupted before it was read
		case err != nil:
			return 1
		case n == 0:
			return 0
		}
		for {
			_, err = unix.Write(to, b[:n])
			if !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
				break
			}
		}
		// ENOENT: nobody waits for this answer any more.
		if err != nil && !(to == FUSE && errors.Is(err, unix.ENOENT)) {
			return 1
		}
	}
}
