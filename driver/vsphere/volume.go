package vsphere

import (
	"context"
	"errors"
	"maps"
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

const mib = 1 << 20

// volumeManager is the one CNS object, govmomi cns.CnsVolumeManagerInstance.
var volumeManager = types.ManagedObjectReference{Type: "CnsVolumeManager", Value: "cns-volume-manager"}

// blockContext is the volume context of every block volume, as upstream's.
func blockContext() map[string]string {
	return map[string]string{"type": "vSphere CNS Block Volume"}
}

func volumeID(id string) cnstypes.CnsVolumeId { return cnstypes.CnsVolumeId{Id: id} }

func capacityOf(v *cnstypes.CnsVolume) int64 {
	if v.BackingObjectDetails == nil {
		return 0
	}
	return v.BackingObjectDetails.GetCnsBackingObjectDetails().CapacityInMb * mib
}

// query runs one volume query, without paging.
func (b *Backend) query(ctx context.Context, f cnstypes.CnsQueryFilter) (res *cnstypes.CnsQueryResult, err error) {
	began := time.Now()
	defer b.metrics.observeCNS("query-volume", began, &err)
	err = b.read(ctx, func(ctx context.Context, s *session) error {
		r, err := cnsmethods.CnsQueryAllVolume(ctx, s.cns, &cnstypes.CnsQueryAllVolume{This: volumeManager, Filter: f})
		if err == nil {
			res = &r.Returnval
		}
		return err
	})
	return res, err
}

// find returns a volume by its id, nil when CNS doesn't know it. An id of
// another form is no volume's.
func (b *Backend) find(ctx context.Context, id string) (*cnstypes.CnsVolume, error) {
	if !isUUID(id) {
		return nil, nil
	}
	res, err := b.query(ctx, cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}})
	if faultHas(err, "CnsVolumeNotFoundFault", "NotFound", "CnsNotRegisteredFault") {
		return nil, nil
	}
	if err != nil {
		return nil, failf(err, "look-up of volume %s", id)
	}
	for i := range res.Volumes {
		if strings.EqualFold(res.Volumes[i].VolumeId.Id, id) {
			return &res.Volumes[i], nil
		}
	}
	return nil, nil
}

// named returns the volume of this cluster that has the name, or nil.
func (b *Backend) named(ctx context.Context, name string) (*cnstypes.CnsVolume, error) {
	res, err := b.query(ctx, cnstypes.CnsQueryFilter{Names: []string{name}, ContainerClusterIds: []string{b.conf().ClusterID}})
	if err != nil {
		return nil, failf(err, "look-up of volume %q", name)
	}
	vs := slices.DeleteFunc(res.Volumes, func(v cnstypes.CnsVolume) bool { return v.Name != name })
	if len(vs) == 0 {
		return nil, nil
	}
	slices.SortFunc(vs, func(a, c cnstypes.CnsVolume) int { return strings.Compare(a.VolumeId.Id, c.VolumeId.Id) })
	if len(vs) > 1 {
		b.log.Warn("several volumes have one name", "name", name, "taken", vs[0].VolumeId.Id, "count", len(vs))
	}
	return &vs[0], nil
}

func notFound(volume string) error {
	return controller.Errorf(controller.NotFound, "volume %q doesn't exist", volume)
}

// Volume implements controller.Backend.
func (b *Backend) Volume(ctx context.Context, id string) (controller.Volume, error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	v, err := b.find(ctx, id)
	if err != nil {
		return controller.Volume{}, err
	}
	if v == nil {
		return controller.Volume{}, notFound(id)
	}
	return controller.Volume{ID: v.VolumeId.Id, Bytes: capacityOf(v), Context: blockContext()}, nil
}

// Nodes implements controller.Backend.
func (b *Backend) Nodes(ctx context.Context, volume string) ([]string, error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	ms, err := b.holders(ctx, volume)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range ms {
		out = append(out, m.uuid)
	}
	return out, nil
}

