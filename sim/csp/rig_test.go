package csp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/wsapi"
)

const (
	user     = "3paradm"
	password = "3pardata"
)

// arrayRig is an array with its own API.
type arrayRig struct {
	*array.Array
	mu  *sync.Mutex
	api *wsapi.Server
}

// rig is a provider over arrays, and a client that sends what the driver's
// client sends.
type rig struct {
	t      testing.TB
	net    *transport.Memory
	in     *fault.Interceptor
	cfg    csp.Config
	s      *csp.Server
	arrays []*arrayRig
	http   *http.Client
	token  string
	on     string // x-array-ip
	faulty bool   // answers need not be by the contract: a rule makes them
	// restart starts the provider anew where it has died, and says whether.
	restart func() bool
	close   func()
}

type option func(*setup)

type setup struct {
	files  string // address of the arrays' file service
	arrays []array.Config
	linked bool
	csp    csp.Config
	now    func() time.Time
	wall   bool
}

func withArray(f func(*array.Config)) option { return func(s *setup) { f(&s.arrays[0]) } }
func withCSP(f func(*csp.Config)) option     { return func(s *setup) { f(&s.csp) } }

// withFiles gives the arrays a file service.
func withFiles(s *setup) { s.files = "192.0.2.200" }

// pair is two arrays that are linked for remote copy.
func pair(s *setup) {
	s.arrays = append(s.arrays, array.Config{Name: "array2", Seed: 2})
	s.linked = true
}

func newRig(t testing.TB, opts ...option) *rig {
	t.Helper()
	set := setup{arrays: []array.Config{{Name: "array1", Seed: 1}}, now: time.Now}
	for _, o := range opts {
		o(&set)
	}
	r := &rig{t: t, net: transport.NewMemory(), on: "array1"}
	r.in = &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{Seed: 1}}
	lock := new(sync.Mutex)
	for i, ac := range set.arrays {
		ac.Users = []array.User{{Name: user, Password: password, Role: array.Super}, {Name: "look", Password: "look1", Role: array.Browse}}
		a, err := array.New(ac)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []string{"cpg1", "cpg2"} {
			if _, err := a.CreateCPG(set.now(), array.CPGSpec{Name: n}); err != nil {
				t.Fatal(err)
			}
		}
		r.arrays = append(r.arrays, &arrayRig{Array: a, mu: lock})
		if i == 1 && set.linked {
			if err := array.Link(r.arrays[0].Array, a); err != nil {
				t.Fatal(err)
			}
		}
		c := wsapi.Config{Array: a, Lock: lock, In: r.in, Now: set.now}
		if !set.wall {
			if c.Listener, err = r.net.Listen("tcp", ac.Name+":443"); err != nil {
				t.Fatal(err)
			}
		}
		if r.arrays[i].api, err = wsapi.New(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		set.csp.Arrays = append(set.csp.Arrays, csp.Array{Name: ac.Name, Backends: []string{"10.0.0." + fmt.Sprint(i+1)}, URL: r.arrays[i].api.URL(), FileService: set.files})
	}
	set.csp.In, set.csp.Now = r.in, set.now
	if set.csp.Backoff == nil {
		set.csp.Backoff = []time.Duration{}
	}
	if !set.wall {
		set.csp.Dial = r.net
	}
	r.cfg = set.csp
	r.start()
	dial := net.Dialer{}
	tr := &http.Transport{DialContext: dial.DialContext, MaxIdleConnsPerHost: 16}
	if !set.wall {
		tr.DialContext = r.net.DialContext
	}
	r.http = &http.Client{Transport: tr}
	r.close = sync.OnceFunc(func() {
		r.s.Close()
		tr.CloseIdleConnections()
		for _, a := range r.arrays {
			a.api.Close()
		}
	})
	t.Cleanup(r.close)
	return r
}

