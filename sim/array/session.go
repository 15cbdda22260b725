package array

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// sessionsFor is how many sessions an array with some nodes has at most
// (documented by the number of nodes: 24, 36, 48, 96).
func sessionsFor(nodes int) int {
	switch {
	case nodes <= 2:
		return 24
	case nodes <= 4:
		return 36
	case nodes <= 6:
		return 48
	}
	return 96
}

// Session of a client.
type Session struct {
	Key     string
	User    string
	Role    Role
	Client  string // its address; a key counts from there only
	Started time.Time
	Used    time.Time
}

type session struct{ Session }

// OpenSession logs a user in. Errors: INV_USER_PASS, SYSTEM_BUSY (as many
// sessions as there may be; unverified: what the real array says then).
func (a *Array) OpenSession(now time.Time, user, password, client string) (Session, error) {
	a.idleOut(now)
	u, ok := a.users[user]
	if !ok || u.Password != password {
		return Session{}, &Error{Kind: UserOrPassword, Field: "user", Value: user, Reason: "no such user, or another password"}
	}
	if len(a.sessions) >= a.cfg.MaxSessions {
		return Session{}, &Error{Kind: TooBusy, Field: "user", Value: user, Reason: fmt.Sprintf("there are %d sessions, as many as there may be", len(a.sessions))}
	}
	a.sessionSeq++
	n := a.sessionSeq
	s := &session{Session{Key: fmt.Sprintf("%d-%016x%016x-%08x", n%10, mix(a.cfg.Seed, "key/hi", n), mix(a.cfg.Seed, "key/lo", n), uint32(now.Unix())),
		User: user, Role: u.Role, Client: client, Started: now, Used: now}}
	a.sessions[s.Key] = s
	return s.Session, nil
}

// UseSession says whose a key is, and that it was used. Errors: INV_SESS_KEY
// (unknown, idled out, or of another client).
func (a *Array) UseSession(now time.Time, key, client string) (Session, error) {
	s, ok := a.sessions[key]
	if ok && now.Sub(s.Used) >= a.cfg.SessionIdle {
		delete(a.sessions, key)
		ok = false
	}
	if !ok || s.Client != client {
		return Session{}, &Error{Kind: SessionKey, Field: "key", Reason: "unknown, ended, or of another client"}
	}
	s.Used = now
	return s.Session, nil
}

// CloseSession logs out. Errors: INV_SESS_KEY.
func (a *Array) CloseSession(key string) error {
	if _, ok := a.sessions[key]; !ok {
		return &Error{Kind: SessionKey, Field: "key", Reason: "unknown or ended"}
	}
	delete(a.sessions, key)
	return nil
}

// idleOut ends sessions that were not used for too long.
func (a *Array) idleOut(now time.Time) {
	for key, s := range a.sessions {
		if now.Sub(s.Used) >= a.cfg.SessionIdle {
			delete(a.sessions, key)
		}
	}
}

// Sessions returns all sessions, oldest first.
func (a *Array) Sessions() []Session {
	out := make([]Session, 0, len(a.sessions))
	for _, s := range a.sessions {
		out = append(out, s.Session)
	}
	slices.SortFunc(out, func(s, t Session) int { return cmp.Or(s.Started.Compare(t.Started), cmp.Compare(s.Key, t.Key)) })
	return out
}
