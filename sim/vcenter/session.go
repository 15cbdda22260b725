package vcenter

import (
	"fmt"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/types"
)

// defaultMaxSessions is vpxd's config.vmacore.soap.maxSessionCount as of 8.0
// Update 3, where SOAP and REST sessions count together
// (knowledge.broadcom.com 375546).
const defaultMaxSessions = 3000

// sessions holds who is logged in. vcsim's own session manager can't end a
// pending WaitForUpdatesEx when its session dies and compares with a password
// that can't be changed, so the dispatcher uses this one for every endpoint.
type sessions struct {
	v *VCenter

	mu       sync.Mutex
	nth      int
	live     map[string]*session // by cookie
	byKey    map[string]*session
	tickets  map[string]string       // clone ticket to the cookie of the session it clones
	restLive map[string]*restSession // by session id
}

func newSessions(v *VCenter) *sessions {
	return &sessions{v: v, live: map[string]*session{}, byKey: map[string]*session{}, tickets: map[string]string{}, restLive: map[string]*restSession{}}
}

// session is one login. Its registry holds the objects that live as long as
// it does: views, filters, property collectors.
type session struct {
	simulator.Session
	// cookie is the secret that calls carry. As on a vCenter it is not the
	// key, which every administrator can list.
	cookie string
	dead   chan struct{} // closed when the session ends

	// Under sessions.mu, as are user and name in UserSession.
	who    principal
	active time.Time // end of its last call
	calls  int       // under way
	count  int32     // of calls so far

	mu  sync.Mutex
	nth int
}

// next gives a reference to a new object of the session.
func (s *session) next(kind string) types.ManagedObjectReference {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nth++
	return types.ManagedObjectReference{Type: kind, Value: fmt.Sprintf("session[%s]%s", s.Key, uuidOf(0, s.Key+kind, fmt.Sprint(s.nth)))}
}

// principal is who the session acts as; impersonation changes it.
func (ss *sessions) principal(s *session) principal {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return s.who
}

// copyOf is a session as simulator methods get it.
func (ss *sessions) copyOf(s *session) *simulator.Session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	c := s.Session
	return &c
}

// expired says whether something has been idle for too long.
func (ss *sessions) expired(active time.Time) bool {
	idle := ss.v.cfg.IdleTimeout
	return idle > 0 && time.Since(active) > idle
}

// get finds a session that is alive. One that has been idle for too long ends
// here: nobody can tell the difference.
func (ss *sessions) get(cookie string) *session {
	ss.mu.Lock()
	s := ss.live[cookie]
	expired := s != nil && s.calls == 0 && ss.expired(s.active)
	ss.mu.Unlock()
	if expired {
		ss.end(s)
		return nil
	}
	return s
}

// find finds a session that is alive by its key.
func (ss *sessions) find(key string) *session {
	ss.mu.Lock()
	s := ss.byKey[key]
	ss.mu.Unlock()
	if s == nil {
		return nil
	}
	return ss.get(s.cookie)
}

// begin notes a call of a session (which may be nil) and returns what notes
// its end.
func (ss *sessions) begin(s *session) func() {
	if s == nil {
		return func() {}
	}
	ss.mu.Lock()
	s.calls++
	s.count++
	ss.mu.Unlock()
	return func() {
		ss.mu.Lock()
		s.calls--
		s.active = time.Now()
		ss.mu.Unlock()
	}
}

// open makes a session of a user. shown is the user's name as vCenter shows it.
func (ss *sessions) open(who principal, shown, agent, addr, locale string) *session {
	s := ss.prepare(who, shown, agent, addr, locale)
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.live[s.cookie], ss.byKey[s.Key] = s, s
	return s
}