// Volumes implements controller.Backend. A token is the offset in CNS's list.
func (b *Backend) Volumes(ctx context.Context, p controller.Page) (_ []controller.Volume, _ string, err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("list-volume", time.Now(), &err)
	offset, err := parseToken(p.Token)
	if err != nil {
		return nil, "", err
	}
	limit := b.conf().QueryLimit
	if limit == 0 || limit > maxQuery {
		limit = maxQuery
	}
	var vs []cnstypes.CnsVolume
	next := ""
	for {
		n := limit
		if p.Max > 0 {
			n = min(n, p.Max-len(vs))
		}
		res, err := b.query(ctx, cnstypes.CnsQueryFilter{ContainerClusterIds: []string{b.conf().ClusterID},
			Cursor: &cnstypes.CnsCursor{Offset: offset, Limit: int64(n)}})
		if err != nil {
			return nil, "", failf(err, "list of volumes")
		}
		vs = append(vs, res.Volumes...)
		offset += int64(len(res.Volumes))
		if !more(offset, int64(len(res.Volumes)), int64(n), res.Cursor.TotalRecords) {
			break
		}
		if p.Max > 0 && len(vs) >= p.Max {
			next = strconv.FormatInt(offset, 10)
			break
		}
	}
	nodes := map[string][]string{}
	if len(vs) > 0 {
		ms, err := b.machines(ctx)
		if err != nil {
			return nil, "", err
		}
		for _, m := range ms {
			for id := range m.disks {
				nodes[id] = append(nodes[id], m.uuid)
			}
		}
	}
	out := make([]controller.Volume, 0, len(vs))
	for i := range vs {
		v := &vs[i]
		if v.VolumeType != "" && v.VolumeType != string(cnstypes.CnsVolumeTypeBlock) {
			continue
		}
		out = append(out, controller.Volume{ID: v.VolumeId.Id, Bytes: capacityOf(v), Context: blockContext(), Nodes: nodes[strings.ToLower(v.VolumeId.Id)]})
	}
	return out, next, nil
}

// more says whether a list goes on at offset, after a page of n of limit
// entries. Not every server counts the total.
func more(offset, n, limit, total int64) bool {
	if total == 0 {
		return n == limit
	}
	return n > 0 && offset < total
}

func parseToken(t string) (int64, error) {
	if t == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(t, 10, 64)
	if err != nil || n < 0 {
		return 0, controller.Errorf(controller.Aborted, "starting_token %q: not one that this driver gave", t)
	}
	return n, nil
}

// CreateVolume implements controller.Backend.
func (b *Backend) CreateVolume(ctx context.Context, r controller.CreateVolume) (_ controller.Volume, err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("create-volume", time.Now(), &err)
	p, err := parseParameters(r.Parameters)
	if err != nil {
		return controller.Volume{}, err
	}
	if _, err := b.segments(r.Preferred, r.Requisite); err != nil {
		return controller.Volume{}, err
	}
	c := creation{b: b, r: r, p: p, name: volumeName(r.Name)}
	err = b.do(ctx, operation{
		subject: createKey(c.name),
		name:    "create-volume",
		params:  c.params(),
		look:    c.look,
		start:   c.start,
		end:     c.end,
		explain: func(_ context.Context, f *fault) error { return c.explain(f) },
		lasting: true,
	})
	return c.volume, err
}

// creation is one call of CreateVolume.
type creation struct {
	b    *Backend
	r    controller.CreateVolume
	p    parameters
	name string

	bytes  int64
	where  *candidates
	volume controller.Volume
}

// params are what a later call with the same name is compared with.
func (c *creation) params() map[string]string {
	return map[string]string{"policy": c.p.policy, "datastore": c.p.datastore, "snapshot": c.r.Snapshot}
}

// look finds the volume by its name, or prepares to make it.
func (c *creation) look(ctx context.Context, _ *outcome) (bool, error) {
	v, err := c.b.named(ctx, c.name)
	if err != nil {
		return false, err
	}
	if v != nil {
		return true, c.adopt(ctx, v)
	}
	source := ""
	c.bytes = c.r.Bytes
	if c.r.Snapshot != "" {
		if source, err = c.source(ctx); err != nil {
			return false, err
		}
	}
	c.where, err = c.b.place(ctx, c.p, c.r.Preferred, c.r.Requisite, source)
	return false, err
}

