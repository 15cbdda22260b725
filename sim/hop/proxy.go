package hop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // what a caller compresses is passed on
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/transport"
)

// ProxyConfig says what a proxy stands between. Network, Listen and Driver are
// needed.
type ProxyConfig struct {
	Network transport.Network
	// Listen is the unix socket that callers use, Driver the one of the driver.
	// A socket that a dead process left at Listen is removed; that of one that lives
	// is a transport.InUseError.
	Listen, Driver string
	// Component is who calls, for the ledger; empty means "co". Node is the
	// node that the driver serves, where it is one's; may be empty.
	Component, Node string
	In              *fault.Interceptor
}

// Proxy stands between callers (sidecars, a kubelet, a test) and a driver that
// listens on a unix socket, ours or any other. Every call passes the
// interceptor; what the proxy does not know (services, messages, fields,
// metadata, streams) goes through as it is.
//
// A unary call of CSI or of plugin registration is held whole: its reply
// leaves once the rules of phase after have let it go. Of an unknown service
// nobody can say which calls are unary: messages go on as they come, and rules
// act before the first and behind the last of them. A dropped call closes the
// caller's connection with all that is under way on it.
type Proxy struct {
	cfg    ProxyConfig
	server *grpc.Server
	driver *grpc.ClientConn
	done   chan struct{}
	err    error
}

// NewProxy serves until Close. Errors: the socket can't be listened on.
func NewProxy(cfg ProxyConfig) (*Proxy, error) {
	switch {
	case cfg.Network == nil:
		return nil, errors.New("proxy: Network is nil")
	case cfg.Listen == "", cfg.Driver == "":
		return nil, fmt.Errorf("proxy: Listen is %q and Driver %q: both are needed", cfg.Listen, cfg.Driver)
	case cfg.Listen == cfg.Driver:
		return nil, fmt.Errorf("proxy: Listen and Driver are both %q: a proxy needs a socket of its own", cfg.Listen)
	}
	if cfg.Component == "" {
		cfg.Component = "co"
	}
	p := &Proxy{cfg: cfg, done: make(chan struct{})}
	var err error
	p.driver, err = grpc.NewClient("passthrough:///"+cfg.Driver,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return cfg.Network.DialContext(ctx, "unix", cfg.Driver)
		}),
		grpc.WithAuthority("localhost"), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)))
	if err != nil {
		return nil, fmt.Errorf("proxy: driver %q: %w", cfg.Driver, err)
	}
	l, err := cfg.Network.Listen("unix", cfg.Listen)
	if err != nil {
		p.driver.Close()
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.handle), grpc.Creds(named{insecure.NewCredentials()}), grpc.WaitForHandlers(true),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32))
	go func() {
		defer close(p.done)
		if err := p.server.Serve(l); !errors.Is(err, grpc.ErrServerStopped) { // Close came before it
			p.err = err
		}
	}()
	return p, nil
}

// Done is closed when the proxy serves no more.
func (p *Proxy) Done() <-chan struct{} { return p.done }

// Close ends all calls. It returns why serving ended, if not by Close.
func (p *Proxy) Close() error {
	p.server.Stop()
	<-p.done
	return errors.Join(p.err, p.driver.Close())
}

// named gives each connection of a caller to its calls, so that one can be
// dropped.
type named struct {
	credentials.TransportCredentials
}

type callerConn struct {
	credentials.AuthInfo
	conn net.Conn
}

func (n named) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	out, info, err := n.TransportCredentials.ServerHandshake(c)
	return out, callerConn{info, c}, err
}

func (n named) Clone() credentials.TransportCredentials { return named{n.TransportCredentials.Clone()} }

// hangUp closes the connection that a call came over.
func hangUp(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if c, ok := p.AuthInfo.(callerConn); ok {
			c.conn.Close()
		}
	}
}

// handle passes one call on.
func (p *Proxy) handle(_ any, caller grpc.ServerStream) error {
	ctx := caller.Context()
	method, ok := grpc.MethodFromServerStream(caller)
	if !ok {
		return status.Error(codes.Internal, "proxy: a call without a method")
	}
	m := lookUp(method)
	call := m.call(p.cfg)
	var first *frame
	if m.unary {
		// Its subjects are in its only message, which has come or will.
		first = &frame{}
		if err := caller.RecvMsg(first); err != nil {
			return err
		}
		call = m.describe(p.cfg, first)
	}
	var reply *frame
	err := p.cfg.In.Do(ctx, call, func(ctx context.Context) (err error) {
		if m.unary {
			reply, err = p.unary(ctx, caller, method, first)
		} else {
			err = p.stream(ctx, caller, method)
		}
		switch status.Code(err) {
		case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable:
			return lost{err}
		}
		return err
	})
	switch {
	case errors.Is(err, fault.ErrDrop), errors.Is(err, fault.ErrCrashed):
		hangUp(ctx)
		return status.Error(codes.Unavailable, "connection dropped")
	case err != nil:
		return statusOf(err)
	}
	if !m.unary {
		return nil
	}
	if reply == nil { // the call was skipped
		reply = &frame{}
	}
	return caller.SendMsg(reply)
}

// statusOf is an error as a caller sees it.
func statusOf(err error) error {
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

// onward is the context of a call to the driver: deadline and metadata are the
// caller's.
func onward(ctx context.Context) context.Context {
	md, _ := metadata.FromIncomingContext(ctx)
	return metadata.NewOutgoingContext(ctx, md.Copy())
}

// unary passes one message there and one back, with headers and trailers.
func (p *Proxy) unary(ctx context.Context, caller grpc.ServerStream, method string, req *frame) (*frame, error) {
	var header, trailer metadata.MD
	reply := &frame{}
	err := p.driver.Invoke(onward(ctx), method, req, reply, grpc.Header(&header), grpc.Trailer(&trailer))
	if len(header) > 0 {
		_ = caller.SetHeader(header) // fails when the caller is gone
	}
	caller.SetTrailer(trailer)
	return reply, err
}

// stream passes messages in both directions until the driver is done.
func (p *Proxy) stream(ctx context.Context, caller grpc.ServerStream, method string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	driver, err := p.driver.NewStream(onward(ctx), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	// It ends with the caller's stream, which ends when handle returns.
	go func() {
		for {
			var f frame
			if err := caller.RecvMsg(&f); err != nil {
				if errors.Is(err, io.EOF) {
					_ = driver.CloseSend()
				} else {
					cancel()
				}
				return
			}
			if driver.SendMsg(&f) != nil {
				return // RecvMsg below says why
			}
		}
	}()
	for first := true; ; first = false {
		f := &frame{}
		err := driver.RecvMsg(f)
		if first {
			if header, herr := driver.Header(); herr == nil && len(header) > 0 {
				_ = caller.SetHeader(header)
			}
		}
		if err != nil {
			caller.SetTrailer(driver.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := caller.SendMsg(f); err != nil {
			return err
		}
	}
}