// prepare makes a session that is not listed.
func (ss *sessions) prepare(who principal, shown, agent, addr, locale string) *session {
	now := time.Now().UTC()
	if locale == "" {
		locale = "en_US"
	}
	ss.mu.Lock()
	ss.nth++
	nth := fmt.Sprintf("%d|%d", ss.v.epoch, ss.nth)
	ss.mu.Unlock()
	key := uuidOf(ss.v.cfg.Seed, "session", nth)
	s := &session{dead: make(chan struct{}), active: now, who: who, cookie: uuidOf(ss.v.cfg.Seed, "session cookie", nth)}
	s.Session = simulator.Session{
		UserSession: types.UserSession{
			Key: key, UserName: shown, FullName: shown, LoginTime: now, LastActiveTime: now,
			Locale: locale, MessageLocale: locale, UserAgent: agent, IpAddress: addr,
		},
		Registry: simulator.NewRegistry(),
		Map:      ss.v.vim,
	}
	s.Registry.Put(newCollector(ss.v, s, ss.v.content.PropertyCollector))
	s.Registry.Put(&authManager{a: ss.v.access, ss: ss, s: s, self: *ss.v.content.AuthorizationManager})
	s.Registry.Put(&sessionView{ss: ss, s: s, self: *ss.v.content.SessionManager})
	return s
}

// end ends a session; it says whether it was alive.
func (ss *sessions) end(s *session) bool {
	ss.mu.Lock()
	alive := ss.live[s.cookie] == s
	if alive {
		delete(ss.live, s.cookie)
		delete(ss.byKey, s.Key)
		for t, cookie := range ss.tickets {
			if cookie == s.cookie {
				delete(ss.tickets, t)
			}
		}
	}
	ss.mu.Unlock()
	if !alive {
		return false
	}
	close(s.dead)
	ctx := ss.v.internal()
	for _, o := range s.Registry.AllReference("") {
		ss.v.forget(ctx, o.Reference())
		switch o := o.(type) {
		case *collector:
			o.destroy()
		case simulator.RegisterObject: // a container view
			ss.v.vim.RemoveHandler(o)
		case interface{ SessionEnded() }: // a collector of the history of tasks
			o.SessionEnded()
		}
	}
	return true
}

// endIf ends the SOAP sessions that match.
func (ss *sessions) endIf(match func(*session) bool) (n int) {
	ss.mu.Lock()
	var out []*session
	for _, s := range ss.live {
		if match(s) {
			out = append(out, s)
		}
	}
	ss.mu.Unlock()
	for _, s := range out {
		if ss.end(s) {
			n++
		}
	}
	return n
}

// sweep ends what has been idle for too long.
func (ss *sessions) sweep() {
	ss.endIf(func(s *session) bool { return s.calls == 0 && ss.expired(s.active) })
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for id, s := range ss.restLive {
		if ss.expired(s.active) {
			delete(ss.restLive, id)
		}
	}
}

// full says whether no session can be added. vmacore makes a session at the
// first call of a client, before any log-in, so that a full vCenter refuses
// even RetrieveServiceContent with HTTP 503
// (vcdx200.com 2017/02, maximum client sessions).
func (ss *sessions) full() bool {
	ss.mu.Lock()
	n := len(ss.live) + len(ss.restLive)
	ss.mu.Unlock()
	if n < ss.v.cfg.MaxSessions {
		return false
	}
	ss.sweep()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return len(ss.live)+len(ss.restLive) >= ss.v.cfg.MaxSessions
}

func (ss *sessions) list() []types.UserSession {
	ss.sweep()
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var out []types.UserSession
	for _, s := range ss.live {
		out = append(out, s.user())
	}
	return out
}

// user describes a session; sessions.mu is held.
func (s *session) user() types.UserSession {
	u := s.UserSession
	u.LastActiveTime = s.active.UTC()
	u.CallCount = int64(s.count)
	return u
}

// sessionView is the SessionManager as the property collector sees it from a
// session.
type sessionView struct {
	optOut
	ss   *sessions
	s    *session
	self ref
}

func (v *sessionView) Reference() ref { return v.self }

// Get implements the interface by which vcsim's property collector asks for
// an object whose properties are made on demand. The list of sessions is for
// those who may end them.
func (v *sessionView) Get() mo.Reference {
	v.ss.mu.Lock()
	current := v.s.user()
	v.ss.mu.Unlock()
	var list []types.UserSession
	if v.ss.v.access.allowed(v.ss.principal(v.s), v.ss.v.content.RootFolder, "Sessions.TerminateSession") {
		list = v.ss.list()
	}
	return &mo.SessionManager{
		Self: v.self, SessionList: list, CurrentSession: &current,
		DefaultLocale: "en_US", SupportedLocaleList: []string{"en_US"}, MessageLocaleList: []string{"en_US"},
	}
}
