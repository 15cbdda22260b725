package vcenter

import (
	"errors"
	"fmt"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
)

// sessionManager answers the methods of the SessionManager. There is one per
// request, for the methods need to know the caller.
type sessionManager struct {
	mo.SessionManager
	optOut

	ss  *sessions
	req *request
	s   *session // the caller's; nil before log-in
}

// sessionMethods are those that are not vcsim's.
var sessionMethods = map[string]bool{
	"Login": true, "LoginByToken": true, "Logout": true, "TerminateSession": true, "SessionIsActive": true,
	"AcquireCloneTicket": true, "CloneSession": true, "ImpersonateUser": true, "SetLocale": true,
}

var errLogin = simulator.Fault(textInvalidLogin, &types.InvalidLogin{})

// loginFault is what SOAP says about a log-in that failed. A locked account is
// not told apart from a wrong password.
// Unverified: that vpxd says so little; the STS has a text of its own.
func loginFault(err error) *soap.Fault {
	if errors.Is(err, errPasswordExpired) {
		return simulator.Fault(textPasswordExpired, &types.PasswordExpired{})
	}
	return errLogin
}

func (m *sessionManager) open(a account, locale string) types.UserSession {
	s := m.ss.open(a.who, a.display, m.req.agent, m.req.addr, locale)
	m.req.login = s.cookie
	return s.UserSession
}

// mayLogIn refuses a user who has no permission at all: the password is right,
// but there is nothing to see.
func (v *VCenter) mayLogIn(p principal) *soap.Fault {
	w := v.access.who(p)
	v.access.mu.Lock()
	defer v.access.mu.Unlock()
	if v.access.core.Anything(w) {
		return nil
	}
	return simulator.Fault("", noPermission(need{v.content.RootFolder, "System.View"}))
}

func (m *sessionManager) Login(ctx *simulator.Context, req *types.Login) soap.HasFault {
	if ctx.Session != nil {
		return &methods.LoginBody{Fault_: errLogin}
	}
	a, err := m.ss.v.accounts.check(req.UserName, req.Password, time.Now())
	if err != nil {
		return &methods.LoginBody{Fault_: loginFault(err)}
	}
	if f := m.ss.v.mayLogIn(a.who); f != nil {
		return &methods.LoginBody{Fault_: f}
	}
	return &methods.LoginBody{Res: &types.LoginResponse{Returnval: m.open(a, req.Locale)}}
}

// LoginByToken takes a SAML token that the STS here has issued and that has
// not expired.
func (m *sessionManager) LoginByToken(ctx *simulator.Context, req *types.LoginByToken) soap.HasFault {
	var security struct {
		Assertion struct {
			ID string `xml:",attr"`
		} `xml:"Assertion"`
	}
	if e, ok := ctx.Header.Security.(*simulator.Element); ok {
		_ = e.Decode(&security)
	}
	a, ok := m.ss.v.tokens.holder(security.Assertion.ID, time.Now())
	if ctx.Session != nil || !ok {
		return &methods.LoginByTokenBody{Fault_: errLogin}
	}
	if f := m.ss.v.mayLogIn(a.who); f != nil {
		return &methods.LoginByTokenBody{Fault_: f}
	}
	return &methods.LoginByTokenBody{Res: &types.LoginByTokenResponse{Returnval: m.open(a, req.Locale)}}
}

func (m *sessionManager) Logout(*simulator.Context, *types.Logout) soap.HasFault {
	m.ss.end(m.s)
	return &methods.LogoutBody{Res: &types.LogoutResponse{}}
}

func (m *sessionManager) TerminateSession(ctx *simulator.Context, req *types.TerminateSession) soap.HasFault {
	for _, id := range req.SessionId {
		if id == ctx.Session.Key {
			return &methods.TerminateSessionBody{Fault_: simulator.Fault("", &types.InvalidArgument{InvalidProperty: "sessionId"})}
		}
		if s := m.ss.find(id); s == nil || !m.ss.end(s) {
			return &methods.TerminateSessionBody{Fault_: simulator.Fault("", &types.NotFound{})}
		}
	}
	return &methods.TerminateSessionBody{Res: &types.TerminateSessionResponse{}}
}

func (m *sessionManager) SessionIsActive(_ *simulator.Context, req *types.SessionIsActive) soap.HasFault {
	s := m.ss.find(req.SessionID)
	active := s != nil && m.ss.principal(s) == parsePrincipal(req.UserName)
	return &methods.SessionIsActiveBody{Res: &types.SessionIsActiveResponse{Returnval: active}}
}

// AcquireCloneTicket gives a ticket that opens one more session of the caller,
// once, while the caller's lives.
func (m *sessionManager) AcquireCloneTicket(*simulator.Context, *types.AcquireCloneTicket) soap.HasFault {
	m.ss.mu.Lock()
	defer m.ss.mu.Unlock()
	m.ss.nth++
	ticket := "cst-VCT-" + uuidOf(m.ss.v.cfg.Seed, "clone ticket", fmt.Sprintf("%d|%d", m.ss.v.epoch, m.ss.nth))
	m.ss.tickets[ticket] = m.s.cookie
	return &methods.AcquireCloneTicketBody{Res: &types.AcquireCloneTicketResponse{Returnval: ticket}}
}

func (m *sessionManager) CloneSession(ctx *simulator.Context, req *types.CloneSession) soap.HasFault {
	m.ss.mu.Lock()
	cookie, known := m.ss.tickets[req.CloneTicket]
	delete(m.ss.tickets, req.CloneTicket)
	m.ss.mu.Unlock()
	var s *session
	if known {
		s = m.ss.get(cookie)
	}
	if s == nil || ctx.Session != nil {
		return &methods.CloneSessionBody{Fault_: errLogin}
	}
	old := m.ss.copyOf(s)
	u := m.open(account{who: m.ss.principal(s), display: old.UserName}, old.Locale)
	return &methods.CloneSessionBody{Res: &types.CloneSessionResponse{Returnval: u}}
}

// ImpersonateUser makes the caller's session one of another user, who must be
// logged in.
func (m *sessionManager) ImpersonateUser(_ *simulator.Context, req *types.ImpersonateUser) soap.HasFault {
	who := parsePrincipal(req.UserName)
	m.ss.mu.Lock()
	defer m.ss.mu.Unlock()
	for _, s := range m.ss.live {
		if s.who != who || s == m.s {
			continue
		}
		m.s.who, m.s.UserName, m.s.FullName = who, s.UserName, s.FullName
		if req.Locale != "" {
			m.s.Locale, m.s.MessageLocale = req.Locale, req.Locale
		}
		return &methods.ImpersonateUserBody{Res: &types.ImpersonateUserResponse{Returnval: m.s.user()}}
	}
	return &methods.ImpersonateUserBody{Fault_: errLogin}
}

func (m *sessionManager) SetLocale(_ *simulator.Context, req *types.SetLocale) soap.HasFault {
	// Unverified: which further locales a vCenter knows; ours has the one that
	// supportedLocaleList names.
	if req.Locale != "en_US" && req.Locale != "en" {
		return &methods.SetLocaleBody{Fault_: simulator.Fault("", &types.InvalidLocale{})}
	}
	m.ss.mu.Lock()
	m.s.Locale, m.s.MessageLocale = req.Locale, req.Locale
	m.ss.mu.Unlock()
	return &methods.SetLocaleBody{Res: &types.SetLocaleResponse{}}
}
