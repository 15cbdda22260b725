package csp_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, pair, withCSP(func(c *csp.Config) { c.TokenLife = time.Hour }))
		defer r.close()
		for _, x := range []struct {
			status     int
			text, body string
		}{
			{400, "body", ``},
			{400, "no JSON", `{"username":`},
			{400, "username", `{"username":7}`},
			{400, "username", `{"password":"x","array_ip":"array1"}`},
			{400, "password", `{"username":"x","array_ip":"array1"}`},
			{401, "code 5", `{"username":"3paradm","password":"wrong","array_ip":"array1"}`},
			{500, "cannot be reached", `{"username":"3paradm","password":"3pardata","array_ip":"10.9.9.9"}`},
		} {
			code, b, err := r.raw("POST", "/tokens", x.body)
			if err != nil || code != x.status || !strings.Contains(b, x.text) {
				t.Errorf("%s: %d %s %v, want %d %s", x.body, code, b, err, x.status, x.text)
			}
		}
		for _, on := range []string{"array1", "10.0.0.1", "10.0.0.1:443", "ARRAY1:8080"} {
			r.on, r.token = on, ""
			r.do(200, "GET", "/hosts", "")
		}
		r.refused(404, "no such token", "DELETE", "/tokens/x", "")
		good := r.token
		r.on = "array2"
		r.refused(401, "not for array array2", "GET", "/hosts", "")
		r.on = ""
		r.do(200, "GET", "/hosts", "") // the header may be absent
		r.token = "wrong"
		r.refused(401, "invalid or expired", "GET", "/hosts", "")
		r.token = good
		time.Sleep(time.Hour - time.Second)
		r.do(200, "GET", "/hosts", "")
		time.Sleep(time.Second)
		r.refused(401, "invalid or expired", "GET", "/hosts", "")
		r.on, r.token = "array1", ""
		out := r.do(200, "POST", "/tokens", `{"username":"3paradm","password":"3pardata","array_ip":""}`)
		if out["expiry_time"].(float64)-out["creation_time"].(float64) != 3600 {
			t.Errorf("token is %v", out)
		}
		r.token = out["session_token"].(string)
		r.do(200, "GET", "/hosts", "")
		r.start() // which forgets them
		r.refused(401, "invalid or expired", "GET", "/hosts", "")
		r.token = ""
		r.login()
		out = r.do(200, "POST", "/tokens", `{"username":"3paradm","password":"3pardata","array_ip":"array1"}`)
		r.do(204, "DELETE", "/tokens/"+out["id"].(string), "")
	})
}

// One session of a user is enough for one call after the other, and four for
// whatever comes at once: an array has few.
func TestSessionsWithTheArrayAreFew(t *testing.T) {
	r := newRig(t)
	for range 30 { // each token is a login
		r.token = ""
		r.login()
	}
	sessions := func() (n int) {
		r.arrays[0].with(func(a *array.Array) { n = len(a.Sessions()) })
		return n
	}
	if n := sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
	r.s.Close()
	if n := sessions(); n != 0 {
		t.Errorf("%d sessions stay", n)
	}
}

func (a *arrayRig) endSessions() {
	a.with(func(a *array.Array) {
		for _, s := range a.Sessions() {
			_ = a.CloseSession(s.Key)
		}
	})
}

func TestSessionThatIsGoneIsMadeAnewOnce(t *testing.T) {
	r := newRig(t)
	r.volume(pvc, `{"cpg":"cpg1"}`)
	r.arrays[0].endSessions()
	r.do(200, "GET", "/volumes/"+pvc, "")
	if n := r.count(ledger.WSAPI, "POST /credentials"); n != 2 {
		t.Errorf("%d logins", n)
	}
	// One that goes at once again is the client's to know: 401, and no more logins.
	rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "GET /volumes/{name}", Do: fault.Error(&array.Error{Kind: array.SessionKey})})
	r.refused(401, "code 6", "GET", "/volumes/"+pvc, "")
	if n := r.count(ledger.WSAPI, "POST /credentials"); n != 3 || rule.Fired() != 2 {
		t.Errorf("%d logins, %d calls", n, rule.Fired())
	}
	r.in.Plan.Disarm(rule)
	r.do(200, "GET", "/volumes/"+pvc, "")
	if n := r.count(ledger.WSAPI, "POST /credentials"); n != 4 {
		t.Errorf("%d logins", n)
	}
	// The password was changed meanwhile.
	r.arrays[0].endSessions()
	r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "POST /credentials", Do: fault.Error(&array.Error{Kind: array.UserOrPassword})})
	r.refused(401, "code 5", "GET", "/volumes/"+pvc, "")
}

func TestBusyArrayIsAskedAgainAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, withCSP(func(c *csp.Config) {
			c.Backoff = []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 15 * time.Second}
		}))
		defer r.close()
		r.login()
		for _, x := range []struct {
			times, status int
			waited        time.Duration
		}{{0, 200, 0}, {1, 200, time.Second}, {3, 200, 11 * time.Second}, {4, 200, 26 * time.Second}, {5, 500, 26 * time.Second}} {
			rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "GET /hosts", First: x.times, Do: fault.Error(&array.Error{Kind: array.TooBusy}), MayNotFire: true})
			if x.times == 0 {
				r.in.Plan.Disarm(rule)
			}
			start := time.Now()
			code, b, err := r.raw("GET", "/hosts", "")
			if d := time.Since(start); err != nil || code != x.status || d != x.waited {
				t.Errorf("busy %d times: %d %s %v after %s", x.times, code, b, err, d)
			}
			if x.status == 500 && !strings.Contains(b, "code 270: System is too busy") {
				t.Errorf("text is %s", b)
			}
			r.in.Plan.Disarm(rule)
		}
		// A limit is a 503 as well, and stays one.
		r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "POST /volumes", Do: fault.Error(&array.Error{Kind: array.VolumeLimit, Reason: "too many"})})
		start := time.Now()
		r.refused(500, "too many", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"cpg":"cpg1"}}`)
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %s", d)
		}
	})
}

// A client that does not wait for the end finds what was done later.
func TestWhatAClientLeftIsDone(t *testing.T) {
	r := newRig(t)
	r.login()
	gate := fault.NewGate()
	r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "POST /volumes", Do: gate})
	r.http.Timeout = 20 * time.Millisecond
	if _, _, err := r.raw("POST", "/volumes", `{"name":"v","size":1073741824,"config":{"cpg":"cpg1"}}`); err == nil {
		t.Fatal("there was an answer")
	}
	gate.Release()
	r.http.Timeout = 0
	r.do(200, "GET", "/volumes?name=v", "") // which waits for the one that makes it
}

func TestCloseEndsWhatWaits(t *testing.T) {
	r := newRig(t)
	r.login()
	gate := fault.NewGate()
	r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "GET /hosts", Do: gate})
	done := make(chan error)
	go func() {
		_, _, err := r.raw("GET", "/hosts", "")
		done <- err
	}()
	if _, err := gate.Reached(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.s.Close()
	if err := <-done; err == nil {
		t.Error("there was an answer")
	}
}

func TestFaultsOfTheProvider(t *testing.T) {
	r := newRig(t)
	r.faulty = true
	r.volume(pvc, `{"cpg":"cpg1"}`)
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	const op = "PUT /volumes/{id}/actions/publish"
	publish := `{"host_uuid":"` + uuid + `","access_protocol":"iscsi"}`
	for _, x := range []struct {
		name  string
		fault *csp.Fault
		phase fault.Phase
		code  int
		body  string
	}{
		{"throttled", &csp.Fault{Status: 429, Message: "slow down"}, fault.Before, 429, `{"errors":[{"code":"Too Many Requests","message":"slow down"}]}`},
		{"empty", &csp.Fault{Status: 401, Body: csp.EmptyBody}, fault.Before, 401, ``},
		{"html", &csp.Fault{Status: 500, Body: csp.HTMLBody}, fault.After, 500, "<html>"},
		{"truncated", &csp.Fault{Status: 500, Message: "m", Body: csp.TruncatedBody}, fault.Before, 500, `{"errors":[{"code":"Interna`},
		{"no LUN", &csp.Fault{Edit: func(m map[string]any) { m["lun_id"] = -1 }}, fault.After, 200, `"lun_id":-1`},
		{"LUN of another type", &csp.Fault{Edit: func(m map[string]any) { m["lun_id"] = "0" }}, fault.After, 200, `"lun_id":"0"`},
		{"no status", &csp.Fault{}, fault.Before, 500, `"Internal Server Error"`},
	} {
		rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: op, Volume: pvc, Node: "node-1", Phase: x.phase, Do: fault.Error(x.fault)})
		code, b, err := r.raw("PUT", "/volumes/"+pvc+"/actions/publish", publish)
		if err != nil || code != x.code || !strings.Contains(b, x.body) || x.body == "" && b != "" {
			t.Errorf("%s: %d %s %v", x.name, code, b, err)
		}
		r.in.Plan.Disarm(rule)
	}
	r.in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: "GET /volumes", Nth: 1, Do: fault.Error(&csp.Fault{Status: 200, Body: csp.ListBody})})
	r.in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: "GET /volumes", Nth: 1, Phase: fault.After,
		Do: fault.Error(&csp.Fault{Edit: func(m map[string]any) { m["published"] = "no" }})})
	if b := r.text(200, "GET", "/volumes?name="+pvc, ""); b != "[]" {
		t.Errorf("list is %s", b)
	}
	if b := r.text(200, "GET", "/volumes?name="+pvc, ""); !strings.Contains(b, `"published":"no"`) {
		t.Errorf("list is %s", b)
	}
	e := r.in.Ledger.Entries(ledger.OnHop(ledger.CSP, op))
	if len(e) != 7 || e[0].Node != "node-1" || e[0].Volume != pvc {
		t.Errorf("ledger has %v", e)
	}
	rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: op, Do: fault.Skip()})
	if b := r.text(204, "PUT", "/volumes/"+pvc+"/actions/publish", publish); b != "" {
		t.Errorf("skipped: %s", b)
	}
	r.in.Plan.Disarm(rule)
	for _, d := range []fault.Phase{fault.Before, fault.After} {
		rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.CSP, Op: op, Phase: d, Do: fault.Drop()})
		if code, b, err := r.raw("PUT", "/volumes/"+pvc+"/actions/publish", publish); err == nil {
			t.Errorf("dropped %s: %d %s", d, code, b)
		}
		r.in.Plan.Disarm(rule)
	}
}

