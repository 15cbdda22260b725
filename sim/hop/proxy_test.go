package hop_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/hop"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// foreign is a driver that nobody here knows: CSI, and a service of its own.
type foreign struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	created atomic.Int32
	unknown atomic.Pointer[[]byte] // fields of the last CreateVolume that CSI does not have
}

func (f *foreign) GetPluginInfo(ctx context.Context, _ *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	_ = grpc.SetHeader(ctx, metadata.Pairs("said", strings.Join(md.Get("say"), ",")))
	_ = grpc.SetTrailer(ctx, metadata.Pairs("goodbye", "yes"))
	return &csi.GetPluginInfoResponse{Name: "foreign.example.com"}, nil
}

func (f *foreign) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	u := []byte(r.ProtoReflect().GetUnknown())
	f.unknown.Store(&u)
	switch r.GetName() {
	case "full":
		return nil, status.Error(codes.ResourceExhausted, "it is full")
	case "slow":
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	f.created.Add(1)
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "id-" + r.GetName(), CapacityBytes: 1 << 20}}, nil
}

// talk is a service that no registry knows: a call that answers each message,
// and one with one message each way.
var talk = grpc.ServiceDesc{
	ServiceName: "vendor.Talk", HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{StreamName: "Echo", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
		for {
			var m wrapperspb.StringValue
			if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
				s.SetTrailer(metadata.Pairs("echoed", "all"))
				return status.Error(codes.DataLoss, "over")
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(wrapperspb.String("again " + m.Value)); err != nil {
				return err
			}
		}
	}}},
	Methods: []grpc.MethodDesc{{MethodName: "Once", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var m wrapperspb.StringValue
		if err := dec(&m); err != nil {
			return nil, err
		}
		return wrapperspb.String("once " + m.Value), nil
	}}},
}

type proxied struct {
	*foreign
	*grpc.ClientConn
	plan   *fault.Plan
	ledger *ledger.Ledger
}

func newProxied(t *testing.T) proxied {
	t.Helper()
	dir := t.TempDir()
	driver, front := filepath.Join(dir, "d.sock"), filepath.Join(dir, "p.sock")
	l, err := net.Listen("unix", driver)
	if err != nil {
		t.Skip(err) // the path is too long, say
	}
	f := &foreign{}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, f)
	csi.RegisterControllerServer(s, f)
	s.RegisterService(&talk, struct{}{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	led, plan := &ledger.Ledger{}, &fault.Plan{Seed: 1}
	p, err := hop.NewProxy(hop.ProxyConfig{Network: transport.Wall{}, Listen: front, Driver: driver, In: &fault.Interceptor{Ledger: led, Plan: plan}})
	if err != nil {
		t.Fatal(err)
	}
	cc, err := grpc.NewClient("unix://"+front, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cc.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		s.Stop()
		<-served
	})
	return proxied{f, cc, plan, led}
}

