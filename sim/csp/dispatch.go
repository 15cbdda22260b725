package csp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/sending"
	"github.com/csilab/csilab/sim/ledger"
)

// Prefix of all paths. Off the cluster clients put a prefix of their own before
// it, by default /csp.
const Prefix = "/containers/v1/"

// call is one request.
type call struct {
	ctx     context.Context
	vars    map[string]string
	query   map[string]string
	body    []byte
	arrayIP string

	token *token
	on    *backend
	array *wsapi.Client
	// instead is on and array, where they stand in for one that is lost.
	instead *survivor
}

type handler func(*Server, *call) (reply, error)

type route struct {
	method, pattern string
	serve           handler
	open            bool // without a token
	survives        bool // another array may carry it out for one that is lost
}

var routes = []route{
	{http.MethodPost, "tokens", (*Server).createToken, true, false},
	{http.MethodDelete, "tokens/{id}", (*Server).deleteToken, false, false},
	{http.MethodGet, "hosts", (*Server).listHosts, false, false},
	{http.MethodPost, "hosts", (*Server).putHost, false, true},
	{http.MethodDelete, "hosts", (*Server).deleteHost, false, false},
	{http.MethodDelete, "hosts/{id}", (*Server).deleteHost, false, false},
	{http.MethodGet, "volumes", (*Server).listVolumes, false, false},
	{http.MethodPost, "volumes", (*Server).createVolume, false, false},
	{http.MethodGet, "volumes/{id}", (*Server).getVolume, false, true},
	{http.MethodPut, "volumes/{id}", (*Server).changeVolume, false, false},
	{http.MethodDelete, "volumes/{id}", (*Server).deleteVolume, false, false},
	{http.MethodPut, "volumes/{id}/actions/publish", (*Server).publish, false, true},
	{http.MethodPut, "volumes/{id}/actions/unpublish", (*Server).unpublish, false, false},
	{http.MethodGet, "snapshots", (*Server).listSnapshots, false, false},
	{http.MethodPost, "snapshots", (*Server).createSnapshot, false, false},
	{http.MethodGet, "snapshots/{id}", (*Server).getSnapshot, false, false},
	{http.MethodDelete, "snapshots/{id}", (*Server).deleteSnapshot, false, false},
	{http.MethodGet, "volume_groups", (*Server).listGroups, false, false},
	{http.MethodPost, "volume_groups", (*Server).createGroup, false, false},
	{http.MethodGet, "volume_groups/{id}", (*Server).getGroup, false, false},
	{http.MethodDelete, "volume_groups/{id}", (*Server).deleteGroup, false, false},
	{http.MethodGet, "snapshot_groups", (*Server).listSnapshotGroups, false, false},
	{http.MethodPost, "snapshot_groups", (*Server).createSnapshotGroup, false, false},
	{http.MethodGet, "snapshot_groups/{id}", (*Server).getSnapshotGroup, false, false},
	{http.MethodDelete, "snapshot_groups/{id}", (*Server).deleteSnapshotGroup, false, false},
	{http.MethodGet, "replication_partners", (*Server).listPartners, false, false},
}

// match finds the route of a path below Prefix, as it came.
func match(method, path string) (route, map[string]string, *failure) {
	parts := strings.Split(strings.TrimSuffix(path, "/"), "/")
	for i, p := range parts {
		if u, err := url.PathUnescape(p); err == nil { // else as it is: clients escape nothing
			parts[i] = u
		}
		if parts[i] == "" {
			return route{}, nil, refuse(http.StatusNotFound, "no such resource")
		}
	}
	there := false
	for _, r := range routes {
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
		return route{}, nil, refuse(http.StatusMethodNotAllowed, "method %s is not allowed", clip(method))
	}
	return route{}, nil, refuse(http.StatusNotFound, "no such resource")
}

// readQuery reads what stands behind the question mark. The client escapes
// nothing, so a plus is a plus (as in the time zone of a snapshot's name), and
// what is no escape stays as it is.
func readQuery(raw string) map[string]string {
	out := map[string]string{}
	for _, p := range strings.Split(raw, "&") {
		k, v, _ := strings.Cut(p, "=")
		if u, err := url.PathUnescape(v); err == nil {
			v = u
		}
		if k != "" {
			out[k] = v
		}
	}
	return out
}

// decode reads a request's body. Members that are not known are passed over,
// as clients send some.
func decode(raw []byte, into any) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return refuse(http.StatusBadRequest, "a body is required")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			return refuse(http.StatusBadRequest, "%s: %s is not allowed", t.Field, t.Value)
		}
		return refuse(http.StatusBadRequest, "the body is no JSON object")
	}
	return nil
}

