package sidecar_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
)

// run is a sidecar that makes the handshake and then the given calls.
func run(ctx context.Context, l *sidecartest.Lab, name, driver string, loop func(context.Context, *sidecar.Session) error) error {
	conn, err := l.Dial(name)
	if err != nil {
		return err
	}
	defer conn.Close()
	return sidecar.Run(ctx, name, sidecar.Config{Client: l.Store.Client(name), Conn: conn, DriverName: driver},
		func(s *sidecar.Session) ([]func(context.Context) error, error) {
			return []func(context.Context) error{func(ctx context.Context) error { return loop(ctx, s) }}, nil
		})
}

func bubble(t *testing.T, f func(t *testing.T, l *sidecartest.Lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		f(t, l)
	})
}

func ops(l *sidecartest.Lab) string {
	var out []string
	for _, e := range l.Ledger.Entries() {
		out = append(out, e.Op)
	}
	return strings.Join(out, " ")
}

func TestHandshake(t *testing.T) {
	for name, want := range map[string]string{
		sidecar.Provisioner: "Probe Probe Probe GetPluginInfo GetPluginCapabilities ControllerGetCapabilities",
		sidecar.Snapshotter: "GetPluginInfo Probe Probe Probe ControllerGetCapabilities",
	} {
		bubble(t, func(t *testing.T, l *sidecartest.Lab) {
			l.Driver.NotReady = 2
			done := errors.New("done")
			err := run(context.Background(), l, name, "", func(_ context.Context, s *sidecar.Session) error {
				if s.Driver != sidecartest.Name || !s.Controller[csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME] {
					t.Errorf("%+v", s)
				}
				return done
			})
			if !errors.Is(err, done) || ops(l) != want || time.Since(l.Begin) != 2*time.Second {
				t.Errorf("%v after %v: %s", err, time.Since(l.Begin), ops(l))
			}
		})
	}
}

func TestProbe(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.Do("Probe", sidecartest.Hang) // a timeout is not ready
		l.Driver.Answer("Probe", nil, sidecartest.Status(codes.FailedPrecondition))
		err := run(context.Background(), l, sidecar.Attacher, "", func(context.Context, *sidecar.Session) error { return errors.New("done") })
		if err == nil || err.Error() != "csi-attacher: done" || time.Since(l.Begin) != 300*time.Second {
			t.Errorf("%v after %v", err, time.Since(l.Begin))
		}
		err = run(context.Background(), l, sidecar.Attacher, "", func(context.Context, *sidecar.Session) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "CSI driver probe failed: rpc error: code = FailedPrecondition") {
			t.Error(err)
		}
	})
}

func TestWrongDriver(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		err := run(context.Background(), l, sidecar.Attacher, "other", func(context.Context, *sidecar.Session) error { return nil })
		if err == nil || !strings.Contains(err.Error(), `calls itself "csi.example.com", expected "other"`) {
			t.Error(err)
		}
		if err := sidecar.Run(context.Background(), sidecar.Attacher, sidecar.Config{}, nil); err == nil {
			t.Error("no error without a client")
		}
	})
}

// The driver comes later than the sidecar, and goes before it: the sidecar
// ends at its next call, and what else runs in it ends too.
func TestConnection(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.StopDriver()
		time.AfterFunc(10*time.Second, l.Serve)
		err := run(context.Background(), l, sidecar.Attacher, "", func(ctx context.Context, s *sidecar.Session) error {
			if d := time.Since(l.Begin); d < 10*time.Second || d > 12*time.Second {
				t.Errorf("connected after %v", d)
			}
			l.StopDriver()
			time.Sleep(time.Minute)
			l.Serve()
			time.Sleep(time.Minute)
			if ctx.Err() != nil {
				t.Error("ended before the next call")
			}
			_, err := s.AskController(ctx)
			if err == nil || ctx.Err() == nil {
				t.Errorf("call over the lost connection: %v", err)
			}
			return err
		})
		if !errors.Is(err, sidecar.ErrConnectionLost) {
			t.Error(err)
		}
	})
}

func TestContextEnds(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		for _, serve := range []bool{true, false} {
			if !serve {
				l.StopDriver() // still waiting for the driver
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			if err := run(ctx, l, sidecar.Attacher, "", func(ctx context.Context, _ *sidecar.Session) error { <-ctx.Done(); return ctx.Err() }); err != nil {
				t.Errorf("driver there %v: %v", serve, err)
			}
			cancel()
		}
	})
}

// At once, then after 10, 20, 40… s up to 5 min; forgotten after a long run.
func TestSupervise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var at []float64
		ctx, cancel := context.WithCancel(context.Background())
		sidecar.Supervise(ctx, sidecar.Real().Restart, nil, func(ctx context.Context) error {
			at = append(at, time.Since(begin).Seconds())
			switch len(at) {
			case 9:
				time.Sleep(11 * time.Minute)
			case 11:
				cancel()
			}
			return errors.New("exit")
		})
		want := []float64{0, 0, 10, 30, 70, 150, 310, 610, 910, 910 + 660, 910 + 660 + 10}
		for i := range want {
			if i >= len(at) || at[i] != want[i] {
				t.Fatalf("started at %v, want %v", at, want)
			}
		}
	})
}