func limit(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// What a driver and its callers say to each other arrives as it was said.
func TestProxyPassesOn(t *testing.T) {
	p := newProxied(t)
	ctx := limit(t)
	var header, trailer metadata.MD
	info, err := csi.NewIdentityClient(p).GetPluginInfo(metadata.AppendToOutgoingContext(ctx, "say", "hello"), &csi.GetPluginInfoRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if err != nil || info.GetName() != "foreign.example.com" {
		t.Fatalf("%v, %v", info, err)
	}
	if got := header.Get("said"); len(got) != 1 || got[0] != "hello" {
		t.Errorf("header %v", header)
	}
	if got := trailer.Get("goodbye"); len(got) != 1 {
		t.Errorf("trailer %v", trailer)
	}

	// A field of a CSI that is newer than ours, and a secret.
	req := &csi.CreateVolumeRequest{Name: "v", Secrets: map[string]string{"password": "hunter2"}}
	unknown := []byte{0xfa, 0x3e, 3, 'n', 'e', 'w'} // field 1007
	req.ProtoReflect().SetUnknown(unknown)
	r, err := csi.NewControllerClient(p).CreateVolume(ctx, req)
	if err != nil || r.GetVolume().GetVolumeId() != "id-v" {
		t.Fatalf("%v, %v", r, err)
	}
	if got := p.unknown.Load(); got == nil || string(*got) != string(unknown) {
		t.Errorf("the unknown field arrived as %x", got)
	}
	_, err = csi.NewControllerClient(p).CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "full"})
	if s := status.Convert(err); s.Code() != codes.ResourceExhausted || s.Message() != "it is full" {
		t.Error(err)
	}
	_, err = csi.NewControllerClient(p).DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "v"})
	if status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}

	// Streams, and a service that nobody knows.
	s, err := p.NewStream(ctx, &talk.Streams[0], "/vendor.Talk/Echo")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"a", "b"} {
		var got wrapperspb.StringValue
		if err := errors.Join(s.SendMsg(wrapperspb.String(word)), s.RecvMsg(&got)); err != nil || got.Value != "again "+word {
			t.Errorf("%q, %v", got.Value, err)
		}
	}
	_ = s.CloseSend()
	if err := s.RecvMsg(new(wrapperspb.StringValue)); status.Code(err) != codes.DataLoss || len(s.Trailer().Get("echoed")) != 1 {
		t.Errorf("%v, trailer %v", err, s.Trailer())
	}
	var once wrapperspb.StringValue
	if err := p.Invoke(ctx, "/vendor.Talk/Once", wrapperspb.String("x"), &once); err != nil || once.Value != "once x" {
		t.Errorf("%q, %v", once.Value, err)
	}
	if err := p.Invoke(ctx, "/vendor.Nobody/Knows", &wrapperspb.StringValue{}, &wrapperspb.StringValue{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if err := p.Invoke(ctx, "/csi.v1.Controller/NoSuch", &wrapperspb.StringValue{}, &wrapperspb.StringValue{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}

	var ops []string
	for _, e := range p.ledger.Entries() {
		ops = append(ops, string(e.Hop)+" "+e.Op+" "+string(e.Outcome))
		if strings.Contains(e.Request, "hunter2") {
			t.Errorf("a secret in the ledger: %v", e.Request)
		}
	}
	want := "csi GetPluginInfo ok,csi CreateVolume ok,csi CreateVolume failed,csi DeleteVolume failed,csi vendor.Talk/Echo failed,csi vendor.Talk/Once ok,csi vendor.Nobody/Knows failed,csi NoSuch failed"
	if got := strings.Join(ops, ","); got != want {
		t.Errorf("the ledger has\n%s, want\n%s", got, want)
	}
	if e := p.ledger.Entries()[1]; e.Volume != "v" || e.Component != "co" {
		t.Errorf("%v", e)
	}
}

// Rules act on what passes.
func TestProxyFaults(t *testing.T) {
	for _, tc := range []struct {
		name    string
		rule    fault.Rule
		code    codes.Code
		created int32 // after one call
		outcome ledger.Outcome
	}{
		{"error before", fault.Rule{Do: fault.Error(status.Error(codes.Aborted, "injected"))}, codes.Aborted, 0, ledger.Refused},
		{"error after", fault.Rule{Phase: fault.After, Do: fault.Error(status.Error(codes.Internal, "injected"))}, codes.Internal, 1, ledger.MaybeApplied},
		{"drop before", fault.Rule{Do: fault.Drop()}, codes.Unavailable, 0, ledger.Refused},
		{"drop after", fault.Rule{Phase: fault.After, Do: fault.Drop()}, codes.Unavailable, 1, ledger.MaybeApplied},
		{"delay", fault.Rule{Do: fault.Delay(time.Millisecond)}, codes.OK, 1, ledger.OK},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newProxied(t)
			ctx := limit(t)
			tc.rule.Op, tc.rule.Nth, tc.rule.Volume = "CreateVolume", 1, "v"
			armed := p.plan.Arm(tc.rule)
			c := csi.NewControllerClient(p)
			_, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"})
			if status.Code(err) != tc.code || p.created.Load() != tc.created {
				t.Errorf("%v, %d created", err, p.created.Load())
			}
			if e := p.ledger.Entries()[0]; e.Outcome != tc.outcome || e.Fault != armed.Name {
				t.Errorf("%v", e)
			}
			// The next one is not hit, over a new connection where that was dropped.
			if _, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"}, grpc.WaitForReady(true)); err != nil {
				t.Error(err)
			}
		})
	}
}

// A dropped connection takes the other calls on it along.
func TestProxyDropHasOtherVictims(t *testing.T) {
	p := newProxied(t)
	ctx := limit(t)
	c := csi.NewControllerClient(p)
	victim := make(chan error, 1)
	go func() {
		_, err := c.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "slow"})
		victim <- err
	}()
	for p.unknown.Load() == nil { // until the driver has it
		select {
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	p.plan.Arm(fault.Rule{Op: "GetPluginInfo", Do: fault.Drop()})
	if _, err := csi.NewIdentityClient(p).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	if err := <-victim; status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
}

func TestProxyRefusesItsConfiguration(t *testing.T) {
	for want, cfg := range map[string]hop.ProxyConfig{
		"Network":    {Listen: "/a", Driver: "/b"},
		"Listen":     {Network: transport.Wall{}, Driver: "/b"},
		"of its own": {Network: transport.Wall{}, Listen: "/b", Driver: "/b"},
	} {
		if p, err := hop.NewProxy(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v", p, err)
		}
	}
}
