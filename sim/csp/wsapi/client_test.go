package wsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/transport"
)

// serve answers the requests of a client that is returned.
func serve(t *testing.T, cfg Config, h http.HandlerFunc) *Client {
	t.Helper()
	n := transport.NewMemory()
	l, err := n.Listen("tcp", "array:443")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	done := make(chan struct{})
	go func() { _ = s.Serve(l); close(done) }()
	cfg.URL, cfg.User, cfg.Password, cfg.Dial = "http://array:443", "u", "p", n
	c := New(cfg)
	t.Cleanup(func() { c.Close(context.Background()); s.Close(); <-done })
	return c
}

// array answers as one that is well.
func well(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost && r.URL.Path == "/api/v1/credentials" {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"key":"k1"}`)
		return
	}
	_, _ = io.WriteString(w, `{"total":0,"members":[]}`)
}

func TestWaitsOfAClient(t *testing.T) {
	for name, x := range map[string]struct {
		answer func(http.ResponseWriter)
		waits  time.Duration
		tries  int
	}{
		"busy": {func(w http.ResponseWriter) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"code":270,"desc":"busy"}`)
		}, 26 * time.Second, 5},
		"a gateway": {func(w http.ResponseWriter) { w.WriteHeader(503); _, _ = io.WriteString(w, `<html>`) }, 26 * time.Second, 5},
		"a limit": {func(w http.ResponseWriter) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"code":9004,"desc":"limit"}`)
		}, 0, 1},
		"refused": {func(w http.ResponseWriter) {
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `{"code":18,"desc":"LUN exists"}`)
		}, 0, 1},
		"broken":        {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 26 * time.Second, 5},
		"session gone":  {func(w http.ResponseWriter) { w.WriteHeader(403); _, _ = io.WriteString(w, `{"code":6,"desc":"key"}`) }, 0, 2},
		"unauthorized":  {func(w http.ResponseWriter) { w.WriteHeader(401) }, 0, 2},
		"not permitted": {func(w http.ResponseWriter) { w.WriteHeader(403); _, _ = io.WriteString(w, `{"code":13,"desc":"no"}`) }, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				c := serve(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/api/v1/vluns" {
						tries++
						x.answer(w)
						return
					}
					well(w, r)
				})
				start := time.Now()
				_, err := c.Export(context.Background(), "v", "h", nil)
				if d := time.Since(start); err == nil || d != x.waits || tries != x.tries {
					t.Errorf("%v after %s and %d tries, want %s and %d", err, d, tries, x.waits, x.tries)
				}
			})
		})
	}
}

func TestRequestThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, Config{Timeout: time.Minute}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				<-r.Context().Done()
				return
			}
			well(w, r)
		})
		start := time.Now()
		_, err := c.Ports(context.Background())
		if d := time.Since(start); !errors.Is(err, errTimeout) || d != time.Minute {
			t.Errorf("%v after %s", err, d)
		}
	})
}

// A caller that does not wait any longer gets what was last.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := serve(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.WriteHeader(503)
				return
			}
			well(w, r)
		})
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := c.Ports(ctx); err == nil || time.Since(start) != 2*time.Second {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// The requests of a session come one after the other; there are no more
// sessions than may be.
func TestSessionsAreSharedAndBounded(t *testing.T) {
	var mu sync.Mutex
	logins, now, most := 0, 0, 0
	c := serve(t, Config{Sessions: 3}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		if r.URL.Path == "/api/v1/credentials" {
			logins++
			n := logins
			mu.Unlock()
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"key":"k%d"}`, n)
			return
		}
		now++
		most = max(most, now)
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		now--
		mu.Unlock()
		_, _ = io.WriteString(w, `{"total":0,"members":[]}`)
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := c.Ports(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if logins > 3 || most > 3 {
		t.Errorf("%d logins, %d at once", logins, most)
	}
}

func TestParseLocation(t *testing.T) {
	for in, want := range map[string]string{
		"/api/v1/vluns/v,3,h":                             "v,3,h",
		"/api/v1/vluns/v,0,h,1:2:3":                       "v,0,h,1:2:3",
		"https://10.0.0.1:443/api/v1/vluns/v,16383,set:s": "v,16383,set:s",
		"/api/v1/vluns/v,0,,0:1:2":                        "v,0,,0:1:2",
	} {
		x, err := ParseLocation(in)
		if err != nil || x.ID() != want {
			t.Errorf("%s: %q %v, want %q", in, x.ID(), err, want)
		}
	}
	for _, in := range []string{"", "/api/v1/vluns/", "/api/v1/vluns/v,3", "/api/v1/vluns/v,x,h", "/api/v1/vluns/v,-1,h", "/api/v1/vluns/v,1,h,2:3", "/api/v1/volumes/v,1,h"} {
		if x, err := ParseLocation(in); err == nil {
			t.Errorf("%s: %v", in, x)
		}
	}
}

func TestErrors(t *testing.T) {
	for _, x := range []struct {
		status int
		body   string
		want   string
	}{
		{409, `{"code":73,"desc":"in use","ref":"iSCSINames"}`, "WSAPI 409 code 73: in use (iSCSINames)"},
		{502, `{"message":"bad gateway"}`, "WSAPI 502: bad gateway"},
		{500, ``, "WSAPI 500: Internal Server Error"},
		{500, `{}`, "WSAPI 500: Internal Server Error"},
		{500, `<html>`, "WSAPI 500: <html>"},
		{500, strings.Repeat("x", 300), "WSAPI 500: " + strings.Repeat("x", 256) + "…"},
	} {
		if got := parseError(x.status, []byte(x.body)).Error(); got != x.want {
			t.Errorf("%d %s: %s", x.status, x.body, got)
		}
	}
}

// Neither password nor key are in what is told of a request that broke.
func TestErrorsTellNoSecrets(t *testing.T) {
	c := New(Config{URL: "http://array", User: "u", Password: "secret", Backoff: []time.Duration{}, Dial: deaf{}})
	err := c.Login(context.Background())
	var u *url.Error
	if err == nil || errors.As(err, &u) || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
	}
}

type deaf struct{}

func (deaf) DialContext(context.Context, string, string) (net.Conn, error) {
	return nil, errors.New("nobody there")
}

func FuzzParseLocation(f *testing.F) {
	f.Add("/api/v1/vluns/v,3,h,0:1:2")
	f.Add("/vluns/,,,")
	f.Fuzz(func(t *testing.T, s string) {
		x, err := ParseLocation(s)
		if err == nil && (x.LUN < 0 || !strings.Contains(x.ID(), ",")) {
			t.Errorf("%q is %v", s, x)
		}
	})
}
