package attacher

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

// reconcileEvery compares the attachments with what the driver lists, at once
// and then every interval, and works again on those that differ
// (pkg/controller/csi_handler.go:126, controller.go:158).
func (h *handler) reconcileEvery(ctx context.Context, every time.Duration, workers int) error {
	t := time.NewTicker(every)
	defer t.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	sem := make(chan struct{}, workers)
	for {
		drifted, err := h.drift(ctx)
		if err != nil {
			h.Log.Warn("failed to reconcile VolumeAttachment", "err", err)
		}
		for _, name := range drifted {
			if !h.setForce(name) {
				continue // the last time's has not been worked on yet
			}
			h.Log.Warn("VolumeAttachment attached status and actual state do not match", "volumeattachment", name)
			wg.Go(func() {
				select {
				case sem <- struct{}{}:
				case <-ctx.Done():
					return
				}
				defer func() { <-sem }()
				// A failure is not retried by itself: the mark is used up, and
				// the next interval looks again. An attachment that is not done
				// by its status is in the main queue as well.
				if err := h.syncVA(ctx, name); err != nil {
					h.Log.Warn("forced sync failed", "volumeattachment", name, "err", err)
				}
			})
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// drift names the attachments whose status differs from the driver's list.
func (h *handler) drift(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, h.Call("ListVolumes").Timeout) // all pages
	defer cancel()
	vas := store.List[storagev1.VolumeAttachment](h.Client, "")
	published, err := h.listVolumes(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, va := range vas {
		if va.Spec.Attacher != h.Driver {
			continue
		}
		node, err := h.nodeID(va.Spec.NodeName, va)
		if err != nil {
			continue
		}
		pv, err := h.source(va)
		if err != nil {
			continue
		}
		if slices.Contains(published[pv.Spec.CSI.VolumeHandle], node) != va.Status.Attached {
			out = append(out, va.Name)
		}
	}
	return out, nil
}

// listVolumes maps volume ids to the nodes that they are published to. The
// page size is left to the driver (--max-entries=0).
func (h *handler) listVolumes(ctx context.Context) (map[string][]string, error) {
	out, token := map[string][]string{}, ""
	for {
		rsp, err := h.csi.ListVolumes(ctx, &csi.ListVolumesRequest{StartingToken: token})
		if err != nil {
			return nil, fmt.Errorf("failed to list volumes: %w", err)
		}
		for _, e := range rsp.GetEntries() {
			if e.GetVolume() != nil && e.GetStatus() != nil {
				out[e.GetVolume().GetVolumeId()] = e.GetStatus().GetPublishedNodeIds()
			}
		}
		if token = rsp.GetNextToken(); token == "" {
			return out, nil
		}
	}
}

// slot is the right to work on one VolumeAttachment.
type slot struct {
	ch    chan struct{}
	users int // who has it or waits for it; the last one takes it away
}

// enter waits until no other worker has the VolumeAttachment.
func (h *handler) enter(ctx context.Context, name string) (leave func(), err error) {
	h.mu.Lock()
	s := h.slots[name]
	if s == nil {
		s = &slot{ch: make(chan struct{}, 1)}
		h.slots[name] = s
	}
	s.users++
	h.mu.Unlock()
	done := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(h.slots, name)
		}
	}
	select {
	case s.ch <- struct{}{}:
		return func() { <-s.ch; done() }, nil
	case <-ctx.Done():
		done()
		return nil, context.Cause(ctx)
	}
}

// setForce marks an attachment; false where it is marked already.
func (h *handler) setForce(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.force[name] {
		return false
	}
	h.force[name] = true
	return true
}

func (h *handler) consumeForce(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.force[name]
	delete(h.force, name)
	return f
}
