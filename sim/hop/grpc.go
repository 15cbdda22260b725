// Package hop puts the interceptor of a lab on gRPC connections: the hops csi
// and registration. It sits on the caller's side, so that a driver behind a
// real socket, ours or another, is covered without a change in it.
package hop

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

// Conn is a client connection to a gRPC server on a unix socket. Every unary
// call over it passes the interceptor. A dropped call closes the transport
// connection, as a network does: all calls under way on it lose their reply.
type Conn struct {
	*grpc.ClientConn

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	drops int
}

// Config says who calls whom.
type Config struct {
	Network   transport.Network
	Endpoint  string // path of the unix socket, as the node sees it
	Hop       ledger.Hop
	Component string // the caller, e.g. "csi-attacher" or "kubelet@node-1"
	Node      string // node name, where the server is a node's; may be empty
	In        *fault.Interceptor
	// Alter may replace a request before it is sent, for mutants of a caller;
	// nil sends what the caller wrote.
	Alter func(op string, req any) any
}

// Dial returns a lazy connection; the first call connects. It does not retry
// within a call: an absent server is Unavailable.
func Dial(cfg Config, opts ...grpc.DialOption) (*Conn, error) {
	c := &Conn{conns: map[net.Conn]struct{}{}}
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			nc, err := cfg.Network.DialContext(fault.About(ctx, cfg.Component), "unix", cfg.Endpoint)
			if err != nil {
				return nil, err
			}
			t := &tracked{Conn: nc, owner: c}
			c.mu.Lock()
			c.conns[t] = struct{}{}
			c.mu.Unlock()
			return t, nil
		}),
		grpc.WithAuthority("localhost"),
		grpc.WithIdleTimeout(0),
		// A sidecar polls for its driver; csi-lib-utils caps the back-off at 1 s.
		// Without MinConnectTimeout a handshake gets no longer than the back-off.
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 20 * time.Second,
			Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}}),
		grpc.WithChainUnaryInterceptor(c.intercept(cfg)),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///"+cfg.Endpoint, opts...)
	if err != nil {
		return nil, fmt.Errorf("csi endpoint %q: %w", cfg.Endpoint, err)
	}
	c.ClientConn = cc
	return c, nil
}

type tracked struct {
	net.Conn
	owner *Conn
}

func (t *tracked) Close() error {
	t.owner.mu.Lock()
	delete(t.owner.conns, t)
	t.owner.mu.Unlock()
	return t.Conn.Close()
}

// Sever closes the transport connections now; calls under way lose their reply.
func (c *Conn) Sever() {
	c.mu.Lock()
	c.drops++
	var all []net.Conn
	for nc := range c.conns {
		all = append(all, nc)
	}
	c.mu.Unlock()
	for _, nc := range all {
		nc.Close()
	}
}

func (c *Conn) dropCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drops
}

func (c *Conn) intercept(cfg Config) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if cfg.Alter != nil {
			req = cfg.Alter(method[strings.LastIndexByte(method, '/')+1:], req)
		}
		call := Describe(cfg.Hop, method, req)
		call.Component = cfg.Component
		if call.Node == "" {
			call.Node = cfg.Node
		}
		err := cfg.In.Do(ctx, call, func(ctx context.Context) error {
			before := c.dropCount()
			if seq := fault.CauseOf(ctx); seq != 0 {
				ctx = metadata.AppendToOutgoingContext(ctx, fault.TraceField, fault.Traceparent(seq))
			}
			reply := reply
			if m, ok := reply.(proto.Message); ok && fault.Discarded(ctx) {
				reply = m.ProtoReflect().New().Interface()
			}
			err := invoke(ctx, method, req, reply, cc, opts...)
			if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
				// The server knows the deadline, too. What it says at that moment is not
				// heard, so that who is first makes no difference.
				err = status.FromContextError(context.DeadlineExceeded).Err()
			}
			if err == nil {
				return nil
			}
			switch status.Code(err) {
			case codes.DeadlineExceeded, codes.Canceled:
				return lost{err}
			case codes.Unavailable:
				if c.dropCount() != before {
					return lost{fmt.Errorf("other victim of a dropped connection: %w", err)}
				}
				return lost{err}
			}
			return err
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed):
			c.Sever()
			return status.Error(codes.Unavailable, "error reading from server: EOF")
		}
		var l lost
		if errors.As(err, &l) {
			return l.GRPCStatus().Err()
		}
		if _, ok := status.FromError(err); ok {
			return err
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return status.FromContextError(err).Err()
		}
		return status.Error(codes.Unknown, err.Error())
	}
}

// lost is an error of a call whose reply did not arrive.
type lost struct{ err error }

func (l lost) Error() string        { return l.err.Error() }
func (l lost) Is(target error) bool { return target == fault.ErrReplyLost }
func (l lost) GRPCStatus() *status.Status {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(l.err, &s) {
		return s.GRPCStatus()
	}
	return status.New(codes.Unavailable, l.err.Error())
}

// CodeOf is the code that the ledger shows for an error of a gRPC hop, or "".
func CodeOf(_ ledger.Hop, err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Code().String()
	}
	return ""
}

// Describe derives the subjects of a CSI or registration call from its
// request. Secrets (fields marked csi_secret) are stripped from the digest.
func Describe(h ledger.Hop, method string, req any) fault.Call {
	op := method[strings.LastIndexByte(method, '/')+1:]
	c := fault.Call{Hop: h, Op: op, Request: protosanitizer.StripSecrets(req).String()}
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		c.Volume = v.GetVolumeId()
	}
	if v, ok := req.(interface{ GetSourceVolumeId() string }); ok && c.Volume == "" {
		c.Volume = v.GetSourceVolumeId()
	}
	if v, ok := req.(interface{ GetSnapshotId() string }); ok {
		c.Snapshot = v.GetSnapshotId()
	}
	if v, ok := req.(interface{ GetNodeId() string }); ok {
		c.Node = v.GetNodeId()
	}
	if v, ok := req.(interface{ GetName() string }); ok {
		switch op {
		case "CreateVolume":
			c.Volume = v.GetName()
		case "CreateSnapshot":
			c.Snapshot = v.GetName()
		}
	}
	return c
}
