package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/csilab/csilab/sim/control"
)

// fakeNodes has one node, whose programs are cat, wait and false.
type fakeNodes struct{ waiting, ended chan struct{} }

func (f fakeNodes) List() []control.Node { return []control.Node{{Name: "n1", Disks: []string{}}} }

func (f fakeNodes) Exec(ctx context.Context, node string, c control.Command, stdin io.Reader, stdout, stderr io.Writer, signals <-chan syscall.Signal) (int, error) {
	if node != "n1" {
		return 0, fmt.Errorf("%w %q", control.ErrNoNode, node)
	}
	switch c.Argv[0] {
	case "cat":
		_, err := io.Copy(stdout, stdin)
		fmt.Fprint(stderr, strings.Join(c.Env, " "), c.Dir)
		return 0, err
	case "wait":
		close(f.waiting)
		defer close(f.ended)
		select {
		case s := <-signals:
			return 128 + int(s), nil
		case <-ctx.Done():
			return 143, nil
		}
	}
	return 7, nil
}

func TestExec(t *testing.T) {
	token := control.NewToken()
	f := fakeNodes{make(chan struct{}), make(chan struct{})}
	s := httptest.NewServer(control.Handler(token, nil, nil, f))
	defer s.Close()
	c := control.Client{URL: s.URL, Token: token}
	if l, err := c.Nodes(t.Context()); err != nil || len(l.Items) != 1 || l.Kind != "NodeList" {
		t.Errorf("%v %v", l, err)
	}
	run := func(ctx context.Context, node string, argv string, in io.Reader, signals chan syscall.Signal) (string, string, int, error) {
		var out, errs strings.Builder
		status, err := c.Exec(ctx, node, control.Command{Argv: []string{argv}, Env: []string{"A=b"}, Dir: "/d"}, in, &out, &errs, signals)
		return out.String(), errs.String(), status, err
	}
	long := strings.Repeat("0123456789", 1<<17)
	if out, errs, status, err := run(t.Context(), "n1", "cat", strings.NewReader(long), nil); out != long || errs != "A=b/d" || status != 0 || err != nil {
		t.Errorf("cat: %d bytes, %q, %d %v", len(out), errs, status, err)
	}
	if _, _, status, err := run(t.Context(), "n1", "false", nil, nil); status != 7 || err != nil {
		t.Errorf("false: %d %v", status, err)
	}
	if _, _, _, err := run(t.Context(), "n2", "cat", nil, nil); err == nil || !strings.Contains(err.Error(), `no node "n2"`) {
		t.Errorf("no node: %v", err)
	}
	signals := make(chan syscall.Signal, 1)
	signals <- syscall.SIGINT
	// A reader that never ends doesn't hold it up.
	never, w := io.Pipe()
	defer w.Close()
	if _, _, status, err := run(t.Context(), "n1", "wait", never, signals); status != 130 || err != nil {
		t.Errorf("a signal: %d %v", status, err)
	}
	// Who goes away ends its program.
	f.waiting, f.ended = make(chan struct{}), make(chan struct{})
	s2 := httptest.NewServer(control.Handler(token, nil, nil, f))
	defer s2.Close()
	c.URL = s2.URL
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-f.waiting; cancel() }()
	if _, _, _, err := run(ctx, "n1", "wait", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	<-f.ended
	// Also one that goes away while its program does not read what it sent.
	f = fakeNodes{make(chan struct{}), make(chan struct{})}
	s3 := httptest.NewServer(control.Handler(token, nil, nil, f))
	defer s3.Close()
	c.URL = s3.URL
	ctx, cancel = context.WithCancel(t.Context())
	go func() { <-f.waiting; cancel() }()
	if _, _, _, err := run(ctx, "n1", "wait", strings.NewReader(long), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	<-f.ended
	// Strangers.
	for _, q := range []struct {
		method, path, token string
		want                int
	}{
		{"POST", "/v1alpha1/nodes/n1/exec", "wrong", http.StatusUnauthorized},
		{"GET", "/v1alpha1/nodes", "wrong", http.StatusUnauthorized},
		{"GET", "/v1alpha1/nodes/n1/exec", token, http.StatusMethodNotAllowed},
		{"POST", "/v1alpha1/nodes/n1/exec", token, http.StatusUpgradeRequired},
		{"POST", "/v1alpha1/nodes", token, http.StatusNotFound},
		{"GET", "/v1alpha1/nodesx", token, http.StatusNotFound},
	} {
		req, _ := http.NewRequestWithContext(t.Context(), q.method, s2.URL+q.path, nil)
		req.Header.Set("Authorization", "Bearer "+q.token)
		res, err := s2.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != q.want {
			t.Errorf("%s %s: %s", q.method, q.path, res.Status)
		}
	}
	none := httptest.NewServer(control.Handler(token, nil, nil, nil))
	defer none.Close()
	c.URL = none.URL
	if _, err := c.Nodes(t.Context()); err == nil || !strings.Contains(err.Error(), "serve --hosts") {
		t.Errorf("without nodes: %v", err)
	}
}
