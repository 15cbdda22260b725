// Package csp is a client of the Container Storage Provider's REST API
// (/containers/v1), as a CSI driver is one.
//
// A Client belongs to one Account. It logs in when it must: before the first
// call, when a call is answered 401 (once per call), and when the password that
// a call brings is another than the last. A call that had no reply is sent
// again where doing it twice does no harm; its body is kept for that. What is
// known of a failed call is in its Error.
package csp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/apart"
)

// Config of a Client. Zero values are what the comments say.
type Config struct {
	Account Account
	// Transport sends requests; nil is http.DefaultTransport.
	Transport http.RoundTripper
	// Timeout bounds one attempt. 0 means 60 s, 360 s for a slow provider, as
	// upstream's client has it.
	Timeout time.Duration
	// Retries is how often an attempt without a reply is followed by another. 0
	// means 3, negative none.
	Retries int
	// Pause before the first of these; it doubles. 0 means 250 ms.
	Pause time.Duration
}

// Client speaks to one provider with one account. It is safe for concurrent
// use.
type Client struct {
	cfg  Config
	http *http.Client

	// login is held by who reads or makes the session; a channel, so that
	// waiting for it ends with the caller's context.
	login    chan struct{}
	token    string
	password string // that the token was got with
}

// New returns a client. It makes no call.
func New(cfg Config) *Client {
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
		if cfg.Account.Slow {
			cfg.Timeout = 6 * time.Minute
		}
	}
	switch {
	case cfg.Retries == 0:
		cfg.Retries = 3
	case cfg.Retries < 0:
		cfg.Retries = 0
	}
	if cfg.Pause == 0 {
		cfg.Pause = 250 * time.Millisecond
	}
	c := &Client{cfg: cfg, login: make(chan struct{}, 1)}
	// A provider doesn't redirect; what does is something else, which is not to
	// get the token.
	c.http = &http.Client{Transport: cfg.Transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c
}

// Account returns whose client it is.
func (c *Client) Account() Account { return c.cfg.Account }

// As returns the client with a password for the logins that it may need.
func (c *Client) As(password string) *Session { return &Session{c: c, password: password} }

// Session is a client with a password.
type Session struct {
	c        *Client
	password string
}

// call is one request.
type call struct {
	method, path string
	query        url.Values
	body         any
	// repeat: sending it twice does what sending it once does.
	repeat bool
}

func (c call) op() string { return c.method + " " + c.path }

func (c call) changes() bool { return c.method != http.MethodGet }

// do makes a call and decodes the reply's body into out, unless that is nil.
func (s *Session) do(ctx context.Context, q call, out any) error {
	var body []byte
	if q.body != nil {
		var err error
		if body, err = json.Marshal(q.body); err != nil {
			return &Error{Op: q.op(), Err: err}
		}
	}
	unknown, renewed := false, false
	for retries := 0; ; {
		token, err := s.token(ctx)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			if !ok {
				e = &Error{Err: err}
			}
			e.Op, e.Login, e.Unknown = q.op(), true, unknown
			return e
		}
		status, reply, err := s.c.send(ctx, q, token, body)
		switch {
		case err != nil:
			sent := !unsent(err)
			unknown = unknown || sent && q.changes()
			if sent && !q.repeat || retries >= s.c.cfg.Retries || ctx.Err() != nil {
				return &Error{Op: q.op(), Unknown: unknown, Err: err}
			}
			if err := pause(ctx, s.c.cfg.Pause<<retries+apart.By(q.op())); err != nil {
				return &Error{Op: q.op(), Unknown: unknown, Err: err}
			}
			retries++
		case status == http.StatusUnauthorized && !renewed:
			renewed = true
			s.forget(ctx, token)
		case status < 200 || status > 299:
			e := &Error{Op: q.op(), Status: status, Unknown: unknown || status >= 500 && q.changes()}
			e.Code, e.Message = s.explain(reply)
			return e
		case out == nil:
			return nil
		default:
			if err := json.Unmarshal(reply, out); err != nil {
				return &Error{Op: q.op(), Status: status, Unknown: q.changes(), Err: fmt.Errorf("the reply can't be read: %w", err)}
			}
			return nil
		}
	}
}

