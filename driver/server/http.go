package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics is the handler of /metrics.
func Metrics(g prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

// Health is the handler of /healthz. It answers as the livenessprobe sidecar
// does (v2.19.0, cmd/livenessprobe/main.go): 200 "ok", or 500 and why, after a
// Probe of at most timeout.
func Health(probe func(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error), timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), timeout)
		defer cancel()
		resp, err := probe(ctx, &csi.ProbeRequest{})
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case resp.GetReady() != nil && !resp.GetReady().GetValue():
			http.Error(w, "driver responded but is not ready", http.StatusInternalServerError)
		default:
			fmt.Fprint(w, "ok")
		}
	})
}

// ServeHTTP serves until ctx ends. It closes the listener.
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("server: %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	err := srv.Close()
	if e := <-failed; err == nil && !errors.Is(e, http.ErrServerClosed) {
		err = e
	}
	return err
}
