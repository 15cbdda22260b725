package sidecar

import (
	"context"
	"log/slog"
	"time"
)

// Supervise runs a sidecar and starts it again when it ends, as the kubelet
// does with a container: at once the first time, then with a back-off, which
// is forgotten when a run lasted twice the maximum (kubernetes v1.37.2
// pkg/kubelet/kuberuntime/kuberuntime_manager.go doBackOff over client-go
// util/flowcontrol/backoff.go). run makes one incarnation with a client and a
// connection of its own; what it knew is gone, only the API's objects remain.
// Supervise returns when ctx ends.
func Supervise(ctx context.Context, b Backoff, log *slog.Logger, run func(context.Context) error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var delay time.Duration
	for ctx.Err() == nil {
		begin := time.Now()
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > 2*b.Max {
			delay = 0
		}
		log.Info("sidecar ended, restarting", "err", err, "after", delay)
		t := time.NewTimer(delay)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		delay = b.Next(delay)
	}
}
