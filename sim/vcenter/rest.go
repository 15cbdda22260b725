package vcenter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/sending"
	"github.com/csilab/csilab/sim/ledger"
)

// restAPI is what is served beside SOAP: sessions and tags of the REST API,
// and the STS.
type restAPI struct {
	v *VCenter
}

func (a *restAPI) serve(w http.ResponseWriter, r *http.Request) {
	isREST := strings.HasPrefix(r.URL.Path, "/rest/") || strings.HasPrefix(r.URL.Path, "/api/")
	if !isREST && !strings.HasPrefix(r.URL.Path, "/sts/") {
		http.NotFound(w, r)
		return
	}
	call := fault.Call{Hop: ledger.VCenter, Op: r.Method + " " + pattern(r.URL.Path), Component: a.v.component(r.UserAgent()), Cause: fault.CauseIn(r.Header)}
	body, err := readBody(w, r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var rec recorder
	var how *fault.Body
	err = a.v.in.Do(fault.About(r.Context(), r.Host), call, func(ctxt context.Context) error {
		var got recorder
		if !fault.Discarded(ctxt) {
			defer func() { rec = got }()
		}
		rec := &got
		*rec = recorder{header: http.Header{}, code: http.StatusOK}
		r := r.WithContext(ctxt)
		r.Body = io.NopCloser(bytes.NewReader(body))
		switch {
		case isREST && isSessionPath(r.URL.Path):
			a.run(rec, r, a.serveSession)
		case isREST:
			session, ok := a.v.sessions.rest(sessionID(r))
			switch {
			case !ok:
				unauthenticated(rec, !strings.HasPrefix(r.URL.Path, "/rest/"))
			case isTaggingPath(r.URL.Path):
				a.run(rec, r, func(w *recorder, r *http.Request) { a.v.tagging.serve(w, r, session.who) })
			default:
				restFault{http.StatusNotFound, "operation_not_found", "com.vmware.vapi.rest.httpNotFound", "Not found.", nil}.send(rec, !strings.HasPrefix(r.URL.Path, "/rest/"))
			}
		default:
			a.run(rec, r, func(w *recorder, r *http.Request) { a.v.tokens.ServeHTTP(w, r) })
		}
		if rec.code >= 400 {
			return refusedREST(rec.code)
		}
		return nil
	})
	if errors.As(err, &how) {
		err = how.Err
	}
	switch {
	case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed):
		panic(http.ErrAbortHandler)
	case err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	case errors.As(err, new(*HTTPError)):
		var h *HTTPError
		errors.As(err, &h)
		rec = recorder{header: http.Header{}, code: h.Status}
	case err != nil && rec.code < 400:
		rec = recorder{header: http.Header{}, code: http.StatusServiceUnavailable}
	}
	rec.send(r.Context(), w, how)
}

// pattern is a path without the ids in it, so that operations have names: ids
// of tags and categories are urn:…, and come behind id: in one of the two APIs.
func pattern(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		id, marked := strings.CutPrefix(p, "id:")
		switch {
		case marked && id != "":
			parts[i] = "id:{id}"
		case strings.HasPrefix(p, "urn:"):
			parts[i] = "{id}"
		}
	}
	return strings.Join(parts, "/")
}

// refusedREST is a reply that says no, as the ledger keeps it: its status.
type refusedREST int

func (c refusedREST) Error() string { return fmt.Sprintf("%d %s", int(c), http.StatusText(int(c))) }

// Code of a call in the ledger.
func (c refusedREST) Code() string { return fmt.Sprint("HTTP", int(c)) }

// run calls a handler; whatever goes wrong in it, the process lives.
func (a *restAPI) run(rec *recorder, r *http.Request, serve func(*recorder, *http.Request)) {
	defer func() {
		if p := recover(); p != nil {
			a.v.log.Error("handler panicked", "path", r.URL.Path, "panic", p)
			*rec = recorder{header: http.Header{}, code: http.StatusInternalServerError}
		}
	}()
	serve(rec, r)
}

// recorder holds a reply until the interceptor lets it go.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

func (r *recorder) send(ctx context.Context, w http.ResponseWriter, how *fault.Body) {
	for k, vs := range r.header {
		w.Header()[k] = vs
	}
	sending.Reply(ctx, w, r.code, r.body.Bytes(), how)
}
