package hpe_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3filter"

	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/sim/csp/csptest"
)

// strict sends requests on that are by the contract.
type strict struct {
	next http.RoundTripper
	mu   sync.Mutex
	seen map[string]bool // methods and operations
	bad  []string
}

func (s *strict) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(orEmpty(r.Body))
	if err != nil {
		return nil, err
	}
	if err := s.check(r, body); err != nil {
		s.mu.Lock()
		s.bad = append(s.bad, fmt.Sprintf("%s %s %s: %v", r.Method, r.URL, body, err))
		s.mu.Unlock()
	}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return s.next.RoundTrip(r)
}

func orEmpty(r io.Reader) io.Reader {
	if r == nil {
		return strings.NewReader("")
	}
	return r
}

func (s *strict) check(r *http.Request, body []byte) error {
	router, err := csptest.Contract()
	if err != nil {
		return err
	}
	q, err := http.NewRequest(r.Method, r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header = r.Header.Clone()
	to, vars, err := router.FindRoute(q)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.seen[to.Method+" "+to.Path] = true
	s.mu.Unlock()
	return openapi3filter.ValidateRequest(context.Background(), &openapi3filter.RequestValidationInput{Request: q, PathParams: vars, Route: to,
		Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc}})
}

// Each request of a volume's life is one of the provider's contract.
func TestContract(t *testing.T) {
	s := newSystem(t)
	x := &strict{next: csp.Transport(s.net.DialContext), seen: map[string]bool{}}
	s.options = func(o *hpe.Options) { o.Transport = x }
	s.start()
	if err := s.lifecycle(t.Context(), "pvc-00000000-0000-0000-0000-000000000000"); err != nil {
		t.Fatal(err)
	}
	for _, b := range x.bad {
		t.Error(b)
	}
	if len(x.seen) < 18 {
		t.Errorf("%d operations: %v", len(x.seen), x.seen)
	}
	t.Logf("%d operations", len(x.seen))
}
