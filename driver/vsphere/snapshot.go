package vsphere

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	cnsmethods "github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
)

const snapshotPage = 128 // as upstream's driver asks

// querySnapshots runs one query, a task of its own.
func (b *Backend) querySnapshots(ctx context.Context, f cnstypes.CnsSnapshotQueryFilter) (_ *cnstypes.CnsSnapshotQueryResult, err error) {
	defer b.metrics.observeCNS("query-snapshots", time.Now(), &err)
	for range 2 {
		var ref types.ManagedObjectReference
		err = b.read(ctx, func(ctx context.Context, s *session) error {
			res, err := cnsmethods.CnsQuerySnapshots(ctx, s.cns, &cnstypes.CnsQuerySnapshots{This: volumeManager, SnapshotQueryFilter: f})
			if err == nil {
				ref = res.Returnval
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		var info *types.TaskInfo
		info, err = b.waitTask(ctx, ref.Value, "")
		if errors.Is(err, errTaskGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if info.Error != nil {
			return nil, localized(info.Error)
		}
		res, ok := info.Result.(cnstypes.CnsSnapshotQueryResult)
		if !ok {
			return nil, &fault{text: "the task of a snapshot query has no result"}
		}
		return &res, nil
	}
	return nil, err
}

// snapshots lists those of a volume, all or the one with the id. A missing
// volume has none.
func (b *Backend) snapshots(ctx context.Context, volume, id string) ([]cnstypes.CnsSnapshot, error) {
	spec := cnstypes.CnsSnapshotQuerySpec{VolumeId: volumeID(volume)}
	if id != "" {
		spec.SnapshotId = &cnstypes.CnsSnapshotId{Id: id}
	}
	var out []cnstypes.CnsSnapshot
	for offset := int64(0); ; {
		page, total, n, err := b.snapshotPage(ctx, []cnstypes.CnsSnapshotQuerySpec{spec}, offset, snapshotPage)
		if err != nil {
			return nil, failf(err, "snapshots of volume %s", volume)
		}
		out = append(out, page...)
		if offset += n; !more(offset, n, snapshotPage, total) {
			return out, nil
		}
	}
}

// snapshotPage returns the snapshots from offset on, the number of all, and
// how many entries were read.
func (b *Backend) snapshotPage(ctx context.Context, specs []cnstypes.CnsSnapshotQuerySpec, offset, limit int64) (out []cnstypes.CnsSnapshot, total, n int64, err error) {
	res, err := b.querySnapshots(ctx, cnstypes.CnsSnapshotQueryFilter{SnapshotQuerySpecs: specs, Cursor: &cnstypes.CnsCursor{Offset: offset, Limit: limit}})
	missing := []string{"CnsSnapshotNotFoundFault", "CnsVolumeNotFoundFault", "NotFound", "CnsNotRegisteredFault"}
	if faultHas(err, missing...) {
		return nil, 0, 0, nil
	}
	if err != nil {
		return nil, 0, 0, err
	}
	for _, e := range res.Entries {
		if e.Error != nil {
			if f := localized(e.Error); !f.has(missing...) {
				return nil, 0, 0, f
			}
			continue
		}
		out = append(out, e.Snapshot)
	}
	return out, res.Cursor.TotalRecords, int64(len(res.Entries)), nil
}

// CreateSnapshot implements controller.Backend.
func (b *Backend) CreateSnapshot(ctx context.Context, r controller.CreateSnapshot) (_ controller.Snapshot, err error) {
	name, volume := r.Name, r.Volume
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("create-snapshot", time.Now(), &err)
	if !isUUID(volume) {
		return controller.Snapshot{}, controller.Errorf(controller.NotFound, "source volume %q doesn't exist", volume)
	}
	key := snapshotNameKey(name)
	rec, err := b.records.Get(ctx, key)
	switch {
	case errors.Is(err, record.ErrNotFound):
	case err != nil:
		return controller.Snapshot{}, recordError(err)
	case !strings.EqualFold(rec.Params["volume"], volume):
		return controller.Snapshot{}, controller.Errorf(controller.AlreadyExists, "snapshot %q exists as %s, of volume %s", name, rec.Result, rec.Params["volume"])
	}
	var snap *cnstypes.CnsSnapshot
	var bytes int64
	params := map[string]string{"name": name, "volume": volume}
	// made finds the snapshot by its id when CNS made it and failed later.
	look := func(ctx context.Context, prior *outcome) (bool, error) {
		v, err := b.find(ctx, volume)
		if err != nil {
			return false, err
		}
		if v == nil {
			return false, controller.Errorf(controller.NotFound, "source volume %q doesn't exist", volume)
		}
		bytes = capacityOf(v)
		ss, err := b.snapshots(ctx, volume, "")
		if err != nil {
			return false, err
		}
		made := ""
		if prior != nil && prior.params["name"] == name {
			made = createdSnapshot(prior.fault)
		}
		for i := range ss {
			if ss[i].Description == snapshotDescription(name, volume) || made != "" && ss[i].SnapshotId.Id == made {
				snap = &ss[i]
				return true, nil
			}
		}
		limit := b.conf().MaxSnapshots
		if limit == 0 {
			limit = 3
		}
		if len(ss) >= limit {
			return false, controller.Errorf(controller.Exhausted, "volume %s has %d snapshots, the limit is %d", volume, len(ss), limit)
		}
		return false, nil
	}
	err = b.do(ctx, operation{
		subject: volumeKey(volume),
		name:    "create-snapshot",
		params:  params,
		look:    look,
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsCreateSnapshots(ctx, s.cns, &cnstypes.CnsCreateSnapshots{This: volumeManager,
				SnapshotSpecs: []cnstypes.CnsSnapshotCreateSpec{{VolumeId: volumeID(volume), Description: snapshotDescription(name, volume)}}})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(ctx context.Context, r cnstypes.BaseCnsVolumeOperationResult) error {
			if c, ok := r.(*cnstypes.CnsSnapshotCreateResult); ok && c.Snapshot.SnapshotId.Id != "" {
				snap = &c.Snapshot
				if !snap.CreateTime.IsZero() {
					return nil
				}
			}
			// Without a time of its own the result isn't a whole answer.
			snap = nil
			if done, err := look(ctx, nil); err != nil || done {
				return err
			}
			return controller.Errorf(controller.Unavailable, "create-snapshot: the snapshot of volume %s is made but not to be found", volume)
		},
		explain: func(_ context.Context, f *fault) error {
			if f.has("NotFound", "CnsVolumeNotFoundFault", "CnsNotRegisteredFault") {
				return controller.Errorf(controller.NotFound, "create-snapshot: source volume %s: %w", volume, f)
			}
			return failf(f, "create-snapshot of volume %s", volume)
		},
	})
	if err != nil {
		return controller.Snapshot{}, err
	}
	out := b.snapshot(*snap, volume, bytes)
	if rec.Result != out.ID {
		err := b.records.Put(ctx, record.Record{Key: key, Op: "create-snapshot", Backend: b.conf().VCenter.Host, Began: time.Now(), Done: true, Result: out.ID, Params: params})
		if err != nil {
			b.log.Error("record of a snapshot not written", "snapshot", out.ID, "error", err)
		}
	}
	return out, nil
}

// createdSnapshot is the id in the fault that says: made, but a later step
// failed, kubernetes-sigs/vsphere-csi-driver#2720.
func createdSnapshot(f *fault) string {
	if f == nil {
		return ""
	}
	if c, ok := f.value.(*cnstypes.CnsSnapshotCreatedFault); ok {
		return c.SnapshotId.Id
	}
	return ""
}

func (b *Backend) snapshot(s cnstypes.CnsSnapshot, volume string, bytes int64) controller.Snapshot {
	return controller.Snapshot{ID: snapshotID(volume, s.SnapshotId.Id), Volume: volume, Bytes: bytes, Created: s.CreateTime, Ready: true}
}

// DeleteSnapshot implements controller.Backend.
func (b *Backend) DeleteSnapshot(ctx context.Context, id string) (err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("delete-snapshot", time.Now(), &err)
	volume, snap, ok := splitSnapshotID(id)
	if !ok {
		return nil
	}
	return b.do(ctx, operation{
		subject: volumeKey(volume),
		name:    "delete-snapshot",
		params:  map[string]string{"snapshot": snap},
		look: func(ctx context.Context, _ *outcome) (bool, error) {
			ss, err := b.snapshots(ctx, volume, snap)
			if err != nil || len(ss) == 0 {
				return err == nil, err
			}
			if name, ok := snapshotName(ss[0].Description, volume); ok {
				return false, b.forget(ctx, snapshotNameKey(name), id)
			}
			return false, nil
		},
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsDeleteSnapshots(ctx, s.cns, &cnstypes.CnsDeleteSnapshots{This: volumeManager,
				SnapshotDeleteSpecs: []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: volumeID(volume), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}}})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(context.Context, cnstypes.BaseCnsVolumeOperationResult) error { return nil },
	})
}

// Snapshots implements controller.Backend. A token is the offset in CNS's
// list.
func (b *Backend) Snapshots(ctx context.Context, f controller.SnapshotFilter, p controller.Page) (_ []controller.Snapshot, _ string, err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("list-snapshot", time.Now(), &err)
	offset, err := parseToken(p.Token)
	if err != nil {
		return nil, "", err
	}
	// No spec asks for the snapshots of all volumes.
	var specs []cnstypes.CnsSnapshotQuerySpec
	switch {
	case f.ID != "":
		volume, snap, ok := splitSnapshotID(f.ID)
		if !ok || f.Volume != "" && !strings.EqualFold(f.Volume, volume) {
			return nil, "", nil
		}
		specs = []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volumeID(volume), SnapshotId: &cnstypes.CnsSnapshotId{Id: snap}}}
	case f.Volume != "":
		if !isUUID(f.Volume) {
			return nil, "", nil
		}
		specs = []cnstypes.CnsSnapshotQuerySpec{{VolumeId: volumeID(f.Volume)}}
	}
	var ss []cnstypes.CnsSnapshot
	next := ""
	for {
		limit := int64(snapshotPage)
		if p.Max > 0 {
			limit = min(limit, int64(p.Max-len(ss)))
		}
		page, total, n, err := b.snapshotPage(ctx, specs, offset, limit)
		if err != nil {
			return nil, "", failf(err, "list of snapshots")
		}
		ss = append(ss, page...)
		if offset += n; !more(offset, n, limit, total) {
			break
		}
		if p.Max > 0 && len(ss) >= p.Max {
			next = strconv.FormatInt(offset, 10)
			break
		}
	}
	sizes, err := b.sizes(ctx, ss)
	if err != nil {
		return nil, "", err
	}
	out := make([]controller.Snapshot, 0, len(ss))
	for _, s := range ss {
		out = append(out, b.snapshot(s, s.VolumeId.Id, sizes[s.VolumeId.Id]))
	}
	return out, next, nil
}

// sizes returns those of the snapshots' volumes: a volume with snapshots
// can't grow, so its size is that of each.
func (b *Backend) sizes(ctx context.Context, ss []cnstypes.CnsSnapshot) (map[string]int64, error) {
	var ids []string
	for _, s := range ss {
		ids = append(ids, s.VolumeId.Id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	out := map[string]int64{}
	for part := range slices.Chunk(ids, maxQuery) {
		f := cnstypes.CnsQueryFilter{Cursor: &cnstypes.CnsCursor{Limit: int64(len(part))}}
		for _, id := range part {
			f.VolumeIds = append(f.VolumeIds, volumeID(id))
		}
		res, err := b.query(ctx, f)
		if err != nil {
			return nil, failf(err, "sizes of volumes")
		}
		for i := range res.Volumes {
			out[res.Volumes[i].VolumeId.Id] = capacityOf(&res.Volumes[i])
		}
	}
	return out, nil
}