// start starts the provider, or starts it anew: only the arrays know what was.
func (r *rig) start() {
	r.t.Helper()
	if r.s != nil {
		r.s.Kill()
		r.http.CloseIdleConnections()
	}
	cfg := r.cfg
	var err error
	if cfg.Dial != nil {
		if cfg.Listener, err = r.net.Listen("tcp", "csp:8080"); err != nil {
			r.t.Fatal(err)
		}
	}
	if r.s, err = csp.New(context.Background(), cfg); err != nil {
		r.t.Fatal(err)
	}
}

// raw sends a request as it is, with the headers of the driver's client.
func (r *rig) raw(method, path, body string) (int, string, error) {
	if r.restart != nil {
		defer r.restart()
	}
	req, err := http.NewRequest(method, r.s.URL()+"/containers/v1"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	if r.token != "" {
		req.Header.Set("x-auth-token", r.token)
	}
	if r.on != "" {
		req.Header.Set("x-array-ip", r.on)
	}
	res, err := r.http.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && !r.faulty {
		keeps(r.t, method, path, body, res.StatusCode, res.Header.Get("Content-Type"), string(b))
	}
	return res.StatusCode, string(b), err
}

func (r *rig) login() {
	r.t.Helper()
	code, body, err := r.raw("POST", "/tokens", fmt.Sprintf(`{"username":%q,"password":%q,"array_ip":%q}`, user, password, r.on))
	var out struct {
		Token string `json:"session_token"`
	}
	if err != nil || code != 200 || json.Unmarshal([]byte(body), &out) != nil || out.Token == "" {
		r.t.Fatalf("login: %d %s %v", code, body, err)
	}
	r.token = out.Token
}

// do sends a request and checks the status.
func (r *rig) do(status int, method, path, body string) map[string]any {
	r.t.Helper()
	b := r.text(status, method, path, body)
	out := map[string]any{}
	if strings.HasPrefix(b, "{") {
		if err := json.Unmarshal([]byte(b), &out); err != nil {
			r.t.Fatalf("%s %s: %v in %q", method, path, err, b)
		}
	}
	return out
}

func (r *rig) text(status int, method, path, body string) string {
	r.t.Helper()
	if r.token == "" {
		r.login()
	}
	code, b, err := r.raw(method, path, body)
	if err != nil || code != status {
		r.t.Fatalf("%s %s %s: %d %s %v, want %d", method, path, body, code, b, err, status)
	}
	return b
}

// all sends a request that is answered with a list.
func (r *rig) all(path string) (out []map[string]any) {
	r.t.Helper()
	b := r.text(200, "GET", path, "")
	if err := json.Unmarshal([]byte(b), &out); err != nil {
		r.t.Fatalf("GET %s: %v in %q", path, err, b)
	}
	return out
}

// refused sends a request and checks status and text of the refusal.
func (r *rig) refused(status int, text, method, path, body string) {
	r.t.Helper()
	b := r.text(status, method, path, body)
	var out struct {
		Errors []struct{ Code, Message string }
	}
	if err := json.Unmarshal([]byte(b), &out); err != nil || len(out.Errors) != 1 || out.Errors[0].Code != http.StatusText(status) || !strings.Contains(out.Errors[0].Message, text) {
		r.t.Fatalf("%s %s %s: %s, want %q", method, path, body, b, text)
	}
}

// with is the array's core under its lock.
func (a *arrayRig) with(f func(*array.Array)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a.Array)
}

func (a *arrayRig) vluns(volume string) (out []array.VLUN) {
	a.with(func(a *array.Array) { out = a.VLUNsOf(volume) })
	return out
}

func (a *arrayRig) volumes() (out []array.Volume) {
	a.with(func(a *array.Array) { out = a.Volumes() })
	return out
}

func (r *rig) count(hop ledger.Hop, ops ...string) int {
	return len(r.in.Ledger.Entries(ledger.OnHop(hop, ops...)))
}

// claims resolves one PVC.
func claims(_ context.Context, namespace, claim string) (string, bool) {
	return pvc, namespace == "ns" && claim == "data"
}