// Secrets are in no entry of the ledger.
func TestSecretsAreNotWritten(t *testing.T) {
	r := newRig(t)
	r.volume(pvc, `{"cpg":"cpg1"}`)
	const secret = "chap-secret-12"
	host := strings.Replace(fmt.Sprintf(node, "iscsi"), `"uuid"`, `"chap_user":"me","chap_password":"`+secret+`","uuid"`, 1)
	b := r.text(200, "POST", "/hosts", host)
	for _, e := range r.in.Ledger.Entries() {
		b += e.String() + e.Request
	}
	for _, s := range []string{secret, password, r.token} {
		if strings.Contains(b, s) {
			t.Errorf("%q is told", s)
		}
	}
	path := array.Path{Protocol: array.ISCSI, Name: "iqn.1994-05.com.redhat:n1"}
	r.arrays[0].with(func(a *array.Array) {
		if a.CHAP(path, "me", "other-secret") || !a.CHAP(path, "me", secret) {
			t.Error("CHAP is not set")
		}
	})
	n := r.count(ledger.WSAPI, "PUT /hosts/{name}")
	r.do(200, "POST", "/hosts", host) // nothing to change
	if m := r.count(ledger.WSAPI, "PUT /hosts/{name}"); m != n {
		t.Errorf("%d changes", m-n)
	}
	r.do(200, "POST", "/hosts", strings.Replace(host, secret, "chap-secret-13", 1))
	r.arrays[0].with(func(a *array.Array) {
		if !a.CHAP(path, "me", "chap-secret-13") {
			t.Error("CHAP is not changed")
		}
	})
	r.refused(400, "12 to 16", "POST", "/hosts", strings.Replace(host, secret, "short", 1))
}