// explain reads a refusal, without the password, should it quote that.
func (s *Session) explain(reply []byte) (code, message string) {
	code, message = explain(reply)
	if len(s.password) > 3 {
		message = strings.ReplaceAll(message, s.password, "***")
	}
	return code, message
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unsent reports a failure to connect: the request never left.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	if ok && op.Op == "dial" {
		return true
	}
	return errors.Is(err, errDial)
}

var errDial = errors.New("csp: no connection")

// Transport returns an HTTP transport over a dialer, with a connection per
// request as the provider's known client has it: a connection that is kept may
// be closed by the other side just when a request goes out, and then nobody
// knows whether it was done.
func Transport(dial func(ctx context.Context, network, addr string) (net.Conn, error)) *http.Transport {
	t := &http.Transport{DisableKeepAlives: true, ForceAttemptHTTP2: false}
	if dial != nil {
		t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, fmt.Errorf("%w: %w", errDial, err)
			}
			return c, nil
		}
	}
	return t
}

// Bodies are bounded: a list of 100,000 volumes has about 50 MB.
const maxBody = 256 << 20

// send makes one attempt.
func (c *Client) send(ctx context.Context, q call, token string, body []byte) (status int, reply []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	u := c.cfg.Account.URL + q.path
	if len(q.query) > 0 {
		u += "?" + q.query.Encode()
	}
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, q.method, u, r)
	if err != nil {
		return 0, nil, fmt.Errorf("%w: %w", errDial, err)
	}
	req.GetBody = nil // repeating is do's business
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("x-auth-token", token)
	}
	if c.cfg.Account.Header {
		req.Header.Set("x-array-ip", c.cfg.Account.Backend)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, plain(err)
	}
	defer resp.Body.Close()
	reply, err = io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("the reply broke off: %w", err)
	case len(reply) > maxBody:
		return 0, nil, fmt.Errorf("the reply has more than %d bytes", maxBody)
	}
	return resp.StatusCode, reply, nil
}

// plain takes the URL out of an error of net/http: Op has it.
func plain(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// token returns the session's token, and logs in when there is none, or when
// it was got with another password: the Secret has changed.
func (s *Session) token(ctx context.Context) (string, error) {
	c := s.c
	select {
	case c.login <- struct{}{}:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	defer func() { <-c.login }()
	if c.token != "" && c.password == s.password {
		return c.token, nil
	}
	q := call{method: http.MethodPost, path: "/tokens"}
	login := struct {
		User     string `json:"username"`
		Password string `json:"password"`
		Array    string `json:"array_ip"`
	}{c.cfg.Account.User, s.password, ""}
	if c.cfg.Account.Header {
		login.Array = c.cfg.Account.Backend
	}
	body, err := json.Marshal(login)
	if err != nil {
		return "", err
	}
	for retries := 0; ; retries++ {
		status, reply, err := c.send(ctx, q, "", body)
		var got struct {
			Token string `json:"session_token"`
		}
		switch {
		case err != nil && (retries >= c.cfg.Retries || ctx.Err() != nil):
			return "", &Error{Err: err}
		case err != nil:
			if err := pause(ctx, c.cfg.Pause<<retries); err != nil {
				return "", &Error{Err: err}
			}
			continue
		case status < 200 || status > 299:
			e := &Error{Status: status}
			e.Code, e.Message = s.explain(reply)
			return "", e
		}
		if err := json.Unmarshal(reply, &got); err != nil {
			return "", &Error{Status: status, Err: errors.New("the reply can't be read")} // its text might hold the token
		}
		if got.Token == "" {
			return "", &Error{Status: status, Err: errors.New("the reply has no session_token")}
		}
		c.token, c.password = got.Token, s.password
		return c.token, nil
	}
}

// forget drops a token that was refused, unless another call has renewed it.
func (s *Session) forget(ctx context.Context, token string) {
	select {
	case s.c.login <- struct{}{}:
	case <-ctx.Done():
		return
	}
	if s.c.token == token {
		s.c.token = ""
	}
	<-s.c.login
}

// Account returns whose session it is.
func (s *Session) Account() Account { return s.c.cfg.Account }
