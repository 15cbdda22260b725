package vsphere

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/pbm"
	vimsession "github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/trace"
)

// session is one login and everything that lives and dies with it. It is
// replaced as a whole, so that no client, view or collector of a dead session
// stays in use.
type session struct {
	vim   *vim25.Client
	cns   *soap.Client // /vsanHealth
	tasks *soap.Client // /sdk, decodes the results of CNS tasks
	user  *url.Userinfo

	mu         sync.Mutex
	collectors []types.ManagedObjectReference // idle, for task waits
	centers    []datacenter
	policies   *pbm.Client
	vapi       *restClient
	zones      *zoneTable
}

// loginAttempt is a login under way; done closes when s or err is set.
type loginAttempt struct {
	done chan struct{}
	s    *session
	err  error
}

// session returns the current session, or waits for a login. Only one login
// runs at a time; it doesn't end with the call that asked for it.
func (b *Backend) session(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if s := b.current; s != nil {
		b.mu.Unlock()
		return s, nil
	}
	if b.closed || b.life.Err() != nil {
		b.mu.Unlock()
		return nil, controller.Errorf(controller.Unavailable, "the driver is stopping")
	}
	a := b.pending
	if a == nil {
		if now := time.Now(); now.Before(b.notUntil) {
			err := controller.Errorf(controller.Unavailable, "vCenter %s: login refused, next attempt in %s: %w",
				b.config.VCenter.Host, b.notUntil.Sub(now).Round(time.Second), b.lastErr)
			b.mu.Unlock()
			return nil, err
		}
		a = &loginAttempt{done: make(chan struct{})}
		b.pending = a
		c := b.config
		parent := trace.Parent(ctx)
		b.wg.Go(func() { b.login(a, c, parent) })
	}
	b.mu.Unlock()
	select {
	case <-a.done:
		return a.s, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// login logs in; parent is the trace context of the call that asked first.
func (b *Backend) login(a *loginAttempt, c Config, parent string) {
	ctx, cancel := context.WithTimeout(trace.With(b.life, parent), 2*b.opt.CallTimeout)
	defer cancel()
	a.s, a.err = b.open(ctx, c)
	b.mu.Lock()
	adopted := b.adopted
	b.mu.Unlock()
	if a.err == nil && !adopted {
		// Before the session serves anyone: an operation must not begin while
		// a task of an earlier process on its subject is unknown.
		if a.err = b.adopt(ctx, a.s); a.err != nil {
			// The session is there, and would stay until it idles out.
			b.leave(a.s)
			a.s = nil
		} else {
			adopted = true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.adopted = adopted
	defer close(a.done)
	if b.pending != a {
		// The configuration changed meanwhile: whoever waited tries again.
		if a.s != nil {
			s := a.s
			a.s, a.err = nil, controller.Errorf(controller.Unavailable, "vCenter %s: the configuration changed during login", c.VCenter.Host)
			b.leave(s)
		}
		return
	}
	b.pending = nil
	b.lastErr = a.err
	if a.err != nil {
		b.log.Warn("login failed", "vcenter", c.VCenter.Host, "error", a.err)
		if faultName(a.err) == "InvalidLogin" {
			if b.pause = 2 * b.pause; b.pause == 0 {
				b.pause = b.opt.LoginBackoff
			}
			b.pause = min(b.pause, 3*time.Minute)
			b.notUntil = time.Now().Add(b.pause)
		}
		a.err = controller.Errorf(controller.Unavailable, "vCenter %s: login: %w", c.VCenter.Host, a.err)
		return
	}
	b.current, b.ever, b.pause = a.s, true, 0
	b.log.Info("logged in", "vcenter", c.VCenter.Host, "version", a.s.vim.ServiceContent.About.Version)
}

// leave logs out of a session that nobody is to use, beside what goes on.
func (b *Backend) leave(s *session) {
	b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(b.life, b.opt.CallTimeout)
		defer cancel()
		if err := s.logout(ctx); err != nil {
			b.log.Info("logout of a session that is not used", "error", err)
		}
	})
}

// drop forgets a session that turned out dead. Its last calls end by
// themselves; the connections that they leave are closed with the next drop.
func (b *Backend) drop(s *session) {
	b.mu.Lock()
	var old *session
	if b.current == s {
		b.current = nil
		old, b.retired = b.retired, s
	}
	b.mu.Unlock()
	s.vim.CloseIdleConnections()
	if old != nil {
		old.vim.CloseIdleConnections()
	}
}

func (b *Backend) open(ctx context.Context, c Config) (*session, error) {
	v := c.VCenter
	scheme := v.Scheme
	if scheme == "" {
		scheme = "https"
	}
	sc := soap.NewClient(&url.URL{Scheme: scheme, Host: v.address(), Path: vim25.Path}, v.Insecure)
	sc.UserAgent = "csi-vsphere"
	if err := b.secure(sc.DefaultTransport(), v); err != nil {
		return nil, err
	}
	traced(sc)
	vc, err := vim25.NewClient(ctx, sc)
	if err != nil {
		sc.CloseIdleConnections()
		return nil, wire(err)
	}
	user := url.UserPassword(v.User, v.Password)
	if err := vimsession.NewManager(vc).Login(ctx, user); err != nil {
		sc.CloseIdleConnections()
		return nil, wire(err)
	}
	// Made after the login: a service client copies the session's cookie.
	cc := traced(sc.NewServiceClient(cns.Path, cns.Namespace))
	if cc.Version, err = serviceVersion(ctx, cc); err != nil {
		b.log.Info("vSAN API version", "error", err, "taken", vc.ServiceContent.About.ApiVersion)
		cc.Version = vc.ServiceContent.About.ApiVersion
	}
	tc := traced(cc.NewServiceClient(vim25.Path, cns.Namespace))
	tc.Version = cc.Version
	return &session{vim: vc, cns: cc, tasks: tc, user: user}, nil
}

// traced makes a client's requests carry the trace context of the call that they
// are made for. Each service client begins with the plain transport.
func traced(c *soap.Client) *soap.Client {
	c.Transport = trace.Transport(c.Transport)
	return c
}

// serviceVersion reads what the endpoint calls its newest version. A vCenter
// without the file isn't fatal.
func serviceVersion(ctx context.Context, c *soap.Client) (string, error) {
	u := c.URL()
	u.Path = vim25.Path + "/" + cns.Namespace + "ServiceVersions.xml"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", err
	}
	var v struct {
		Version string `xml:"namespace>version"`
	}
	err = c.Do(ctx, req, func(res *http.Response) error {
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", u.Path, res.Status)
		}
		return xml.NewDecoder(res.Body).Decode(&v)
	})
	if err == nil && v.Version == "" {
		err = fmt.Errorf("%s: no version", u.Path)
	}
	return v.Version, err
}

