package vcenter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/sts"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/vcenter"
)

// loginAs logs in with a user's password.
func loginAs(t *testing.T, v *vcenter.VCenter, user, password string) (*govmomi.Client, error) {
	t.Helper()
	u := v.URL()
	u.User = url.UserPassword(user, password)
	c, err := govmomi.NewClient(t.Context(), u, true)
	if err == nil {
		t.Cleanup(func() { c.CloseIdleConnections() })
	}
	return c, err
}

const otherUser, otherPassword = "k8s@vsphere.local", "other"

func withOther() vcenter.Config {
	return vcenter.Config{Users: []vcenter.User{{Name: otherUser, Password: otherPassword, Role: "Admin"}}}
}

// bubbled starts a vCenter in virtual time, with a client that is not logged
// in.
func bubbled(ctx context.Context, t *testing.T, cfg vcenter.Config) (*vcenter.VCenter, *vim25.Client) {
	t.Helper()
	n := transport.NewMemory()
	l, err := n.Listen("tcp", "127.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener, cfg.Nodes = l, []vcenter.Node{{Name: "node-1"}}
	v, err := vcenter.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	u := v.URL()
	u.User = nil
	sc := soap.NewClient(u, true)
	sc.DefaultTransport().DialContext = n.DialContext
	c, err := vim25.NewClient(ctx, sc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return v, c
}

func TestLogInFailureOnTheWire(t *testing.T) {
	v := start(t, vcenter.Config{})
	body := `<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/"><Body><Login xmlns="urn:vim25"><_this type="SessionManager">SessionManager</_this><userName>administrator@vsphere.local</userName><password>x</password></Login></Body></Envelope>`
	u := v.URL()
	u.User = nil
	res, err := http.Post(u.String(), "text/xml", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	for _, want := range []string{
		"<faultcode>ServerFaultCode</faultcode>",
		"<faultstring>Cannot complete login due to an incorrect user name or password.</faultstring>",
		`<InvalidLoginFault xmlns="urn:vim25" xsi:type="InvalidLogin">`,
	} {
		if !bytes.Contains(b, []byte(want)) {
			t.Errorf("no %s in %s", want, b)
		}
	}
	if res.StatusCode != http.StatusInternalServerError || len(res.Cookies()) != 0 {
		t.Errorf("%s, cookies %v", res.Status, res.Cookies())
	}
}

// The times of a lock are those of Single Sign-On's default policy.
func TestAccountLock(t *testing.T) {
	ctx := context.Background()
	synctest.Test(t, func(t *testing.T) {
		v, c := bubbled(ctx, t, withOther())
		defer v.Close()
		try := func(user, password string) error {
			c.Jar, _ = cookiejar.New(nil) // forgets the session
			return session.NewManager(c).Login(ctx, url.UserPassword(user, password))
		}
		fail := func(n int) {
			for range n {
				if err := try(otherUser, "wrong"); !fault.Is(err, &types.InvalidLogin{}) {
					t.Fatalf("wrong password: %v", err)
				}
			}
		}
		fail(4)
		time.Sleep(181 * time.Second)
		fail(4) // the first four no longer count
		if v.AccountLocked(otherUser) {
			t.Error("locked too early")
		}
		fail(1)
		if !v.AccountLocked(otherUser) {
			t.Error("five failures within 180 s do not lock")
		}
		if err := try(otherUser, otherPassword); !fault.Is(err, &types.InvalidLogin{}) {
			t.Errorf("right password of a locked account: %v", err)
		}
		time.Sleep(299 * time.Second)
		if err := try(otherUser, otherPassword); err == nil {
			t.Error("unlocked too early")
		}
		time.Sleep(time.Second)
		if err := try(otherUser, otherPassword); err != nil {
			t.Errorf("after 300 s: %v", err)
		}
		// By hand, until unlocked by hand.
		if err := v.LockAccount("VSPHERE.LOCAL\\K8s"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := try(otherUser, otherPassword); err == nil {
			t.Error("a lock by hand ended by itself")
		}
		if err := v.UnlockAccount(otherUser); err != nil {
			t.Fatal(err)
		}
		if err := try(otherUser, otherPassword); err != nil {
			t.Errorf("unlocked: %v", err)
		}
		// The administrator of the domain is never locked by failures.
		for range 20 {
			_ = try("administrator@vsphere.local", "wrong")
		}
		p, _ := v.URL().User.Password()
		if err := try("administrator@vsphere.local", p); err != nil {
			t.Errorf("administrator: %v", err)
		}
		if err := v.LockAccount("nobody@vsphere.local"); err == nil || !strings.Contains(err.Error(), otherUser) {
			t.Errorf("unknown user: %v", err)
		}
	})
}

func TestPasswordsOfUsers(t *testing.T) {
	v := start(t, withOther())
	c, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := loginAs(t, v, `VSPHERE.LOCAL\K8S`, otherPassword); err != nil {
		t.Errorf("the other form of a user name: %v", err)
	}
	if err := v.ExpirePassword(otherUser); err != nil {
		t.Fatal(err)
	}
	if _, err := loginAs(t, v, otherUser, otherPassword); !fault.Is(err, &types.PasswordExpired{}) {
		t.Errorf("expired: %v", err)
	}
	if err := v.SetPasswordOf(otherUser, "new"); err != nil {
		t.Fatal(err)
	}
	if _, err := loginAs(t, v, otherUser, otherPassword); !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("old password: %v", err)
	}
	if _, err := loginAs(t, v, otherUser, "new"); err != nil {
		t.Errorf("new password: %v", err)
	}
	if _, err := methods.GetCurrentTime(t.Context(), c); err != nil {
		t.Errorf("session from before: %v", err)
	}
	if err := v.AddUser(vcenter.User{Name: "late@lab.local", Password: "p", Role: "Admin"}); err != nil {
		t.Fatal(err)
	}
	late, err := loginAs(t, v, "late@lab.local", "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.RemoveUser("late@lab.local"); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.GetCurrentTime(t.Context(), late); !fault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("session of a removed user: %v", err)
	}
}

func TestSessionListAndKill(t *testing.T) {
	v := start(t, withOther())
	a := login(t, v)
	b, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	rc := rest.NewClient(b.Client)
	if err := rc.Login(t.Context(), url.UserPassword(otherUser, otherPassword)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range v.SessionList() {
		got = append(got, s.Kind+" "+s.User)
		if s.Addr != "127.0.0.1" || s.LoggedIn.IsZero() || s.LastActive.Before(s.LoggedIn) || !strings.Contains(s.Agent, "govmomi") {
			t.Errorf("%+v", s)
		}
		if s.Key == rc.SessionID() {
			t.Error("the list gives the id of a REST session away")
		}
	}
	if want := `[SOAP VSPHERE.LOCAL\administrator SOAP VSPHERE.LOCAL\k8s REST VSPHERE.LOCAL\k8s]`; fmt.Sprint(got) != want {
		t.Errorf("%v, want %v", got, want)
	}
	// SOAP and REST sessions are apart.
	m := session.NewManager(b.Client)
	us, err := m.UserSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !v.KillSession(us.Key) || v.KillSession(us.Key) {
		t.Error("KillSession")
	}
	if _, err := methods.GetCurrentTime(t.Context(), b); !fault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("killed SOAP session: %v", err)
	}
	if s, err := rc.Session(t.Context()); err != nil || s == nil || s.User != `VSPHERE.LOCAL\k8s` {
		t.Errorf("REST session after the SOAP session was killed: %v, %v", s, err)
	}
	if n := v.KillSessionsOf(otherUser); n != 1 {
		t.Errorf("%d sessions killed, want 1", n)
	}
	if s, err := rc.Session(t.Context()); err != nil || s != nil {
		t.Errorf("killed REST session: %v, %v", s, err)
	}
	if _, err := methods.GetCurrentTime(t.Context(), a); err != nil {
		t.Errorf("another user's session: %v", err)
	}
}

func TestIdleSessions(t *testing.T) {
	ctx := context.Background()
	synctest.Test(t, func(t *testing.T) {
		cfg := withOther()
		cfg.IdleTimeout = 10 * time.Minute
		v, c := bubbled(ctx, t, cfg)
		defer v.Close()
		p, _ := v.URL().User.Password()
		if err := session.NewManager(c).Login(ctx, url.UserPassword("administrator@vsphere.local", p)); err != nil {
			t.Fatal(err)
		}
		rc := rest.NewClient(c)
		if err := rc.Login(ctx, url.UserPassword(otherUser, otherPassword)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			time.Sleep(9 * time.Minute)
			if _, err := methods.GetCurrentTime(ctx, c); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := rc.Session(ctx); err != nil || s != nil {
			t.Errorf("a REST session was idle for 27 minutes: %v, %v", s, err)
		}
		time.Sleep(10*time.Minute + time.Second)
		if _, err := methods.GetCurrentTime(ctx, c); !fault.Is(err, &types.NotAuthenticated{}) {
			t.Errorf("idle SOAP session: %v", err)
		}
		if l := v.SessionList(); len(l) != 0 {
			t.Errorf("listed: %v", l)
		}
	})
}

func TestTooManySessions(t *testing.T) {
	cfg := withOther()
	cfg.MaxSessions = 2
	v := start(t, cfg)
	a := login(t, v)
	rc := rest.NewClient(a.Client)
	if err := rc.Login(t.Context(), v.URL().User); err != nil {
		t.Fatal(err)
	}
	if _, err := loginAs(t, v, otherUser, otherPassword); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable") {
		t.Errorf("a session too many: %v", err)
	}
	if err := rest.NewClient(a.Client).Login(t.Context(), v.URL().User); !rest.IsStatusError(err, http.StatusServiceUnavailable) {
		t.Errorf("a REST session too many: %v", err)
	}
	if _, err := methods.GetCurrentTime(t.Context(), a); err != nil {
		t.Errorf("who is in: %v", err)
	}
	if err := rc.Logout(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := loginAs(t, v, otherUser, otherPassword); err != nil {
		t.Errorf("after one has left: %v", err)
	}
}

func TestClonedAndImpersonatedSessions(t *testing.T) {
	v := start(t, withOther())
	ctx := t.Context()
	a := login(t, v)
	m := a.SessionManager
	ticket, err := m.AcquireCloneTicket(ctx)
	if err != nil {
		t.Fatal(err)
	}
	clone := func() (*vim25.Client, error) {
		u := v.URL()
		u.User = nil
		c, err := vim25.NewClient(ctx, soap.NewClient(u, true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.CloseIdleConnections)
		return c, session.NewManager(c).CloneSession(ctx, ticket)
	}
	c, err := clone()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clone(); !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("a ticket is good twice: %v", err)
	}
	cm := session.NewManager(c)
	s, err := cm.UserSession(ctx)
	if err != nil || s.UserName != `VSPHERE.LOCAL\administrator` {
		t.Fatalf("%+v, %v", s, err)
	}
	if ok, err := m.SessionIsActive(ctx); err != nil || !ok {
		t.Errorf("SessionIsActive: %v, %v", ok, err)
	}
	if err := cm.ImpersonateUser(ctx, otherUser); !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("impersonation of a user who is not logged in: %v", err)
	}
	if _, err := loginAs(t, v, otherUser, otherPassword); err != nil {
		t.Fatal(err)
	}
	if err := cm.ImpersonateUser(ctx, otherUser); err != nil {
		t.Fatal(err)
	}
	if s, err := cm.UserSession(ctx); err != nil || s.UserName != `VSPHERE.LOCAL\k8s` {
		t.Errorf("%+v, %v", s, err)
	}
	ticket, err = m.AcquireCloneTicket(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Logout(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := clone(); !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("a ticket outlives its session: %v", err)
	}
}

func TestTokens(t *testing.T) {
	v := start(t, withOther())
	ctx := t.Context()
	a := login(t, v)
	tokens, err := sts.NewClient(ctx, a.Client)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := tokens.Issue(ctx, sts.TokenRequest{Userinfo: url.UserPassword(otherUser, otherPassword), Lifetime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Until(signer.Lifetime.Expires); d > time.Minute || d < 30*time.Second {
		t.Errorf("expires in %v", d)
	}
	u := v.URL()
	u.User = nil
	c, err := vim25.NewClient(ctx, soap.NewClient(u, true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	m := session.NewManager(c)
	if err := m.LoginByToken(c.WithHeader(ctx, soap.Header{Security: signer})); err != nil {
		t.Fatal(err)
	}
	if s, err := m.UserSession(ctx); err != nil || s.UserName != `VSPHERE.LOCAL\k8s` {
		t.Errorf("%+v, %v", s, err)
	}
	rc := rest.NewClient(c)
	if err := rc.LoginByToken(rc.WithSigner(ctx, signer)); err != nil {
		t.Error(err)
	}
	forged := *signer
	forged.Token = strings.Replace(signer.Token, `ID="_`, `ID="_f`, 1)
	if err := rc.LoginByToken(rc.WithSigner(ctx, &forged)); !rest.IsStatusError(err, http.StatusUnauthorized) {
		t.Errorf("forged token at REST: %v", err)
	}
	if err := m.Logout(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.LoginByToken(c.WithHeader(ctx, soap.Header{Security: &forged})); !fault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("forged token: %v", err)
	}
	if err := v.LockAccount(otherUser); err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Issue(ctx, sts.TokenRequest{Userinfo: url.UserPassword(otherUser, otherPassword)}); err == nil || !strings.Contains(err.Error(), "locked") {
		t.Errorf("token of a locked account: %v", err)
	}
}

// Both forms of the REST session.
func TestRESTSessionForms(t *testing.T) {
	v := start(t, vcenter.Config{})
	do := func(method, path, id string, auth bool) (int, string, http.Header) {
		t.Helper()
		u := v.URL()
		user := u.User
		u.User, u.Path = nil, path
		u.Path, u.RawQuery, _ = strings.Cut(path, "?")
		r, err := http.NewRequestWithContext(t.Context(), method, u.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if auth {
			p, _ := user.Password()
			r.SetBasicAuth(user.Username(), p)
		}
		if id != "" {
			r.Header.Set("vmware-api-session-id", id)
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b), res.Header
	}
	code, body, h := do("POST", "/api/session", "", true)
	var id string
	if err := json.Unmarshal([]byte(body), &id); err != nil || code != http.StatusCreated || h.Get("vmware-api-session-id") != id {
		t.Errorf("/api/session: %d %s", code, body)
	}
	if code, body, _ := do("GET", "/api/session", id, false); code != http.StatusOK || !strings.Contains(body, `"user":"VSPHERE.LOCAL\\administrator"`) {
		t.Errorf("look: %d %s", code, body)
	}
	if code, _, _ := do("DELETE", "/api/session", id, false); code != http.StatusNoContent {
		t.Errorf("delete: %d", code)
	}
	for path, want := range map[string]string{"/api/session": `"error_type":"UNAUTHENTICATED"`, "/rest/com/vmware/cis/session?~action=get": `"type":"com.vmware.vapi.std.errors.unauthenticated"`} {
		method := "GET"
		if strings.Contains(path, "~action") {
			method = "POST"
		}
		if code, body, _ := do(method, path, id, false); code != http.StatusUnauthorized || !strings.Contains(body, want) {
			t.Errorf("%s after it: %d %s", path, code, body)
		}
	}
	if code, body, _ := do("POST", "/rest/com/vmware/cis/session", "", true); code != http.StatusOK || !strings.HasPrefix(body, `{"value":"`) {
		t.Errorf("/rest: %d %s", code, body)
	}
	if code, _, _ := do("POST", "/rest/com/vmware/cis/session", "", false); code != http.StatusUnauthorized {
		t.Errorf("without a password: %d", code)
	}
}