// source checks the snapshot to restore and returns its datastore's URL.
func (c *creation) source(ctx context.Context) (string, error) {
	vol, snap, ok := splitSnapshotID(c.r.Snapshot)
	missing := controller.Errorf(controller.NotFound, "source snapshot %q doesn't exist", c.r.Snapshot)
	if !ok {
		return "", missing
	}
	ss, err := c.b.snapshots(ctx, vol, snap)
	if err != nil {
		return "", err
	}
	if len(ss) == 0 {
		return "", missing
	}
	v, err := c.b.find(ctx, vol)
	if err != nil {
		return "", err
	}
	if v == nil {
		return "", missing
	}
	size := capacityOf(v)
	if c.bytes == 0 {
		c.bytes = size
	}
	if c.bytes != size {
		// vSphere restores to the size of the source, and nothing else.
		return "", controller.Errorf(controller.OutOfRange, "size %d bytes: a volume restored from snapshot %s has %d bytes", c.bytes, c.r.Snapshot, size)
	}
	return v.DatastoreUrl, nil
}

// adopt answers with a volume that has the name already.
func (c *creation) adopt(ctx context.Context, v *cnstypes.CnsVolume) error {
	size := capacityOf(v)
	other := func(what, has, want string) error {
		return controller.Errorf(controller.AlreadyExists, "volume %q exists as %s with another %s: it has %s, the request wants %s", c.r.Name, v.VolumeId.Id, what, has, want)
	}
	switch {
	case size < c.r.MinBytes:
		return other("size", strconv.FormatInt(size, 10), "at least "+strconv.FormatInt(c.r.MinBytes, 10))
	case c.r.LimitBytes > 0 && size > c.r.LimitBytes:
		return other("size", strconv.FormatInt(size, 10), "at most "+strconv.FormatInt(c.r.LimitBytes, 10))
	case c.p.datastore != "" && v.DatastoreUrl != c.p.datastore:
		return other("datastoreurl", v.DatastoreUrl, c.p.datastore)
	}
	rec, err := c.b.records.Get(ctx, createKey(c.name))
	switch {
	case errors.Is(err, record.ErrNotFound):
		// Lost, or the volume is upstream's: what the backend shows must do.
	case err != nil:
		return recordError(err)
	case rec.Done && rec.Params["snapshot"] != c.r.Snapshot:
		return other("source", strconv.Quote(rec.Params["snapshot"]), strconv.Quote(c.r.Snapshot))
	case rec.Done && rec.Params["policy"] != c.p.policy:
		return other("storagepolicyname", strconv.Quote(rec.Params["policy"]), strconv.Quote(c.p.policy))
	}
	c.volume = controller.Volume{ID: v.VolumeId.Id, Bytes: size, Context: blockContext(), Snapshot: c.r.Snapshot}
	if !rec.Done {
		c.remember(ctx)
	}
	if len(c.r.Preferred)+len(c.r.Requisite) > 0 {
		where, err := c.b.place(ctx, parameters{}, c.r.Preferred, c.r.Requisite, v.DatastoreUrl)
		if where == nil {
			return err
		}
		if c.volume.Segments = where.segments[v.DatastoreUrl]; c.volume.Segments == nil && err != nil {
			return controller.Errorf(controller.AlreadyExists, "volume %q exists as %s, out of reach of the asked topology: %w", c.r.Name, v.VolumeId.Id, err)
		}
	}
	return nil
}

