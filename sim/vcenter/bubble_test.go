package vcenter_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmware/govmomi"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/vcenter"
)

// memoryClient logs in over a network in memory.
func memoryClient(ctx context.Context, n transport.Network, u *url.URL) (*govmomi.Client, error) {
	sc := soap.NewClient(u, true)
	tr := sc.DefaultTransport()
	tr.DialContext = n.DialContext
	// govmomi dials TLS by itself (vim25/soap/client.go dialTLSContext).
	tr.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := n.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true})
		return tc, tc.HandshakeContext(ctx)
	}
	vc, err := vim25.NewClient(ctx, sc)
	if err != nil {
		return nil, err
	}
	c := &govmomi.Client{Client: vc, SessionManager: session.NewManager(vc)}
	return c, c.Login(ctx, u.User)
}

// TestInABubble runs a volume's life in virtual time: a minute per task costs
// nothing.
func TestInABubble(t *testing.T) {
	for _, secure := range []bool{false, true} {
		begin := time.Now()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			time.Sleep(26 * 365 * 24 * time.Hour) // the bubble's clock starts in 2000
			n := transport.NewMemory()
			l, err := n.Listen("tcp", "127.0.0.1:443")
			if err != nil {
				t.Fatal(err)
			}
			in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
			v, err := vcenter.New(ctx, vcenter.Config{Seed: 1, Listener: l, TLS: secure, In: in,
				Nodes:       []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}},
				TaskLatency: map[string]time.Duration{"CnsCreateVolume": time.Minute, "CnsAttachVolume": time.Minute},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			gc, err := memoryClient(ctx, n, v.URL())
			if err != nil {
				t.Fatal(err)
			}
			defer gc.CloseIdleConnections()
			c, err := cnsClient(ctx, gc)
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			if err := life(ctx, v, c); err != nil {
				t.Fatal(err)
			}
			// One create and two attaches; nothing else takes time.
			if d := time.Since(start); d != 3*time.Minute {
				t.Errorf("virtual time %v, want 3m", d)
			}
			// A hang of an hour ends with the caller's deadline.
			in.Plan.Arm(fault.Rule{Op: "CurrentTime", Nth: 1, Do: fault.Hang()})
			short, stop := context.WithTimeout(ctx, time.Hour)
			defer stop()
			start = time.Now()
			if _, err := methods.GetCurrentTime(short, gc); err == nil || time.Since(start) != time.Hour {
				t.Errorf("hang: %v after %v", err, time.Since(start))
			}
			if err := gc.Login(ctx, v.URL().User); err != nil { // an hour is too long for the session
				t.Fatal(err)
			}
			// Calls keep a session alive, idleness ends it.
			for range 3 {
				time.Sleep(25 * time.Minute)
				if _, err := methods.GetCurrentTime(ctx, gc); err != nil {
					t.Errorf("after 25 minutes: %v", err)
				}
			}
			time.Sleep(31 * time.Minute)
			if _, err := methods.GetCurrentTime(ctx, gc); !vimfault.Is(err, &types.NotAuthenticated{}) {
				t.Errorf("after 31 minutes: %v", err)
			}
			cancel() // closes it too
			synctest.Wait()
		})
		if d := time.Since(begin); d > 10*time.Second {
			t.Errorf("real time %v", d)
		}
	}
}

// bubble starts a vCenter in the bubble that the caller is in, and logs in.
func bubble(ctx context.Context, t *testing.T, cfg vcenter.Config) (*vcenter.VCenter, *govmomi.Client) {
	t.Helper()
	n := transport.NewMemory()
	l, err := n.Listen("tcp", "127.0.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Listener = l
	if cfg.Nodes == nil {
		cfg.Nodes = []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}
	}
	v, err := vcenter.New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c, err := memoryClient(ctx, n, v.URL())
	if err != nil {
		v.Close()
		t.Fatal(err)
	}
	return v, c
}
