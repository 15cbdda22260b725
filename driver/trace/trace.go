// Package trace passes the trace context of a CSI call (W3C Trace Context, the
// field traceparent) on to the calls that the driver makes for it: sidecars and
// kubelets that trace send it in the metadata of gRPC, vCenters, storage
// providers and proxies log it from the header of HTTP. The driver makes no
// spans of its own: the value goes on as it came.
package trace

import (
	"context"
	"net/http"
	"regexp"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Field is the name of the field in gRPC and in HTTP.
const Field = "traceparent"

type key struct{}

// form is version, trace id, parent id and flags (Trace Context, 3.2).
var form = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)

// With returns a context with a traceparent. One that is not well-formed is
// left out.
func With(ctx context.Context, parent string) context.Context {
	if !form.MatchString(parent) {
		return ctx
	}
	return context.WithValue(ctx, key{}, parent)
}

// Parent is the traceparent of the call that ctx belongs to, or "".
func Parent(ctx context.Context) string {
	s, _ := ctx.Value(key{}).(string)
	return s
}

// Serve is an interceptor of a gRPC server: calls get what their metadata has.
func Serve(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if v := metadata.ValueFromIncomingContext(ctx, Field); len(v) == 1 {
		ctx = With(ctx, v[0])
	}
	return handler(ctx, req)
}

// Transport sends requests with the traceparent of their context. Its idle
// connections are closed as those of the one below.
func Transport(below http.RoundTripper) http.RoundTripper { return transport{below} }

type transport struct{ below http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if p := Parent(r.Context()); p != "" && r.Header.Get(Field) == "" {
		r = r.Clone(r.Context()) // a request belongs to its caller
		r.Header.Set(Field, p)
	}
	return t.below.RoundTrip(r)
}

// CloseIdleConnections is what http.Client looks for.
func (t transport) CloseIdleConnections() {
	if c, ok := t.below.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
