package wsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/sending"
	"github.com/csilab/csilab/sim/ledger"
)

// sessionHeader has the key of a session.
const sessionHeader = "X-HP3PAR-WSAPI-SessionKey"

const prefix = "/api/v1/"

// call is one request on its way to the core.
type call struct {
	ctx     context.Context
	now     time.Time
	vars    map[string]string // what stands for {…} in the route's pattern
	query   url.Values
	body    []byte
	client  string // its address
	session array.Session
	self    string // URL of the array as the client spells it
}

// reply of a request that is not refused.
type reply struct {
	status   int    // 0: 200
	location string // path
	body     any    // nil: none
}

// handler carries out a request. The lock is held.
type handler func(*Server, *call) (reply, error)

// route of a request.
type route struct {
	method, pattern string
	serve           handler
	read            bool // users that may only look may do it as well
	open            bool // without a session
}

func get(pattern string, h handler) route { return route{http.MethodGet, pattern, h, true, false} }

func change(method, pattern string, h handler) route { return route{method, pattern, h, false, false} }

// routes by the first part of their pattern, e.g. "volumes".
var routes = map[string][]route{}

func init() {
	for _, rs := range [][]route{sessionRoutes, systemRoutes, volumeRoutes, cpgRoutes, hostRoutes, vlunRoutes, portRoutes,
		setRoutes, taskRoutes, qosRoutes, remoteCopyRoutes, flashCacheRoutes, userRoutes, eventRoutes, reportRoutes} {
		for _, r := range rs {
			first, _, _ := strings.Cut(r.pattern, "/")
			routes[first] = append(routes[first], r)
			fault.RegisterOps(ledger.WSAPI, r.method+" /"+r.pattern)
		}
	}
}

// match finds the route of a request: its path below /api/v1/ as it came, in
// escapes, so that names can have slashes.
func match(method, path string) (route, map[string]string, *failure) {
	notFound := failed(noResource)
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	for i, p := range parts {
		u, err := url.PathUnescape(p)
		if err != nil || u == "" {
			return route{}, nil, notFound
		}
		parts[i] = u
	}
	there := false
	for _, r := range routes[parts[0]] {
		vars, ok := face.Fits(r.pattern, parts)
		if !ok {
			continue
		}
		if r.method == method {
			return r, vars, nil
		}
		there = true
	}
	if there {
		return route{}, nil, refuse(array.UnsupportedOp, "", "unsupported operation")
	}
	return route{}, nil, notFound
}

// answer is a reply in the form in which it is sent.
type answer struct {
	status   int
	location string
	body     []byte
}

// ServeHTTP serves a request of the array's API.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.face.Enter()()
	body, err := face.Body(w, r)
	if err != nil {
		why := tooLong
		if errors.Is(err, face.ErrTooSlow) {
			why = timeout
		}
		send(r.Context(), w, answerOf(reply{}, failed(why)), nil)
		return
	}
	path, below := strings.CutPrefix(r.URL.EscapedPath(), prefix)
	var to route
	var vars map[string]string
	var lost *failure
	switch {
	case below:
		to, vars, lost = match(r.Method, path)
	case strings.TrimSuffix(r.URL.Path, "/") == "/api":
		to = route{http.MethodGet, "api", (*Server).versions, true, true}
		if r.Method != http.MethodGet {
			lost = refuse(array.UnsupportedOp, "", "unsupported operation")
		}
	default:
		lost = failed(noResource)
	}
	key := r.Header.Get(sessionHeader)
	if key != "" { // the array takes one request of a session after the other
		leave, err := s.lanes.Enter(r.Context(), key)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer leave()
	}

	fc := s.describe(r, to, vars, body)
	var res reply
	var how *fault.Body
	var failed error
	err = s.cfg.In.Do(fault.About(r.Context(), r.Host), fc, func(ctx context.Context) error {
		if lost != nil && to.serve == nil {
			// A resource that isn't there is told to those who are logged in only.
			failed = s.locked(func(now time.Time) error {
				if below {
					if _, err := s.a.UseSession(now, key, clientOf(r)); err != nil {
						return err
					}
				}
				return lost
			})
			return failed
		}
		c := &call{ctx: ctx, vars: vars, query: r.URL.Query(), body: body, client: clientOf(r), self: s.self(r)}
		failed = s.locked(func(now time.Time) (err error) {
			c.now = now
			if !to.open {
				if c.session, err = s.a.UseSession(now, key, c.client); err != nil {
					return err
				}
				if !to.read && !c.session.Role.Writes() {
					return refuse(array.PermissionDenied, "", texts[array.PermissionDenied])
				}
			}
			got, err := to.serve(s, c)
			if !fault.Discarded(ctx) {
				res = got
			}
			if err == nil && !to.read {
				s.unkept = true
			}
			return err
		})
		return failed
	})
	if errors.As(err, &how) {
		err = how.Err
	}
	switch {
	case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed), err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	}
	send(r.Context(), w, answerOf(res, err), how)
}