func (c *creation) start(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
	conf := c.b.conf()
	spec := cnstypes.CnsVolumeCreateSpec{
		Name:       c.name,
		VolumeType: string(cnstypes.CnsVolumeTypeBlock),
		Datastores: refs(c.where.stores),
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{
			ClusterType:         string(cnstypes.CnsClusterTypeKubernetes),
			ClusterId:           conf.ClusterID,
			VSphereUser:         conf.VCenter.User,
			ClusterFlavor:       string(cnstypes.CnsClusterFlavorVanilla),
			ClusterDistribution: conf.Distribution,
		}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: c.bytes / mib}},
	}
	if c.where.policyID != "" {
		spec.Profile = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: c.where.policyID}}
	}
	if vol, snap, ok := splitSnapshotID(c.r.Snapshot); ok {
		spec.VolumeSource = &cnstypes.CnsSnapshotVolumeSource{VolumeId: volumeID(vol), SnapshotId: cnstypes.CnsSnapshotId{Id: snap}}
	}
	res, err := cnsmethods.CnsCreateVolume(ctx, s.cns, &cnstypes.CnsCreateVolume{This: volumeManager, CreateSpecs: []cnstypes.CnsVolumeCreateSpec{spec}})
	if err != nil {
		return types.ManagedObjectReference{}, err
	}
	return res.Returnval, nil
}

func (c *creation) end(ctx context.Context, r cnstypes.BaseCnsVolumeOperationResult) error {
	id := r.GetCnsVolumeOperationResult().VolumeId.Id
	if id == "" {
		return controller.Errorf(controller.Unavailable, "create-volume: the result names no volume")
	}
	c.volume = controller.Volume{ID: id, Bytes: c.bytes, Context: blockContext(), Snapshot: c.r.Snapshot}
	c.remember(ctx)
	if len(c.where.segments) > 0 {
		v, err := c.b.find(ctx, id)
		if err != nil {
			return err
		}
		if v == nil {
			return controller.Errorf(controller.Unavailable, "create-volume: volume %s is made but not to be found", id)
		}
		c.volume.Segments = c.where.segments[v.DatastoreUrl]
	}
	return nil
}

// remember keeps what a volume was made of, for later calls with its name, as
// soon as it is known to be there: a call that fails after that leads no other
// to another vCenter. Without it they are compared with what the backend shows.
func (c *creation) remember(ctx context.Context) {
	err := c.b.records.Put(ctx, record.Record{Key: createKey(c.name), Op: "create-volume", Backend: c.b.conf().VCenter.Host,
		Began: time.Now(), Done: true, Result: c.volume.ID, Params: c.params()})
	if err != nil {
		c.b.log.Error("record of a volume not written", "volume", c.volume.ID, "error", err)
	}
}

func (c *creation) explain(f *fault) error {
	if c.r.Snapshot != "" && f.has("NotFound", "CnsSnapshotNotFoundFault", "CnsVolumeNotFoundFault") {
		return controller.Errorf(controller.NotFound, "create-volume: source snapshot %s: %w", c.r.Snapshot, f)
	}
	if wireKind(f) == controller.NotFound {
		// Not the volume that the caller named: he named none.
		return controller.Errorf(controller.Internal, "create-volume: %w", f)
	}
	return failf(f, "create-volume")
}

// DeleteVolume implements controller.Backend.
func (b *Backend) DeleteVolume(ctx context.Context, id string) (err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("delete-volume", time.Now(), &err)
	if !isUUID(id) {
		return nil
	}
	return b.do(ctx, operation{
		subject: volumeKey(id),
		name:    "delete-volume",
		look: func(ctx context.Context, _ *outcome) (bool, error) {
			v, err := b.find(ctx, id)
			if err != nil || v == nil {
				return err == nil, err
			}
			ss, err := b.snapshots(ctx, id, "")
			if err != nil {
				return false, err
			}
			if n := len(ss); n > 0 {
				return false, controller.Errorf(controller.InUse, "volume %s has %d snapshots, %s among them", id, n, snapshotID(id, ss[0].SnapshotId.Id))
			}
			return false, b.forget(ctx, createKey(v.Name), v.VolumeId.Id)
		},
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsDeleteVolume(ctx, s.cns, &cnstypes.CnsDeleteVolume{This: volumeManager, VolumeIds: []cnstypes.CnsVolumeId{volumeID(id)}, DeleteDisk: true})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(context.Context, cnstypes.BaseCnsVolumeOperationResult) error { return nil },
		explain: func(ctx context.Context, f *fault) error {
			switch {
			case f.has("ResourceInUse", "InvalidState"):
				return b.inUse(ctx, id, f)
			case f.has("NotFound"):
				// The host has lost the disk and CNS still has the volume on record: no
				// later try would find more. A task that is not known is another fault.
				return nil
			}
			return failf(f, "delete-volume %s", id)
		},
	})
}

