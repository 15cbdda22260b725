// Package broken tells one thing about the connections to a storage system:
// whether they broke.
package broken

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// Text says what Connection found. Errors end in events, which count what is equal;
// in which of its ways a connection breaks that the other side closes is by
// chance, and is told by the error that is wrapped.
const Text = "the connection is refused or broken"

// Connection says that an error is of a connection that was refused, or ended before
// the answer was there.
func Connection(err error) bool {
	if err == nil {
		return false
	}
	for _, way := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, way) {
			return true
		}
	}
	// net/http does not export its error for a connection that the server closed
	// just before it was used (net/http/transport.go, errServerClosedIdle).
	return strings.Contains(err.Error(), "http: server closed idle connection")
}
