package hop_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

type controller struct {
	csi.UnimplementedControllerServer
	published map[string]int
}

func (c *controller) ControllerPublishVolume(ctx context.Context, r *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	switch r.VolumeId {
	case "slow":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case "unknown":
		return nil, status.Error(codes.NotFound, "no such volume")
	}
	c.published[r.VolumeId]++
	return &csi.ControllerPublishVolumeResponse{}, nil
}

func serve(t *testing.T, f func(t *testing.T, client csi.ControllerClient, srv *controller, in *fault.Interceptor)) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		l, err := m.Listen("unix", "/csi.sock")
		if err != nil {
			t.Fatal(err)
		}
		srv, s := &controller{published: map[string]int{}}, grpc.NewServer()
		csi.RegisterControllerServer(s, srv)
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}}
		c, err := hop.Dial(hop.Config{Network: m, Endpoint: "/csi.sock", Hop: ledger.CSI, Component: "csi-attacher", In: in})
		if err != nil {
			t.Fatal(err)
		}
		f(t, csi.NewControllerClient(c), srv, in)
		c.Close()
		s.Stop()
		<-done
	})
}

func publish(c csi.ControllerClient, id string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	_, err := c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "n1", Secrets: map[string]string{"password": "hunter2"}})
	return err
}

func TestRecordsCodesAndSubjectsWithoutSecrets(t *testing.T) {
	serve(t, func(t *testing.T, c csi.ControllerClient, _ *controller, in *fault.Interceptor) {
		if err := publish(c, "v1", time.Minute); err != nil {
			t.Fatal(err)
		}
		if err := publish(c, "unknown", time.Minute); status.Code(err) != codes.NotFound {
			t.Fatalf("%v", err)
		}
		es := in.Ledger.Entries()
		if len(es) != 2 || es[0].Op != "ControllerPublishVolume" || es[0].Volume != "v1" || es[0].Node != "n1" || es[0].Outcome != ledger.OK || es[1].Outcome != ledger.Failed {
			t.Fatalf("%v", es)
		}
		if strings.Contains(es[0].Request, "hunter2") {
			t.Errorf("a secret in the ledger: %s", es[0].Request)
		}
	})
}

// A dropped reply closes the connection: the operation is done, its caller and
// the callers of all other calls on the connection see Unavailable.
func TestDropAfterCommitTakesOthersAlong(t *testing.T) {
	serve(t, func(t *testing.T, c csi.ControllerClient, srv *controller, in *fault.Interceptor) {
		other := make(chan error, 1)
		go func() { other <- publish(c, "slow", time.Hour) }()
		synctest.Wait()
		in.Plan.Arm(fault.Rule{Volume: "v1", Phase: fault.After, Do: fault.Drop(), Nth: 1})
		if err := publish(c, "v1", time.Minute); status.Code(err) != codes.Unavailable {
			t.Fatalf("dropped call: %v", err)
		}
		if err := <-other; status.Code(err) != codes.Unavailable {
			t.Fatalf("other call: %v", err)
		}
		if srv.published["v1"] != 1 {
			t.Fatalf("published %v", srv.published)
		}
		for _, e := range in.Ledger.Entries() {
			if e.Outcome != ledger.MaybeApplied {
				t.Errorf("%v", e)
			}
		}
		if err := publish(c, "v1", time.Minute); err != nil || srv.published["v1"] != 2 {
			t.Fatalf("the retry: %v, %v", err, srv.published)
		}
	})
}

func TestDeadlineIsMaybeApplied(t *testing.T) {
	serve(t, func(t *testing.T, c csi.ControllerClient, _ *controller, in *fault.Interceptor) {
		start := time.Now()
		if err := publish(c, "slow", 15*time.Second); status.Code(err) != codes.DeadlineExceeded || time.Since(start) != 15*time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if es := in.Ledger.Entries(); es[0].Outcome != ledger.MaybeApplied {
			t.Errorf("%v", es[0])
		}
		in.Plan.Arm(fault.Rule{Do: fault.Hang()})
		if err := publish(c, "v1", 15*time.Second); status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("hang: %v", err)
		}
	})
}

func TestTypedError(t *testing.T) {
	serve(t, func(t *testing.T, c csi.ControllerClient, srv *controller, in *fault.Interceptor) {
		in.Plan.Arm(fault.Rule{Do: fault.Error(status.Error(codes.ResourceExhausted, "full"))})
		if err := publish(c, "v1", time.Minute); status.Code(err) != codes.ResourceExhausted || srv.published["v1"] != 0 {
			t.Fatalf("%v, %v", err, srv.published)
		}
	})
}

// A server that is slow to take a connection is waited for, not given up.
func TestSlowHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := transport.NewMemory()
		l, err := m.Listen("unix", "/csi.sock")
		if err != nil {
			t.Fatal(err)
		}
		srv, s := &controller{published: map[string]int{}}, grpc.NewServer()
		csi.RegisterControllerServer(s, srv)
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(5 * time.Second)
			_ = s.Serve(l)
		}()
		c, err := hop.Dial(hop.Config{Network: m, Endpoint: "/csi.sock", Hop: ledger.CSI})
		if err != nil {
			t.Fatal(err)
		}
		if err := publish(csi.NewControllerClient(c), "v1", time.Minute); err != nil {
			t.Errorf("after %v: %v", 5*time.Second, err)
		}
		c.Close()
		s.Stop()
		<-done
	})
}
