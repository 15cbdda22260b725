package sending_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/sending"
	"github.com/csilab/csilab/sim/transport"
)

// get asks a server that sends a reply in some way.
func get(t *testing.T, text string, how *fault.Body, do func(*http.Response, error)) {
	synctest.Test(t, func(t *testing.T) {
		net := transport.NewMemory()
		l, err := net.Listen("tcp", "server:80")
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sending.Reply(r.Context(), w, http.StatusCreated, []byte(text), how)
		})}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		tr := &http.Transport{DialContext: net.DialContext}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server:80/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: tr}).Do(req)
		do(res, err)
		if err == nil {
			res.Body.Close()
		}
		cancel()
		tr.CloseIdleConnections()
		s.Close()
		<-done
	})
}

func TestSend(t *testing.T) {
	text := strings.Repeat("0123456789", 100)
	for _, tc := range []struct {
		name  string
		how   *fault.Body
		comes int
		end   error
		takes time.Duration
	}{
		{"whole", nil, 1000, nil, 0},
		{"slow", &fault.Body{Over: time.Minute}, 1000, nil, time.Minute},
		{"cut", &fault.Body{Cut: true, Keep: 30}, 300, io.ErrUnexpectedEOF, 0},
		{"cut at once", &fault.Body{Cut: true}, 0, io.ErrUnexpectedEOF, 0},
		{"half a document", &fault.Body{Cut: true, Keep: 50, Document: true}, 500, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			get(t, text, tc.how, func(res *http.Response, err error) {
				if err != nil || res.StatusCode != http.StatusCreated {
					t.Fatalf("%v, %v", res, err)
				}
				start := time.Now()
				b, err := io.ReadAll(res.Body)
				if string(b) != text[:tc.comes] || !errors.Is(err, tc.end) || time.Since(start) != tc.takes {
					t.Errorf("%d bytes, %v, after %v", len(b), err, time.Since(start))
				}
			})
		})
	}
}
