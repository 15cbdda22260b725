// Package sending sends replies of HTTP as rules of the fault plan want them: in
// parts, or not to their end.
package sending

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/csilab/csilab/sim/fault"
)

// parts is in how many a slow body comes.
const parts = 10

// Reply writes status and body, with the headers that w has. how is nil for a
// reply that nothing is wrong with. It panics with http.ErrAbortHandler where the
// connection must be closed.
func Reply(ctx context.Context, w http.ResponseWriter, status int, body []byte, how *fault.Body) {
	if how == nil {
		w.WriteHeader(status)
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	flush := func() { _ = http.NewResponseController(w).Flush() }
	if how.Cut {
		part := body[:len(body)*how.Keep/100]
		if how.Document {
			w.Header().Set("Content-Length", strconv.Itoa(len(part)))
		}
		w.WriteHeader(status)
		_, _ = w.Write(part)
		if how.Document {
			return
		}
		flush()
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	flush()
	t := time.NewTicker(max(1, how.Over/parts))
	defer t.Stop()
	for i := range parts {
		select {
		case <-t.C:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
		if _, err := w.Write(body[len(body)*i/parts : len(body)*(i+1)/parts]); err != nil {
			panic(http.ErrAbortHandler)
		}
		flush()
	}
}
