package face

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// MaxBody bounds a request, in bytes; 1024 paths or a large set have some 100 KiB.
// Unverified: where the bound of an array is, and of a provider.
const MaxBody = 1 << 20

// BodyTime is for how long a request may come in, after its head.
// Unverified: for how long an array waits, and a provider.
const BodyTime = time.Minute

// Errors of Body.
var (
	// ErrTooLong: a request has more than MaxBody bytes.
	ErrTooLong = errors.New("the body is too long")
	// ErrTooSlow: a request was not there after BodyTime.
	ErrTooSlow = errors.New("the body does not come")
)

// Body reads a request. A client that goes away meanwhile is hung up on. Errors:
// ErrTooLong, ErrTooSlow.
func Body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(BodyTime)) // a handler that is called without a connection has none
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, ErrTooLong
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, ErrTooSlow // the server would wait for the rest: the deadline stays
	case err != nil:
		panic(http.ErrAbortHandler)
	}
	_ = conn.SetReadDeadline(time.Time{})
	return b, nil
}

// Caller tells who calls, for the ledger: a client whose User-Agent is
// csilab/<component> says so itself, all others are who the face takes them for.
func Caller(r *http.Request, otherwise string) string {
	if rest, ok := strings.CutPrefix(r.UserAgent(), "csilab/"); ok && rest != "" {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return otherwise
}

// Digest is as much of a request as the ledger has.
func Digest(request string) string {
	const most = 2048
	if len(request) > most {
		return strings.ToValidUTF8(request[:most], "") + "…"
	}
	return request
}
