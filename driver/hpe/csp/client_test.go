package csp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/csilab/csilab/driver/hpe/csp"
)

func TestSecrets(t *testing.T) {
	base := map[string]string{"backend": "192.0.2.1", "username": "u", "password": "p"}
	with := func(kv ...string) map[string]string {
		out := map[string]string{}
		for k, v := range base {
			out[k] = v
		}
		for i := 0; i < len(kv); i += 2 {
			out[kv[i]] = kv[i+1]
		}
		return out
	}
	for _, c := range []struct {
		secret map[string]string
		url    string
		header bool
		slow   bool
		bad    string // key
	}{
		{with("serviceName", "csp", "servicePort", "8080"), "http://csp:8080/containers/v1", true, false, ""},
		{with("serviceName", "primera3par-csp-svc", "servicePort", "8080"), "http://primera3par-csp-svc:8080/containers/v1", true, true, ""},
		{with("serviceName", "::1", "servicePort", "1"), "http://[::1]:1/containers/v1", true, false, ""},
		{with(), "https://192.0.2.1:443/csp/containers/v1", false, true, ""},
		{with("backend", "192.0.2.1:443", "path", "/a/b/"), "https://192.0.2.1:443/a/b/containers/v1", false, true, ""},
		{with("backend", "2001:db8::1"), "https://[2001:db8::1]:443/csp/containers/v1", false, true, ""},
		{with("password", ""), "", false, false, "password"},
		{with("backend", ""), "", false, false, "backend"},
		{with("username", ""), "", false, false, "username"},
		{with("backend", "a b"), "", false, false, "backend"},
		{with("serviceName", "csp"), "", false, false, "servicePort"},
		{with("serviceName", "csp", "servicePort", "65536"), "", false, false, "servicePort"},
		{with("serviceName", "user@csp", "servicePort", "1"), "", false, false, "serviceName"},
		{nil, "", false, false, "backend"},
	} {
		a, password, err := csp.FromSecret(c.secret)
		var e *csp.ErrSecret
		if c.bad != "" {
			if !errors.As(err, &e) || e.Key != c.bad {
				t.Errorf("%v: %v, want %s", c.secret, err, c.bad)
			}
			continue
		}
		if err != nil || a.URL != c.url || a.Header != c.header || a.Slow != c.slow || password != "p" {
			t.Errorf("%v: %+v, %v", c.secret, a, err)
		}
	}
}

func FuzzSecret(f *testing.F) {
	f.Add("csp", "8080", "192.0.2.1", "csp")
	f.Add("", "", "a b", "/")
	f.Add("::1", "1", "[::1]:443", "")
	f.Fuzz(func(t *testing.T, service, port, backend, path string) {
		a, _, err := csp.FromSecret(map[string]string{"serviceName": service, "servicePort": port, "backend": backend, "path": path, "username": "u", "password": "p"})
		if err == nil {
			if _, err := http.NewRequest("GET", a.URL+"/volumes", nil); err != nil {
				t.Errorf("%q %q %q %q: %v", service, port, backend, path, err)
			}
		}
	})
}

// session is one with a provider that answers everything but logins alike.
func session(t *testing.T, status int, body string) *csp.Session {
	t.Helper()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/tokens") {
			io.WriteString(w, `{"session_token":"t"}`)
			return
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	})
	tr := transport(func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	})
	return csp.New(csp.Config{Account: csp.Account{URL: "http://csp/containers/v1", Backend: "b", User: "u"}, Transport: tr, Retries: -1}).As("secret-word")
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What a refusal says is kept, whatever its form, and never the password.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ body, says string }{
		{`{"errors":[{"code":"Conflict","message":"a"},{"code":"x","message":"b"}]}`, "409 Conflict: a; b"},
		{`{"errors":[{"code":"Own Code","message":"a"}]}`, "409 Conflict (Own Code): a"},
		{`{"code":"Conflict","message":"bare"}`, "409 Conflict: bare"},
		{"", "409 Conflict"},
		{"<html>\n  <b>proxy</b>", "409 Conflict: <html> <b>proxy</b>"},
		{`{"errors":[{"co`, `409 Conflict: {"errors":[{"co`},
		{strings.Repeat("ä", 300), "…"},
		{"\xff\xfe", "409 Conflict: ?"},
		{`{"errors":[{"message":"wrong: secret-word"}]}`, "wrong: ***"},
	} {
		_, err := session(t, 409, c.body).Volume(context.Background(), "v")
		if err == nil || csp.StatusOf(err) != 409 || csp.Unknown(err) || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "secret-word") || len(err.Error()) > 400 {
			t.Errorf("%.60q: %v, want %q", c.body, err, c.says)
		}
	}
	_, err := session(t, 500, "").CreateVolume(context.Background(), csp.Volume{Name: "v"})
	if !csp.Unknown(err) {
		t.Errorf("%v leaves nothing unknown", err)
	}
}

// Sizes come as numbers and as strings; ids with any character go out whole.
func TestForms(t *testing.T) {
	for body, want := range map[string]csp.Bytes{`{"size":5}`: 5, `{"size":"6"}`: 6, `{"size":null}`: 0, `{}`: 0} {
		if v, err := session(t, 200, body).Volume(context.Background(), "v"); err != nil || v.Size != want {
			t.Errorf("%s: %v, %v", body, v, err)
		}
	}
	for _, body := range []string{`{"size":-1}`, `{"size":1.5}`, `{"size":"x"}`, `{"size":{}}`} {
		if _, err := session(t, 200, body).Volume(context.Background(), "v"); err == nil {
			t.Errorf("%s passes", body)
		}
	}
	var path string
	tr := transport(func(r *http.Request) (*http.Response, error) {
		path = r.URL.RequestURI()
		w := httptest.NewRecorder()
		io.WriteString(w, `{"session_token":"t"}`)
		return w.Result(), nil
	})
	s := csp.New(csp.Config{Account: csp.Account{URL: "http://csp/containers/v1"}, Transport: tr}).As("p")
	s.Volume(context.Background(), "a/b c?d")
	if path != "/containers/v1/volumes/a%2Fb%20c%3Fd" {
		t.Error(path)
	}
	s.VolumeNamed(context.Background(), "a&b+c")
	if path != "/containers/v1/volumes?name=a%26b%2Bc" {
		t.Error(path)
	}
}

func FuzzReply(f *testing.F) {
	for _, s := range []string{`{"serial_number":"60","lun_id":1,"target_names":["a"]}`, `{"lun_id":"1"}`, `[]`, "", `{"PeerArrayDetails":[{"lun_id":-1}]}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		p, err := session(t, 200, body).Publish(context.Background(), "v", "h", "iscsi")
		if err == nil && p.LUN.Set && !strings.Contains(strings.ToLower(body), "lun_id") {
			t.Errorf("%q has LUN %d", body, p.LUN.Number)
		}
		session(t, 400, body).Volumes(context.Background())
	})
}
