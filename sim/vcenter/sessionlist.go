package vcenter

import (
	"cmp"
	"slices"
	"time"
)

// SessionInfo describes a session. It holds no secret.
type SessionInfo struct {
	// Key names the session for KillSession; it is UserSession.key of a SOAP
	// session. It does not open one: that takes the cookie.
	Key string `json:"key" yaml:"key"`
	// Kind is SOAP or REST.
	Kind string `json:"kind" yaml:"kind"`
	// User as vCenter shows it: DOMAIN\user.
	User string `json:"user" yaml:"user"`
	// Component is the caller as the ledger names it.
	Component string `json:"component" yaml:"component"`
	Agent     string `json:"agent" yaml:"agent"`
	Addr      string `json:"addr" yaml:"addr"`
	// LoggedIn and LastActive are in UTC; LastActive is the end of the last call.
	LoggedIn   time.Time `json:"loggedIn" yaml:"loggedIn"`
	LastActive time.Time `json:"lastActive" yaml:"lastActive"`
	// Calls so far, and Running of them now.
	Calls   int `json:"calls" yaml:"calls"`
	Running int `json:"running" yaml:"running"`
}

// SessionList lists all sessions, oldest first.
func (v *VCenter) SessionList() []SessionInfo {
	ss := v.sessions
	ss.sweep()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	out := make([]SessionInfo, 0, len(ss.live)+len(ss.restLive))
	for _, s := range ss.live {
		out = append(out, SessionInfo{
			Key: s.Key, Kind: "SOAP", User: s.UserName, Component: v.component(s.UserAgent), Agent: s.UserAgent, Addr: s.IpAddress,
			LoggedIn: s.LoginTime, LastActive: s.active.UTC(), Calls: int(s.count), Running: s.calls,
		})
	}
	for _, s := range ss.restLive {
		out = append(out, SessionInfo{
			Key: s.key, Kind: "REST", User: s.user, Component: v.component(s.agent), Agent: s.agent, Addr: s.addr,
			LoggedIn: s.created, LastActive: s.active.UTC(), Calls: s.count,
		})
	}
	slices.SortFunc(out, func(a, b SessionInfo) int {
		return cmp.Or(a.LoggedIn.Compare(b.LoggedIn), cmp.Compare(a.Key, b.Key))
	})
	return out
}

// KillSessions ends all sessions, SOAP and REST: every later call of theirs is
// NotAuthenticated, and pending waits for updates end so at once. It returns
// how many SOAP sessions there were.
func (v *VCenter) KillSessions() int {
	v.sessions.endREST(func(*restSession) bool { return true })
	return v.sessions.endIf(func(*session) bool { return true })
}

// KillSession ends the session of that key, SOAP or REST; it says whether
// there was one.
func (v *VCenter) KillSession(key string) bool {
	n := v.sessions.endREST(func(s *restSession) bool { return s.key == key })
	return n+v.sessions.endIf(func(s *session) bool { return s.Key == key }) > 0
}

// KillSessionsOf ends all sessions of a user and returns how many there were.
func (v *VCenter) KillSessionsOf(user string) int {
	who := parsePrincipal(user)
	n := v.sessions.endREST(func(s *restSession) bool { return s.who == who })
	return n + v.sessions.endIf(func(s *session) bool { return s.who == who })
}

// Sessions is how many SOAP sessions a component has open, as the ledger names
// it: by its user agent.
func (v *VCenter) Sessions(component string) (n int) {
	v.sessions.mu.Lock()
	defer v.sessions.mu.Unlock()
	for _, s := range v.sessions.live {
		if v.component(s.UserAgent) == component {
			n++
		}
	}
	return n
}
