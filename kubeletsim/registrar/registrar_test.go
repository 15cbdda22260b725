package registrar_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csilab/csilab/kubeletsim/registrar"
	"github.com/csilab/csilab/sim/transport"
)

type identity struct {
	csi.UnimplementedIdentityServer
	name string
}

func (i identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: i.name}, nil
}

func serveDriver(t *testing.T, m *transport.Memory, name string) {
	t.Helper()
	l, err := m.Listen("unix", "/csi.sock")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, identity{name: name})
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

func TestServe(t *testing.T) {
	for _, c := range []struct {
		name     string
		driver   string // what the driver calls itself; "-" it isn't there
		cfg      registrar.Config
		register bool
		err      string
	}{
		{"registered", "d", registrar.Config{Endpoint: "/csi.sock"}, true, ""},
		{"refused", "d", registrar.Config{Endpoint: "/csi.sock"}, false, "registration process failed: no"},
		{"another name", "x", registrar.Config{Endpoint: "/csi.sock", Driver: "d"}, false, `calls itself "x", not "d"`},
		{"no name", "", registrar.Config{Endpoint: "/csi.sock"}, false, "driver name is empty"},
		{"no endpoint", "d", registrar.Config{}, false, "Config.Endpoint is required"},
		{"driver away", "-", registrar.Config{Endpoint: "/csi.sock"}, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := transport.NewMemory()
				if c.driver != "-" {
					serveDriver(t, m, c.driver)
				}
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				c.cfg.Network = m
				done := make(chan error, 1)
				go func() { done <- registrar.Serve(ctx, c.cfg) }()
				time.Sleep(time.Minute)
				conn, err := grpc.NewClient("passthrough:///reg", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						return m.DialContext(ctx, "unix", "/var/lib/kubelet/plugins_registry/d-reg.sock")
					}))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				client := registration.NewRegistrationClient(conn)
				info, err := client.GetInfo(ctx, &registration.InfoRequest{})
				if up := c.register || errors.Is(errOf(c.err), registrar.ErrRefused); up != (err == nil) {
					t.Fatalf("GetInfo: %v", err)
				} else if up {
					if info.Type != "CSIPlugin" || info.Name != "d" || info.Endpoint != "/csi.sock" || len(info.SupportedVersions) != 1 || info.SupportedVersions[0] != "1.0.0" {
						t.Errorf("info %v", info)
					}
					if _, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: c.register, Error: "no"}); err != nil {
						t.Error(err)
					}
				}
				if c.err == "" {
					cancel()
				}
				conn.Close()
				err = <-done
				if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
					t.Errorf("Serve: %v, want %q", err, c.err)
				}
			})
		})
	}
}

// errOf says whether a text is that of a refusal.
func errOf(s string) error {
	if strings.HasPrefix(s, registrar.ErrRefused.Error()) {
		return registrar.ErrRefused
	}
	return nil
}
