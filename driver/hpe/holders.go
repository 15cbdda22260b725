package hpe

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/driver/record"
)

// A volume's record has a parameter per host uuid that may have it: how it was
// published there, and of a share of files, after a blank, for which clients.
const (
	opPublish = "publish-volume"
	readWrite = "rw"
	readOnly_ = "ro"
)

// noteOf is what a record says of one node.
func noteOf(ro bool, clients string) string {
	mode := readWrite
	if ro {
		mode = readOnly_
	}
	if clients == "" {
		return mode
	}
	return mode + " " + clients
}

// modeOf and clientsOf read a note.
func modeOf(note string) string             { mode, _, _ := strings.Cut(note, " "); return mode }
func clientsOf(note string) (list []string) { _, c, _ := strings.Cut(note, " "); return names(c) }

func nodesKey(volume string) string { return "nodes-of-volume " + volume }

// nodesOf returns the record of a volume's nodes, an empty one where there is
// none.
func (b *Backend) nodesOf(ctx context.Context, volume string) (record.Record, error) {
	rec, err := b.records.Get(ctx, nodesKey(volume))
	switch {
	case errors.Is(err, record.ErrNotFound):
		return record.Record{Key: nodesKey(volume), Op: opPublish, Began: b.now()}, nil
	case err != nil && ctx.Err() != nil:
		return rec, err
	case err != nil:
		return rec, controller.Errorf(controller.Unavailable, "the record of the nodes of volume %s: %w", volume, err)
	}
	return rec, nil
}

// remember notes that a node is about to have a volume, unless another has it,
// or this one in another way. undo takes the note back when a failure is sure
// not to have done it, and there was none before.
func (b *Backend) remember(ctx context.Context, r controller.Attach, uuid, note string) (undo func(error), err error) {
	none := func(error) {}
	rec, err := b.nodesOf(ctx, r.Volume)
	if err != nil {
		return none, err
	}
	if has, ok := rec.Params[uuid]; ok {
		if modeOf(has) != modeOf(note) {
			return none, controller.Errorf(controller.AlreadyExists, "volume %s is published for node %s as %s, asked for is %s", r.Volume, uuid, modeOf(has), modeOf(note))
		}
		if has != note { // the node's addresses, say
			rec.Params[uuid] = note
			return none, b.put(ctx, rec, r.Volume)
		}
		return none, nil
	}
	if len(rec.Params) > 0 && !r.Access.Shared {
		holders := make([]string, 0, len(rec.Params))
		for h := range rec.Params {
			holders = append(holders, h)
		}
		return none, controller.Errorf(controller.InUse, "volume %s is published for node %s", r.Volume, slices.Min(holders))
	}
	if rec.Params == nil {
		rec.Params = map[string]string{}
	}
	rec.Params[uuid] = note
	if err := b.put(ctx, rec, r.Volume); err != nil {
		return none, err
	}
	return func(cause error) {
		if csp.Unknown(cause) || csp.StatusOf(cause) == 0 {
			return
		}
		if err := b.forget(ctx, r.Volume, uuid); err != nil {
			b.log.WarnContext(ctx, "a record stays until the volume is unpublished", "volume", r.Volume, "node", uuid, "err", err)
		}
	}, nil
}

// alone makes sure that nobody has a volume for one node that the provider says
// is published, and no record says for whom. Either the record was lost, and it
// is the node that asks; or an export was left by hand, or by an unpublish that
// looked for it under another name (hpe-storage/csi-driver#518). To tell, the
// node's own exports are ended: nothing uses them, for an orchestrator that asks
// has had no answer yet. What is published then is another's.
func (b *Backend) alone(ctx context.Context, s *csp.Session, r controller.Attach, uuid string) error {
	if r.Access.Shared || b.forgetful {
		return nil
	}
	rec, err := b.nodesOf(ctx, r.Volume)
	if err != nil || len(rec.Params) > 0 {
		return err
	}
	if err := s.Unpublish(ctx, r.Volume, uuid); err != nil {
		return fail(ctx, err, nil, "unpublishing volume %s from node %s", r.Volume, uuid)
	}
	v, err := s.Volume(ctx, r.Volume)
	if err != nil {
		return fail(ctx, err, nil, "volume %s", r.Volume)
	}
	if v.Published {
		return controller.Errorf(controller.InUse, "volume %s is published, and not for a node that this driver knows of: it is for one node at a time, so the export that is left at the storage system must end before", r.Volume)
	}
	return nil
}

func (b *Backend) put(ctx context.Context, rec record.Record, volume string) error {
	if err := b.records.Put(ctx, rec); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return controller.Errorf(controller.Unavailable, "the record of the nodes of volume %s: %w", volume, err)
	}
	return nil
}

// forget notes that a node no longer has a volume.
func (b *Backend) forget(ctx context.Context, volume, uuid string) error {
	rec, err := b.nodesOf(ctx, volume)
	if err != nil {
		return err
	}
	if _, ok := rec.Params[uuid]; !ok {
		return nil
	}
	delete(rec.Params, uuid)
	if len(rec.Params) == 0 {
		return b.forgetNodes(ctx, volume)
	}
	return b.put(ctx, rec, volume)
}

// forgetNodes notes that no node has a volume.
func (b *Backend) forgetNodes(ctx context.Context, volume string) error {
	if err := b.records.Delete(ctx, nodesKey(volume)); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return controller.Errorf(controller.Unavailable, "the record of the nodes of volume %s: %w", volume, err)
	}
	return nil
}
