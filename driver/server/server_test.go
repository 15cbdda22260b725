package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csilab/csilab/driver/server"
	"github.com/csilab/csilab/sim/transport"
)

// scripted is a node service whose NodeStageVolume does what its volume id says.
type scripted struct {
	csi.UnimplementedNodeServer
	entered chan struct{}
	release chan struct{}
}

func (s *scripted) NodeStageVolume(ctx context.Context, r *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	switch r.GetVolumeId() {
	case "panic":
		panic("oh no")
	case "fail":
		return nil, status.Error(codes.NotFound, "not there")
	case "wait":
		s.entered <- struct{}{}
		select {
		case <-s.release:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	case "deaf":
		s.entered <- struct{}{}
		<-s.release
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

type running struct {
	client csi.NodeClient
	node   *scripted
	stop   context.CancelFunc
	done   chan error
	log    *syncBuffer
	reg    *prometheus.Registry
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func start(t *testing.T, stopTimeout time.Duration) *running {
	t.Helper()
	mem := transport.NewMemory()
	r := &running{node: &scripted{entered: make(chan struct{}), release: make(chan struct{})}, done: make(chan error, 1), log: &syncBuffer{}, reg: prometheus.NewRegistry()}
	srv, err := server.New(server.Config{
		Log:        slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Registerer: r.reg, StopTimeout: stopTimeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	csi.RegisterNodeServer(srv, r.node)
	l, err := mem.Listen("unix", "/csi.sock")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- srv.Serve(ctx, l) }()
	cc, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return mem.DialContext(ctx, "unix", "/csi.sock")
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); cc.Close() })
	r.client = csi.NewNodeClient(cc)
	return r
}

func (r *running) stage(id string) error {
	_, err := r.client.NodeStageVolume(context.Background(), &csi.NodeStageVolumeRequest{VolumeId: id, Secrets: map[string]string{"password": "hunter2"}})
	return err
}

func TestCalls(t *testing.T) {
	r := start(t, time.Second)
	for _, c := range []struct {
		id   string
		code codes.Code
		text string
	}{
		{"ok", codes.OK, ""},
		{"panic", codes.Internal, "oh no"},
		{"fail", codes.NotFound, "not there"},
		{"ok", codes.OK, ""}, // others are served after a panic
	} {
		err := r.stage(c.id)
		if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %s %q", c.id, err, c.code, c.text)
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Error(err)
	}
	log := r.log.String()
	if strings.Contains(log, "hunter2") {
		t.Errorf("a secret is in the log: %s", log)
	}
	for _, want := range []string{"***stripped***", "NodeStageVolume", "server_test.go", "code=NotFound"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log doesn't have %q: %s", want, log)
		}
	}
	w := httptest.NewRecorder()
	server.Metrics(r.reg).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`vsphere_csi_operations_seconds_count{grpc_status_code="OK",method_name="/csi.v1.Node/NodeStageVolume"} 2`,
		`vsphere_csi_operations_seconds_count{grpc_status_code="Internal",method_name="/csi.v1.Node/NodeStageVolume"} 1`,
	} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

func TestStop(t *testing.T) {
	for _, c := range []struct {
		name, call string
		release    time.Duration // after the stop
		took       time.Duration
		err        error
		code       codes.Code
	}{
		{"idle", "", 0, 0, nil, codes.OK},
		{"a call that ends in time", "wait", 3 * time.Second, 3 * time.Second, nil, codes.OK},
		{"a call that heeds its context", "wait", time.Hour, 10 * time.Second, nil, codes.Unavailable},
		{"a call that doesn't", "deaf", time.Hour, 20 * time.Second, server.ErrStuck, codes.Unavailable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, 0)
				called := make(chan error, 1)
				if c.call != "" {
					go func() { called <- r.stage(c.call) }()
					<-r.node.entered
				}
				synctest.Wait()
				began := time.Now()
				r.stop()
				if c.release > 0 {
					time.AfterFunc(c.release, func() { close(r.node.release) })
				}
				err := <-r.done
				if took := time.Since(began); !errors.Is(err, c.err) || took != c.took {
					t.Errorf("%v after %s, want %v after %s", err, took, c.err, c.took)
				}
				if c.call != "" {
					if err := <-called; status.Code(err) != c.code {
						t.Errorf("call: %v, want %s", err, c.code)
					}
				}
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

func TestHealth(t *testing.T) {
	for _, c := range []struct {
		name string
		resp *csi.ProbeResponse
		err  error
		code int
		body string
	}{
		{"ready", &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil, 200, "ok"},
		{"silent", &csi.ProbeResponse{}, nil, 200, "ok"},
		{"not ready", &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil, 500, "not ready"},
		{"error", nil, status.Error(codes.FailedPrecondition, "broken"), 500, "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := server.Health(func(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) { return c.resp, c.err }, time.Second)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
			if w.Code != c.code || !strings.Contains(w.Body.String(), c.body) {
				t.Errorf("%d %q, want %d %q", w.Code, w.Body, c.code, c.body)
			}
		})
	}
}

func TestServeHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- server.ServeHTTP(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hi") }))
	}()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != "hi" {
		t.Errorf("%q", b)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
