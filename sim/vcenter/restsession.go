package vcenter

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// restSession is a log-in at the REST API. It has nothing to do with SOAP
// sessions of the same client.
type restSession struct {
	key     string // names it, opens nothing
	who     principal
	user    string // as vCenter shows it
	agent   string
	addr    string
	created time.Time

	// Under sessions.mu.
	active time.Time
	count  int // of calls so far
}

// sessionHeader carries a REST session, as a header or a cookie.
const sessionHeader = "vmware-api-session-id"

func sessionID(r *http.Request) string {
	if id := r.Header.Get(sessionHeader); id != "" {
		return id
	}
	if c, err := r.Cookie(sessionHeader); err == nil {
		return c.Value
	}
	return ""
}

// openREST makes a session and returns its id, which opens it.
func (ss *sessions) openREST(a account, agent, addr string) string {
	now := time.Now().UTC()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.nth++
	nth := fmt.Sprintf("%d|%d", ss.v.epoch, ss.nth)
	id := strings.ReplaceAll(uuidOf(ss.v.cfg.Seed, "REST session id", nth), "-", "")
	ss.restLive[id] = &restSession{
		key: uuidOf(ss.v.cfg.Seed, "REST session", nth), who: a.who, user: a.display,
		agent: agent, addr: addr, created: now, active: now,
	}
	return id
}

// rest finds a REST session that is alive and counts a call of it.
func (ss *sessions) rest(id string) (restSession, bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s := ss.restLive[id]
	switch {
	case s == nil:
		return restSession{}, false
	case ss.expired(s.active):
		delete(ss.restLive, id)
		return restSession{}, false
	}
	s.active = time.Now()
	s.count++
	return *s, true
}

func (ss *sessions) endREST(match func(*restSession) bool) (n int) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for id, s := range ss.restLive {
		if match(s) {
			delete(ss.restLive, id)
			n++
		}
	}
	return n
}

func isSessionPath(p string) bool {
	return p == "/rest/com/vmware/cis/session" || p == "/api/session"
}

// serveSession answers the session service: create with a user and password or
// with a token, look, delete.
func (a *restAPI) serveSession(w *recorder, r *http.Request) {
	ss := a.v.sessions
	api := r.URL.Path == "/api/session"
	action := r.URL.Query().Get("~action")
	switch {
	case r.Method == http.MethodPost && action == "":
		acct, err := a.credentials(r)
		if err != nil {
			unauthenticated(w, api)
			return
		}
		if ss.full() {
			restFault{http.StatusServiceUnavailable, "service_unavailable", "com.vmware.vapi.endpoint.cis.session.limit", "The maximum number of sessions has been reached.", nil}.send(w, api)
			return
		}
		addr, _, _ := net.SplitHostPort(r.RemoteAddr)
		id := ss.openREST(acct, r.UserAgent(), addr)
		if !strings.EqualFold(r.Header.Get("vmware-use-header-authn"), "true") {
			path := "/rest"
			if api {
				path = "/api"
			}
			http.SetCookie(w, &http.Cookie{Name: sessionHeader, Value: id, Path: path, HttpOnly: true, Secure: a.v.url.Scheme == "https"})
		}
		if api {
			w.Header().Set(sessionHeader, id)
			reply(w, http.StatusCreated, id)
			return
		}
		replyValue(w, api, id)
	case r.Method == http.MethodGet && api, r.Method == http.MethodPost && action == "get":
		s, ok := ss.rest(sessionID(r))
		if !ok {
			unauthenticated(w, api)
			return
		}
		replyValue(w, api, map[string]any{"user": s.user, "created_time": s.created.Format(time.RFC3339Nano), "last_accessed_time": s.active.UTC().Format(time.RFC3339Nano)})
	case r.Method == http.MethodDelete:
		id := sessionID(r)
		if _, ok := ss.rest(id); !ok {
			unauthenticated(w, api)
			return
		}
		ss.mu.Lock()
		delete(ss.restLive, id)
		ss.mu.Unlock()
		if api {
			w.code = http.StatusNoContent
		}
	default:
		w.code = http.StatusMethodNotAllowed
	}
}

// credentials finds who wants to log in: by Basic authentication, or by a
// token that the STS here has issued. Signatures are not checked.
func (a *restAPI) credentials(r *http.Request) (account, error) {
	if user, password, ok := r.BasicAuth(); ok {
		return a.v.accounts.check(user, password, time.Now())
	}
	token, err := signedToken(r.Header.Get("Authorization"))
	if err != nil {
		return account{}, err
	}
	var assertion struct {
		ID string `xml:",attr"`
	}
	if err := xml.Unmarshal(token, &assertion); err != nil {
		return account{}, errCredentials
	}
	acct, ok := a.v.tokens.holder(assertion.ID, time.Now())
	if !ok {
		return account{}, errCredentials
	}
	return acct, nil
}

// signedToken reads the SAML token of an Authorization header of scheme SIGN:
// zipped and in base64.
func signedToken(header string) ([]byte, error) {
	rest, ok := strings.CutPrefix(header, "SIGN ")
	if !ok {
		return nil, errCredentials
	}
	for param := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(param), "=")
		if key != "token" {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(strings.Trim(value, `"`))
		if err != nil {
			return nil, errCredentials
		}
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return nil, errCredentials
		}
		const maxToken = 1 << 20 // a zip bomb is no token
		b, err = io.ReadAll(io.LimitReader(z, maxToken))
		if err != nil {
			return nil, errCredentials
		}
		return b, nil
	}
	return nil, errCredentials
}

// restFault is a refusal of the REST API.
type restFault struct {
	status int
	// kind is a standard error of the vSphere Automation API, e.g. not_found.
	kind string
	// id and text of the message; args are its arguments.
	id, text string
	args     []string
}

// send writes the fault in the form of /api or of /rest.
func (f restFault) send(w *recorder, api bool) {
	args := f.args
	if args == nil {
		args = []string{}
	}
	messages := []any{}
	if f.text != "" {
		messages = append(messages, map[string]any{"args": args, "default_message": f.text, "id": f.id})
	}
	if api {
		reply(w, f.status, map[string]any{"error_type": strings.ToUpper(f.kind), "messages": messages})
		return
	}
	reply(w, f.status, map[string]any{"type": "com.vmware.vapi.std.errors." + f.kind, "value": map[string]any{"error_type": strings.ToUpper(f.kind), "messages": messages}})
}

func unauthenticated(w *recorder, api bool) {
	restFault{http.StatusUnauthorized, "unauthenticated", "com.vmware.vapi.endpoint.method.authentication.required", "Authentication required.", nil}.send(w, api)
}

func reply(w *recorder, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.code = code
	b, err := json.Marshal(body)
	if err != nil {
		w.code = http.StatusInternalServerError
		return
	}
	_, _ = w.Write(b)
}

// replyValue answers with a value: bare at /api, wrapped at /rest.
func replyValue(w *recorder, api bool, v any) {
	if !api {
		v = map[string]any{"value": v}
	}
	reply(w, http.StatusOK, v)
}
