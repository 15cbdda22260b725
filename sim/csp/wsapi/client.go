// Package wsapi is a client of the REST API (WSAPI, version 1) of an HPE
// Primera, Alletra 9000 or 3PAR: what the Container Storage Provider says to an
// array. It behaves as the known clients do: it logs in again, once, when its
// session is gone, waits and comes again when the array is busy or the
// connection breaks, and reads the LUN of an export from the Location header.
package wsapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/csilab/csilab/driver/broken"
	"github.com/csilab/csilab/sim/fault"
)

// sessionHeader has the key of a session, spelled as HPE's python client does.
const sessionHeader = "X-Hp3Par-Wsapi-Sessionkey"

// maxAnswer bounds what is read of an answer: a list of 65536 volumes has some
// 80 MiB.
const maxAnswer = 128 << 20

// Dialer reaches an array.
type Dialer interface {
	DialContext(ctx context.Context, network, address string) (net.Conn, error)
}

// Config of a client. URL, User and Password are needed.
type Config struct {
	// URL of the array without /api/v1; https is not verified, as arrays have
	// certificates that they signed themselves.
	URL            string
	User, Password string
	// Agent is the User-Agent; empty means csilab/csp.
	Agent string
	// Dial reaches the array; nil means this machine's network.
	Dial Dialer
	// Sessions is how many sessions the client has at most: the array takes one
	// request of a session after the other. 0 means 4. Arrays have 24 and more
	// for all clients.
	Sessions int
	// Timeout bounds a request; 0 means a minute. Unverified: the real provider's.
	// One that took too long is not tried again.
	Timeout time.Duration
	// Backoff is how long to wait before each further try when the array is
	// busy (503) or the connection breaks; nil means 1, 3, 7 and 15 s, as HPE's
	// python client waits. Empty: no further try.
	Backoff []time.Duration
}

// Client of an array. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
	tr   *http.Transport

	turns chan struct{} // one token for each session that may be
	mu    sync.Mutex
	keys  []string // of sessions that nobody uses just now; the last one is the freshest
}

// New returns a client; it says nothing to the array yet.
func New(cfg Config) *Client {
	if cfg.Sessions <= 0 {
		cfg.Sessions = 4
	}
	if cfg.Backoff == nil {
		cfg.Backoff = []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = time.Minute
	}
	if cfg.Dial == nil {
		cfg.Dial = &net.Dialer{}
	}
	if cfg.Agent == "" {
		cfg.Agent = "csilab/csp"
	}
	tr := &http.Transport{
		DialContext:         cfg.Dial.DialContext,
		MaxIdleConnsPerHost: cfg.Sessions,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // self-signed, see Config.URL
		DisableCompression:  true,
	}
	c := &Client{cfg: cfg, tr: tr, turns: make(chan struct{}, cfg.Sessions),
		http: &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	for range cfg.Sessions {
		c.turns <- struct{}{}
	}
	return c
}

// Close logs out of all sessions that are free, and closes connections. Calls
// under way should have ended.
func (c *Client) Close(ctx context.Context) {
	c.mu.Lock()
	keys := c.keys
	c.keys = nil
	c.mu.Unlock()
	for _, k := range keys {
		if _, err := c.send(ctx, http.MethodDelete, "/credentials/"+url.PathEscape(k), k, nil); err != nil {
			break // the array will let them idle out
		}
	}
	c.tr.CloseIdleConnections()
}

// Login checks user and password with the array. The session is kept for the
// calls to come. Errors: *Error (403 with code 5, 503 where the array has no
// session left).
func (c *Client) Login(ctx context.Context) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	key := c.take()
	var fresh string
	err := c.again(ctx, worthwhile, func() (err error) { fresh, err = c.login(ctx); return err })
	if err == nil && key != "" { // there is one already: one is enough
		_, _ = c.send(ctx, http.MethodDelete, "/credentials/"+url.PathEscape(key), key, nil)
	}
	if err != nil {
		fresh = key
	}
	c.leave(fresh)
	return err
}

