package csp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// token lets a client use an array as a user of it.
type token struct {
	ID, Session      string
	user             string
	on               *backend
	login            login
	created, expires time.Time
}

// tokens are those that are good, in memory only: a provider that is started
// anew has none.
type tokens struct {
	mu    sync.Mutex
	born  string
	n     int
	byKey map[string]*token
}

func (t *tokens) init(seed uint64, now time.Time) {
	t.born = fmt.Sprintf("%d/%d", seed, now.UnixNano())
	t.byKey = map[string]*token{}
}

// make makes one, and forgets those that have expired.
func (t *tokens) make(on *backend, l login, now time.Time, life time.Duration) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, x := range t.byKey {
		if !now.Before(x.expires) {
			delete(t.byKey, k)
		}
	}
	t.n++
	h := sha256.Sum256(fmt.Appendf(nil, "%s/%d", t.born, t.n))
	x := &token{ID: hex.EncodeToString(h[:8]), Session: hex.EncodeToString(h[8:24]), user: l.user, on: on, login: l, created: now, expires: now.Add(life)}
	t.byKey[x.Session] = x
	return x
}

func (t *tokens) good(session string, now time.Time) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := t.byKey[session]
	if x == nil || !now.Before(x.expires) {
		delete(t.byKey, session)
		return nil
	}
	return x
}

func (t *tokens) drop(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k, x := range t.byKey {
		if x.ID == id {
			delete(t.byKey, k)
			return true
		}
	}
	return false
}

type tokenOut struct {
	ID           string `json:"id"`
	Username     string `json:"username"`
	ArrayIP      string `json:"array_ip"`
	SessionToken string `json:"session_token"`
	CreationTime int64  `json:"creation_time"`
	ExpiryTime   int64  `json:"expiry_time"`
}

// createToken logs in. The password is checked by the array, each time.
func (s *Server) createToken(c *call) (reply, error) {
	var in struct {
		Username *string `json:"username"`
		Password *string `json:"password"`
		ArrayIP  string  `json:"array_ip"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Username == nil || *in.Username == "" {
		return reply{}, refuse(http.StatusBadRequest, "username is required")
	}
	if in.Password == nil {
		return reply{}, refuse(http.StatusBadRequest, "password is required")
	}
	name := in.ArrayIP
	if name == "" { // the client sends it empty where it has none
		name = c.arrayIP
	}
	b, err := s.array(name)
	if err != nil {
		return reply{}, err
	}
	l := login{*in.Username, *in.Password}
	if err := b.client(l).Login(c.ctx); err != nil {
		b.forget(l, err)
		err = failed("login to "+b.Name, err)
		// Who is known to an array that has taken over for one that is lost may
		// publish what it has.
		if f := (*failure)(nil); !asFailure(err, &f) || !f.away || len(s.survivors(c, b, l)) == 0 {
			return reply{}, err
		}
	}
	t := s.tokens.make(b, l, s.cfg.Now(), s.cfg.TokenLife)
	return reply{body: tokenOut{t.ID, t.user, in.ArrayIP, t.Session, t.created.Unix(), t.expires.Unix()}}, nil
}

func (s *Server) deleteToken(c *call) (reply, error) {
	if !s.tokens.drop(c.vars["id"]) {
		return reply{}, refuse(http.StatusNotFound, "no such token")
	}
	return reply{}, nil
}