// secure sets dialer and trust. govmomi's own TLS dialer takes neither a
// context nor another dialer.
func (b *Backend) secure(t *http.Transport, v VCenter) error {
	dial := b.opt.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	} else {
		t.Proxy = nil
	}
	t.DialContext = dial
	conf := &tls.Config{ServerName: strings.Trim(v.Host, "[]"), InsecureSkipVerify: v.Insecure, MinVersion: tls.VersionTLS12}
	if v.CAFile != "" {
		pem, err := os.ReadFile(v.CAFile)
		if err != nil {
			return fmt.Errorf("ca-file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("ca-file %s: no certificate in it", v.CAFile)
		}
	}
	if v.Thumbprint != "" && !v.Insecure {
		// The thumbprint stands in for a chain of trust: nothing else is checked.
		conf.InsecureSkipVerify = true
		conf.VerifyConnection = func(cs tls.ConnectionState) error {
			for _, sum := range thumbprints(cs.PeerCertificates[0]) {
				if sum == v.Thumbprint {
					return nil
				}
			}
			return fmt.Errorf("certificate of %s doesn't have the configured thumbprint", v.Host)
		}
	}
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tc := tls.Client(c, conf)
		if err := tc.HandshakeContext(ctx); err != nil {
			c.Close()
			return nil, err
		}
		return tc, nil
	}
	return nil
}

func thumbprints(c *x509.Certificate) [2]string {
	form := func(sum []byte) string { return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":") }
	s1, s256 := sha1.Sum(c.Raw), sha256.Sum256(c.Raw)
	return [2]string{form(s1[:]), form(s256[:])}
}

// logout ends the session on the server and closes its connections.
func (s *session) logout(ctx context.Context) error {
	defer s.vim.CloseIdleConnections()
	s.mu.Lock()
	vapi := s.vapi
	s.mu.Unlock()
	var errs []error
	if vapi != nil {
		errs = append(errs, vapi.Logout(ctx))
	}
	errs = append(errs, vimsession.NewManager(s.vim).Logout(ctx))
	for i, err := range errs {
		if errors.Is(err, context.Canceled) || faultName(wire(err)) == "NotAuthenticated" {
			errs[i] = nil
		}
	}
	return errors.Join(errs...)
}
