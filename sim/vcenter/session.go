package vcenter

import (
	"crypto/subtle"
	"fmt"
	"sync"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// sessions holds who is logged in. vcsim's own session manager can't end a
// pending WaitForUpdatesEx when its session dies and compares with a password
// that can't be changed, so the dispatcher uses this one for every endpoint.
type sessions struct {
	v *VCenter

	mu       sync.Mutex
	user     string
	password string
	nth      int
	live     map[string]*session
}

// session is one login. Its registry holds the objects that live as long as
// it does: views, filters, property collectors.
type session struct {
	simulator.Session
	dead chan struct{} // closed when the session ends

	// Under sessions.mu.
	active time.Time // end of its last call
	calls  int       // under way

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

func (ss *sessions) valid(user, password string) bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	// No early exit: the time must not tell which one is wrong.
	u := subtle.ConstantTimeCompare([]byte(user), []byte(ss.user))
	p := subtle.ConstantTimeCompare([]byte(password), []byte(ss.password))
	return u&p == 1
}

// get finds a session that is alive. One that has been idle for too long ends
// here: nobody can tell the difference.
func (ss *sessions) get(key string) *session {
	ss.mu.Lock()
	s := ss.live[key]
	idle := ss.v.cfg.IdleTimeout
	expired := s != nil && idle > 0 && s.calls == 0 && time.Since(s.active) > idle
	ss.mu.Unlock()
	if expired {
		ss.end(key)
		return nil
	}
	return s
}

// begin notes a call of a session (which may be nil) and returns what notes
// its end.
func (ss *sessions) begin(s *session) func() {
	if s == nil {
		return func() {}
	}
	ss.mu.Lock()
	s.calls++
	ss.mu.Unlock()
	return func() {
		ss.mu.Lock()
		s.calls--
		s.active = time.Now()
		ss.mu.Unlock()
	}
}

func (ss *sessions) open(user, agent, addr, locale string) *session {
	now := time.Now().UTC()
	if locale == "" {
		locale = "en_US"
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.nth++
	key := uuidOf(ss.v.cfg.Seed, "session", fmt.Sprintf("%d|%d", ss.v.epoch, ss.nth))
	s := &session{dead: make(chan struct{}), active: now}
	s.Session = simulator.Session{
		UserSession: types.UserSession{
			Key: key, UserName: user, FullName: user, LoginTime: now, LastActiveTime: now,
			Locale: locale, MessageLocale: locale, UserAgent: agent, IpAddress: addr,
		},
		Registry: simulator.NewRegistry(),
		Map:      ss.v.vim,
	}
	s.Registry.Put(newCollector(ss.v, s, ss.v.content.PropertyCollector))
	s.Registry.Put(&sessionView{ss: ss, s: s, self: *ss.v.content.SessionManager})
	ss.live[key] = s
	return s
}

// end ends a session; it says whether there was one.
func (ss *sessions) end(key string) bool {
	ss.mu.Lock()
	s := ss.live[key]
	delete(ss.live, key)
	ss.mu.Unlock()
	if s == nil {
		return false
	}
	close(s.dead)
	for _, o := range s.Registry.AllReference("") {
		switch o := o.(type) {
		case *collector:
			o.destroy()
		case simulator.RegisterObject: // a container view
			ss.v.vim.RemoveHandler(o)
		}
	}
	return true
}

func (ss *sessions) endAll() int {
	ss.mu.Lock()
	keys := make([]string, 0, len(ss.live))
	for k := range ss.live {
		keys = append(keys, k)
	}
	ss.mu.Unlock()
	for _, k := range keys {
		ss.end(k)
	}
	return len(keys)
}

func (ss *sessions) list() []types.UserSession {
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
// an object whose properties are made on demand.
func (v *sessionView) Get() mo.Reference {
	v.ss.mu.Lock()
	current := v.s.user()
	v.ss.mu.Unlock()
	return &mo.SessionManager{
		Self: v.self, SessionList: v.ss.list(), CurrentSession: &current,
		DefaultLocale: "en_US", SupportedLocaleList: []string{"en_US"}, MessageLocaleList: []string{"en_US"},
	}
}

// sessionManager answers the methods of the SessionManager. There is one per
// request, for the methods need to know the caller.
type sessionManager struct {
	mo.SessionManager
	optOut

	ss  *sessions
	req *request
}

var errLogin = simulator.Fault(textInvalidLogin, &types.InvalidLogin{})

func (m *sessionManager) open(user, locale string) types.UserSession {
	s := m.ss.open(user, m.req.agent, m.req.addr, locale)
	m.req.login = s.Key
	return s.UserSession
}

func (m *sessionManager) Login(ctx *simulator.Context, req *types.Login) soap.HasFault {
	if ctx.Session != nil || !m.ss.valid(req.UserName, req.Password) {
		return &methods.LoginBody{Fault_: errLogin}
	}
	return &methods.LoginBody{Res: &types.LoginResponse{Returnval: m.open(req.UserName, req.Locale)}}
}

// LoginByToken takes any SAML token with a subject: signatures are not
// checked, since the STS here signs nothing either.
func (m *sessionManager) LoginByToken(ctx *simulator.Context, req *types.LoginByToken) soap.HasFault {
	var subject struct {
		ID string `xml:"Assertion>Subject>NameID"`
	}
	if e, ok := ctx.Header.Security.(*simulator.Element); ok {
		_ = e.Decode(&subject)
	}
	if ctx.Session != nil || subject.ID == "" {
		return &methods.LoginByTokenBody{Fault_: errLogin}
	}
	return &methods.LoginByTokenBody{Res: &types.LoginByTokenResponse{Returnval: m.open(subject.ID, req.Locale)}}
}

func (m *sessionManager) Logout(ctx *simulator.Context, _ *types.Logout) soap.HasFault {
	m.ss.end(ctx.Session.Key)
	return &methods.LogoutBody{Res: &types.LogoutResponse{}}
}

func (m *sessionManager) TerminateSession(ctx *simulator.Context, req *types.TerminateSession) soap.HasFault {
	for _, id := range req.SessionId {
		if id == ctx.Session.Key {
			return &methods.TerminateSessionBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "sessionId"})}
		}
		if !m.ss.end(id) {
			return &methods.TerminateSessionBody{Fault_: simulator.Fault("", &types.NotFound{})}
		}
	}
	return &methods.TerminateSessionBody{Res: &types.TerminateSessionResponse{}}
}

func (m *sessionManager) SessionIsActive(_ *simulator.Context, req *types.SessionIsActive) soap.HasFault {
	s := m.ss.get(req.SessionID)
	return &methods.SessionIsActiveBody{Res: &types.SessionIsActiveResponse{Returnval: s != nil && s.UserName == req.UserName}}
}