// locked runs f as of now with the lock held, and keeps what changed.
func (s *Server) locked(f func(now time.Time) error) error {
	changed, err := s.guarded(f)
	if changed && s.cfg.Keep != nil {
		if kept := s.cfg.Keep(); kept != nil && err == nil {
			s.log.Error("state not kept", "err", kept)
			err = broken(kept)
		}
	}
	return err
}

// guarded is locked without keeping: it says whether something changed that has
// to be kept. Whatever goes wrong in f, the lock is free afterwards and the
// process lives.
func (s *Server) guarded(f func(now time.Time) error) (changed bool, err error) {
	s.cfg.Lock.Lock()
	defer s.cfg.Lock.Unlock()
	defer func() { changed, s.unkept = s.unkept, false }()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", "panic", p)
			err = failed(internal)
		}
	}()
	now := s.cfg.Now()
	s.pass(now)
	return false, f(now)
}

func answerOf(res reply, err error) answer {
	a := answer{status: res.status, location: res.location}
	body := res.body
	if err != nil {
		f := asFailure(err)
		a = answer{status: f.status}
		body = f.body()
	}
	if a.status < 100 || a.status > 999 { // 0, or what a rule says
		a.status = http.StatusOK
		if err != nil {
			a.status = http.StatusInternalServerError
		}
	}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return answer{status: http.StatusInternalServerError, body: []byte(`{"code":1,"desc":"internal server error"}`)}
		}
		a.body = b
	}
	return a
}

func send(ctx context.Context, w http.ResponseWriter, a answer, how *fault.Body) {
	h := w.Header()
	h.Set("Server", "hp3par-wsapi")
	h.Set("Cache-Control", "no-cache")
	if a.location != "" {
		h.Set("Location", a.location)
	}
	if a.body != nil {
		h.Set("Content-Type", "application/json")
	}
	sending.Reply(ctx, w, a.status, a.body, how)
}

// clientOf is the address that a session is bound to, without the port.
func clientOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}

// self is the URL of the array in links, as the client reached it.
func (s *Server) self(r *http.Request) string {
	scheme, _, _ := strings.Cut(s.face.URL(), "://")
	return scheme + "://" + r.Host
}

// link of an object to itself.
func (c *call) link(parts ...string) []map[string]string {
	return []map[string]string{{"href": c.self + where(parts...), "rel": "self"}}
}

// where is the path of an object.
func where(parts ...string) string {
	out := "/api/v1"
	for _, p := range parts {
		out += "/" + strings.ReplaceAll(url.PathEscape(p), "%2C", ",")
	}
	return out
}

// list is how the API answers with many objects.
func list[T any](all []T) map[string]any {
	if all == nil {
		all = []T{}
	}
	return map[string]any{"total": len(all), "members": all}
}

func created(parts ...string) reply {
	return reply{status: http.StatusCreated, location: where(parts...)}
}

// describe derives the ledger entry of a request: operation, subjects and a
// digest. Credentials and hosts can hold secrets: they get no digest.
func (s *Server) describe(r *http.Request, to route, vars map[string]string, body []byte) fault.Call {
	c := fault.Call{Hop: ledger.WSAPI, Op: r.Method + " /" + to.pattern, Component: face.Caller(r, s.cfg.Component), Cause: fault.CauseIn(r.Header)}
	if to.pattern == "" {
		c.Op = r.Method + " (unknown)"
		return c
	}
	var named struct {
		Name, VolumeName, Hostname string
		Parameters                 struct{ Name, DestVolume string }
	}
	_ = json.Unmarshal(body, &named)
	switch first, _, _ := strings.Cut(to.pattern, "/"); first {
	case "volumes":
		c.Volume = vars["name"]
		if c.Volume == "" {
			c.Volume = named.Name
		}
		if named.Parameters.Name != "" {
			c.Snapshot = named.Parameters.Name
		}
	case "vluns":
		c.Volume, c.Node = named.VolumeName, named.Hostname
		if id := strings.Split(vars["id"], ","); len(id) > 2 {
			c.Volume, c.Node = id[0], id[2]
		} else if id[0] != "" {
			c.Volume = id[0]
		}
	case "hosts":
		if c.Node = vars["name"]; c.Node == "" {
			c.Node = named.Name
		}
		return c
	case "credentials":
		return c
	}
	c.Request = string(body)
	if r.Method == http.MethodGet {
		c.Request = r.URL.Query().Get("query")
	}
	c.Request = face.Digest(c.Request)
	return c
}

// stamp is how the API writes a time: creationTime8601.
func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05") + "+00:00"
}

func number(s string) (int64, bool) {
	var n int64
	if s == "" || len(s) > 18 || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	_, _ = fmt.Sscan(s, &n)
	return n, true
}
