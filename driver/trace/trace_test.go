package trace_test

import (
	"context"
	"net/http"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/csilab/csilab/driver/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

type below struct {
	got    http.Header
	closed bool
}

func (b *below) RoundTrip(r *http.Request) (*http.Response, error) {
	b.got = r.Header
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func (b *below) CloseIdleConnections() { b.closed = true }

func TestPassedOn(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   []string
		want string
	}{
		{"as it came", []string{parent}, parent},
		{"none", nil, ""},
		{"two", []string{parent, parent}, ""},
		{"malformed", []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad-01"}, ""},
		{"a header of its own", []string{parent + "\r\nx: y"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := t.Context()
			for _, v := range tc.in {
				md, _ := metadata.FromIncomingContext(ctx)
				md = metadata.Join(md, metadata.Pairs(trace.Field, v))
				ctx = metadata.NewIncomingContext(ctx, md)
			}
			b := &below{}
			c := http.Client{Transport: trace.Transport(b)}
			_, err := trace.Serve(ctx, nil, nil, func(ctx context.Context, _ any) (any, error) {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.invalid/", nil)
				if err != nil {
					return nil, err
				}
				resp, err := c.Do(r)
				if err == nil {
					resp.Body.Close()
				}
				if r.Header.Get(trace.Field) != "" {
					t.Error("the caller's own request was changed")
				}
				return nil, err
			})
			if err != nil || b.got.Get(trace.Field) != tc.want {
				t.Errorf("sent %q (%v), want %q", b.got.Get(trace.Field), err, tc.want)
			}
			if c.CloseIdleConnections(); !b.closed {
				t.Error("the connections below are not closed")
			}
		})
	}
}
