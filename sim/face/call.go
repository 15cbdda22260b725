package face

import (
	"errors"
	"io"
	"net/http"
	"strings"
)

// MaxBody bounds a request, in bytes; 1024 paths or a large set have some 100 KiB.
// Unverified: where the bound of an array is, and of a provider.
const MaxBody = 1 << 20

// ErrTooLong: a request has more than MaxBody bytes.
var ErrTooLong = errors.New("the body is too long")

// Body reads a request. A client that goes away meanwhile is hung up on. Errors:
// ErrTooLong.
func Body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, ErrTooLong
	case err != nil:
		panic(http.ErrAbortHandler)
	}
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