// forget removes what is remembered about the name of something that is about
// to be deleted. It does so first: once the thing is gone its name is too.
func (b *Backend) forget(ctx context.Context, key, id string) error {
	rec, err := b.records.Get(ctx, key)
	if err == nil && rec.Done && rec.Result == id {
		err = b.records.Delete(ctx, key)
	}
	if err != nil && !errors.Is(err, record.ErrNotFound) {
		return recordError(err)
	}
	return nil
}

// inUse is the error for a volume that something holds, naming it.
func (b *Backend) inUse(ctx context.Context, id string, f *fault) error {
	ms, err := b.holders(ctx, id)
	if err != nil {
		return controller.Errorf(controller.InUse, "volume %s is in use: %w (its holder isn't known: %v)", id, f, err)
	}
	if len(ms) == 0 {
		return controller.Errorf(controller.InUse, "volume %s is in use, no virtual machine holds it: %w", id, f)
	}
	return controller.Errorf(controller.InUse, "volume %s is attached to %s: %w", id, describe(ms), f)
}

func describe(ms []*machine) string {
	var out []string
	for _, m := range ms {
		out = append(out, "virtual machine "+strconv.Quote(m.name)+" (node id "+m.uuid+")")
	}
	return strings.Join(out, ", ")
}

// Expand implements controller.Backend.
func (b *Backend) Expand(ctx context.Context, id string, size int64) (_ int64, err error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	defer b.metrics.observeCSI("expand-volume", time.Now(), &err)
	if !isUUID(id) {
		return 0, notFound(id)
	}
	var has int64
	err = b.do(ctx, operation{
		subject: volumeKey(id),
		name:    "expand-volume",
		params:  map[string]string{"bytes": strconv.FormatInt(size, 10)},
		look: func(ctx context.Context, _ *outcome) (bool, error) {
			v, err := b.find(ctx, id)
			if err != nil {
				return false, err
			}
			if v == nil {
				return false, notFound(id)
			}
			if has = capacityOf(v); has >= size {
				return true, nil
			}
			ss, err := b.snapshots(ctx, id, "")
			if err != nil {
				return false, err
			}
			if n := len(ss); n > 0 {
				// kubernetes-sigs/vsphere-csi-driver#2623
				return false, controller.Errorf(controller.InUse, "volume %s has %d snapshots, %s among them: it can't grow before they are deleted", id, n, snapshotID(id, ss[0].SnapshotId.Id))
			}
			return false, nil
		},
		start: func(ctx context.Context, s *session) (types.ManagedObjectReference, error) {
			res, err := cnsmethods.CnsExtendVolume(ctx, s.cns, &cnstypes.CnsExtendVolume{This: volumeManager,
				ExtendSpecs: []cnstypes.CnsVolumeExtendSpec{{VolumeId: volumeID(id), CapacityInMb: size / mib}}})
			if err != nil {
				return types.ManagedObjectReference{}, err
			}
			return res.Returnval, nil
		},
		end: func(context.Context, cnstypes.BaseCnsVolumeOperationResult) error { has = size; return nil },
	})
	return has, err
}

// Capacity implements controller.Backend.
func (b *Backend) Capacity(ctx context.Context, params, segment map[string]string) (controller.Capacity, error) {
	ctx, leave := b.enter(ctx)
	defer leave()
	p, err := parseParameters(params)
	if err != nil {
		return controller.Capacity{}, err
	}
	var asked []map[string]string
	if len(segment) > 0 {
		asked = append(asked, maps.Clone(segment))
	}
	c, err := b.place(ctx, p, nil, asked, "")
	if controller.KindOf(err) == controller.Exhausted {
		return controller.Capacity{}, nil
	}
	if err != nil {
		return controller.Capacity{}, err
	}
	var out controller.Capacity
	for _, d := range c.stores {
		free := d.free / mib * mib
		out.Available += free
		out.MaxVolume = max(out.MaxVolume, free)
	}
	return out, nil
}
