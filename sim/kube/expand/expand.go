// Package expand is what kube-controller-manager does when a claim on a CSI
// volume is to grow: it tells that an external controller must do it. Source:
// k8s v1.37.2 pkg/controller/volume/expand/expand_controller.go syncHandler.
package expand

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csilab/csilab/sim/kube/controller"
	"github.com/csilab/csilab/sim/kube/store"
)

// Actor is the name that the controller reports events under.
const Actor = "volume_expand"

// Run runs the controller until ctx ends. log may be nil.
func Run(ctx context.Context, c *store.Client, log *slog.Logger) error {
	e := &expander{c: c, sizes: map[string]resource.Quantity{}}
	return controller.Run(ctx, controller.Config{Name: Actor, Client: c, Log: log,
		Kinds: []string{"PersistentVolumeClaim"}, Keys: e.keys, Reconcile: e.reconcile})
}

type expander struct {
	c     *store.Client
	mu    sync.Mutex
	sizes map[string]resource.Quantity // requested, as the last event showed
}

// keys is a bound claim at its first event and when it asks for more.
func (e *expander) keys(ev store.Event) []string {
	p := ev.Object.(*corev1.PersistentVolumeClaim)
	key, size := store.Key(p), p.Spec.Resources.Requests[corev1.ResourceStorage]
	e.mu.Lock()
	defer e.mu.Unlock()
	old, known := e.sizes[key]
	e.sizes[key] = size
	if ev.Type == store.Deleted {
		delete(e.sizes, key)
	}
	if ev.Type == store.Deleted || p.Status.Phase != corev1.ClaimBound || known && size.Cmp(old) <= 0 {
		return nil
	}
	return []string{key}
}

func (e *expander) reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, name := store.SplitKey(key)
	p, err := store.Get[corev1.PersistentVolumeClaim](e.c, ns, name)
	if err != nil {
		return 0, nil
	}
	want, have := p.Spec.Resources.Requests[corev1.ResourceStorage], p.Status.Capacity[corev1.ResourceStorage]
	if want.Cmp(have) > 0 {
		e.c.Event(ctx, p, corev1.EventTypeNormal, "ExternalExpanding", "waiting for an external controller to expand this PVC")
	}
	return 0, nil
}