// ServeHTTP serves a request of the driver.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.face.Enter()()
	body, err := face.Body(w, r)
	if err != nil {
		send(r.Context(), w, answerOf(reply{}, refuse(http.StatusBadRequest, "%v: allowed are %d bytes within %v", err, face.MaxBody, face.BodyTime)), nil)
		return
	}
	_, path, below := strings.Cut(r.URL.EscapedPath(), Prefix)
	var to route
	var vars map[string]string
	lost := refuse(http.StatusNotFound, "no such resource")
	if below {
		to, vars, lost = match(r.Method, path)
	}
	c := &call{vars: vars, query: readQuery(r.URL.RawQuery), body: body, arrayIP: r.Header.Get("x-array-ip")}
	var res reply
	var how *fault.Body
	err = s.cfg.In.Do(fault.About(r.Context(), r.Host), s.describe(r, to, c), func(ctx context.Context) error {
		if lost != nil {
			return lost
		}
		// The operation goes on when the client has left: what it does is seen
		// later (a driver that waited too long finds the volume by its name).
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), s.cfg.OpTime, errors.New("the operation takes too long"))
		defer cancel()
		stop := context.AfterFunc(s.face.Context(), cancel)
		defer stop()
		d := *c
		d.ctx = ctx
		got, err := s.carryOut(to, &d, r.Header.Get("x-auth-token"))
		if !fault.Discarded(ctx) {
			res = got
		}
		return err
	})
	if errors.As(err, &how) {
		err = how.Err
	}
	switch {
	case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed), s.face.Context().Err() != nil, err != nil && r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	}
	send(r.Context(), w, answerOf(res, err), how)
}

// carryOut runs a handler. Whatever goes wrong in it, the process lives.
func (s *Server) carryOut(to route, c *call, session string) (res reply, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("handler panicked", "panic", p)
			res, err = reply{}, refuse(http.StatusInternalServerError, "internal error")
		}
	}()
	if !to.open {
		if c.token = s.tokens.good(session, s.cfg.Now()); c.token == nil {
			return reply{}, refuse(http.StatusUnauthorized, "invalid or expired session token")
		}
		c.on = c.token.on
		if c.arrayIP != "" {
			if b, err := s.array(c.arrayIP); err != nil || b != c.on {
				return reply{}, refuse(http.StatusUnauthorized, "the session token is not for array %s", clip(c.arrayIP))
			}
		}
		c.array = c.on.client(c.token.login)
	}
	res, err = to.serve(s, c)
	var f *failure
	if to.survives && asFailure(err, &f) && f.away {
		return s.instead(to, c, err)
	}
	return res, err
}

func send(ctx context.Context, w http.ResponseWriter, a answer, how *fault.Body) {
	if a.kind != "" {
		w.Header().Set("Content-Type", a.kind)
	}
	sending.Reply(ctx, w, a.status, a.body, how)
}

// enter takes the lock of something on the call's array.
func (s *Server) enter(c *call, what, id string) (leave func(), err error) {
	leave, err = s.locks.Enter(c.ctx, c.on.Name+"/"+what+"/"+id)
	if err != nil {
		return nil, refuse(http.StatusInternalServerError, "waiting for %s %s: %v", what, clip(id), err)
	}
	return leave, nil
}

// describe derives the ledger entry of a request. Tokens and hosts can hold
// secrets: they get no digest.
func (s *Server) describe(r *http.Request, to route, c *call) fault.Call {
	f := fault.Call{Hop: ledger.CSP, Op: r.Method + " /" + to.pattern, Component: face.Caller(r, s.cfg.Component), Cause: fault.CauseIn(r.Header)}
	if to.pattern == "" {
		f.Op = r.Method + " (unknown)"
		return f
	}
	var b struct {
		Name          string `json:"name"`
		UUID          string `json:"uuid"`
		VolumeID      string `json:"volume_id"`
		BaseSnapshot  string `json:"base_snapshot_id"`
		VolumeGroupID string `json:"volume_group_id"`
		HostUUID      string `json:"host_uuid"`
	}
	_ = json.Unmarshal(c.body, &b)
	first, _, _ := strings.Cut(to.pattern, "/")
	id := c.vars["id"]
	if id == "" {
		if id = b.Name; r.Method == http.MethodGet {
			id = c.query["name"]
		}
	}
	f.Request = r.URL.RawQuery
	if r.Method != http.MethodGet {
		f.Request = string(c.body)
		if r.URL.RawQuery != "" {
			f.Request = "?" + r.URL.RawQuery + " " + f.Request
		}
	}
	switch first {
	case "tokens":
		f.Request = ""
	case "hosts":
		f.Request = ""
		if f.Node = b.Name; f.Node == "" {
			f.Node = b.UUID
		}
		if f.Node == "" {
			f.Node = c.vars["id"] + c.query["uuid"]
		}
	case "volumes":
		f.Volume, f.Snapshot = id, b.BaseSnapshot
		if b.HostUUID != "" {
			f.Node = s.nodeName(b.HostUUID)
		}
	case "snapshots":
		f.Snapshot, f.Volume = id, b.VolumeID
		if f.Volume == "" {
			f.Volume = c.query["volume_id"]
		}
	default:
		f.Volume = id
	}
	f.Request = face.Digest(f.Request)
	return f
}