func (c *Client) enter(ctx context.Context) error {
	select {
	case <-c.turns:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// take returns the key of a free session, or "" where there is none.
func (c *Client) take() (key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.keys); n > 0 {
		key, c.keys = c.keys[n-1], c.keys[:n-1]
	}
	return key
}

// leave gives a session back, or only the turn where its key is "".
func (c *Client) leave(key string) {
	if key != "" {
		c.mu.Lock()
		c.keys = append(c.keys, key)
		c.mu.Unlock()
	}
	c.turns <- struct{}{}
}

func (c *Client) login(ctx context.Context) (string, error) {
	body, err := json.Marshal(map[string]string{"user": c.cfg.User, "password": c.cfg.Password})
	if err != nil {
		return "", err
	}
	a, err := c.send(ctx, http.MethodPost, "/credentials", "", body)
	if err != nil {
		return "", err
	}
	var out struct{ Key string }
	if err := json.Unmarshal(a.body, &out); err != nil || out.Key == "" {
		return "", &Error{Status: a.status, Desc: "no session key in the answer to a login"}
	}
	return out.Key, nil
}

type answer struct {
	status   int
	location string
	body     []byte
}

// send sends a request once.
func (c *Client) send(ctx context.Context, method, path, key string, body []byte) (answer, error) {
	var r io.Reader
	if body != nil {
		r = bytes.NewReader(body)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, errTimeout)
	defer cancel()
	at := c.cfg.URL + "/api"
	if path != "" {
		at += "/v1" + path
	}
	req, err := http.NewRequestWithContext(ctx, method, at, r)
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.cfg.Agent)
	if seq := fault.CauseOf(ctx); seq != 0 {
		req.Header.Set(fault.TraceField, fault.Traceparent(seq))
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set(sessionHeader, key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		var u *url.Error // its text has the URL, which has the key at a logout
		if errors.As(err, &u) {
			err = u.Err
		}
		return answer{}, unreachable(ctx, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return answer{}, unreachable(ctx, err)
	}
	a := answer{res.StatusCode, res.Header.Get("Location"), b}
	if res.StatusCode >= 300 {
		return a, parseError(res.StatusCode, b)
	}
	return a, nil
}

// again calls f until it succeeds, fails for good, or all tries are used up.
func (c *Client) again(ctx context.Context, worthwhile func(error) bool, f func() error) error {
	for i := 0; ; i++ {
		err := f()
		if err == nil || i >= len(c.cfg.Backoff) || !worthwhile(err) || ctx.Err() != nil {
			return err
		}
		t := time.NewTimer(c.cfg.Backoff[i])
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
	}
}

// worthwhile says whether a request may succeed a little later: the array is
// busy (270), a gateway before it says 503, or the connection broke. A limit
// that is reached, which is a 503 too, stays.
func worthwhile(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Status == http.StatusServiceUnavailable && (e.Code == CodeBusy || e.Code == 0)
	}
	return errors.As(err, new(*Unreachable)) && !errors.Is(err, errTimeout)
}

// refusedForNow is worthwhile for a change that must not be made twice: a broken
// connection is told to who calls, who looks what there is.
func refusedForNow(err error) bool {
	return worthwhile(err) && !errors.As(err, new(*Unreachable))
}

// do sends a request in a session and decodes the answer into out, which may be
// nil. A broken connection leaves it open whether a change was made: who calls
// reads an object that is there already as its own.
func (c *Client) do(ctx context.Context, method, path string, in, out any) (location string, err error) {
	return c.exchange(ctx, worthwhile, method, path, in, out)
}

// exchange is do with a word in which failures are worth another try.
func (c *Client) exchange(ctx context.Context, worthwhile func(error) bool, method, path string, in, out any) (location string, err error) {
	var body []byte
	if in != nil {
		if body, err = json.Marshal(in); err != nil {
			return "", err
		}
	}
	if err := c.enter(ctx); err != nil {
		return "", err
	}
	key := c.take()
	defer func() { c.leave(key) }()
	relogged := false
	var a answer
	err = c.again(ctx, worthwhile, func() (err error) {
		if key == "" {
			if key, err = c.login(ctx); err != nil {
				return err
			}
		}
		a, err = c.send(ctx, method, path, key, body)
		if err == nil || !Lost(err) || relogged {
			return err
		}
		relogged = true
		if key, err = c.login(ctx); err != nil {
			key = ""
			return err
		}
		a, err = c.send(ctx, method, path, key, body)
		return err
	})
	if err != nil {
		if Lost(err) {
			key = ""
		}
		return "", err
	}
	if out != nil {
		if err := json.Unmarshal(a.body, out); err != nil {
			return "", &Error{Status: a.status, Desc: "the answer is not what it should be: " + err.Error()}
		}
	}
	return a.location, nil
}

func (c *Client) get(ctx context.Context, path string, out any) error {
	_, err := c.do(ctx, http.MethodGet, path, nil, out)
	return err
}

// members of a list.
type members[T any] struct {
	Total   int `json:"total"`
	Members []T `json:"members"`
}

func list[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var m members[T]
	if err := c.get(ctx, path, &m); err != nil {
		return nil, err
	}
	return m.Members, nil
}

// query is a filter as clients send it: in double quotes and escaped.
func query(filter string) string {
	return "?query=" + strings.ReplaceAll(url.QueryEscape(`"`+filter+`"`), "+", "%20")
}

func seg(name string) string { return url.PathEscape(name) }

var errTimeout = errors.New("it took too long")

func unreachable(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		err = c
	}
	return &Unreachable{Err: err}
}

// Unreachable is a request that got no answer.
type Unreachable struct{ Err error }

// Error does not tell the ways apart in which a connection to an array that is
// gone breaks: which one a request meets is by chance, and the text ends in
// events, which count what is equal.
func (u *Unreachable) Error() string {
	if broken.Connection(u.Err) {
		return "the array does not answer: " + broken.Text
	}
	return fmt.Sprintf("the array does not answer: %v", u.Err)
}

// Unwrap gives what broke.
func (u *Unreachable) Unwrap() error { return u.Err }
