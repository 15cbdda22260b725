package cnsface

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// CnsQueryVolume returns a page of the volumes that match; without a cursor,
// the first 100.
func (m *manager) CnsQueryVolume(ctx *simulator.Context, req *cnstypes.CnsQueryVolume) soap.HasFault {
	body := &methods.CnsQueryVolumeBody{}
	res, err := m.f.safely("CnsQueryVolume", func() (cnstypes.CnsQueryResult, error) { return m.f.query(req.Filter, nil, true) })
	if err != nil {
		body.Fault_ = soapFault(err)
		return body
	}
	body.Res = &cnstypes.CnsQueryVolumeResponse{Returnval: res}
	return body
}

// CnsQueryAllVolume returns all volumes that match, without pages unless the
// filter has a cursor.
func (m *manager) CnsQueryAllVolume(ctx *simulator.Context, req *cnstypes.CnsQueryAllVolume) soap.HasFault {
	body := &methods.CnsQueryAllVolumeBody{}
	res, err := m.f.safely("CnsQueryAllVolume", func() (cnstypes.CnsQueryResult, error) {
		return m.f.query(&req.Filter, req.Selection.Names, false)
	})
	if err != nil {
		body.Fault_ = soapFault(err)
		return body
	}
	body.Res = &cnstypes.CnsQueryAllVolumeResponse{Returnval: res}
	return body
}

// safely runs what is done within a call; what runs in a task has a net of
// its own.
func (f *Face) safely(op string, q func() (cnstypes.CnsQueryResult, error)) (res cnstypes.CnsQueryResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			f.log.Error("panic in a query", "op", op, "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("%v", p)
		}
	}()
	return q()
}

func soapFault(err error) *soap.Fault {
	f := wire("", err)
	return simulator.Fault(f.LocalizedMessage, f.Fault)
}

// CnsQueryAsync is CnsQueryVolume as a task.
func (m *manager) CnsQueryAsync(ctx *simulator.Context, req *cnstypes.CnsQueryAsync) soap.HasFault {
	j := job1("CnsQueryAsync", "", func(context.Context, *simulator.Context) (vim.AnyType, error) {
		var names []string
		if req.Selection != nil {
			names = req.Selection.Names
		}
		res, err := m.f.query(&req.Filter, names, true)
		if err != nil {
			return nil, &taskError{wire("CnsQueryAsync", err)}
		}
		return batch(&cnstypes.CnsAsyncQueryResult{QueryResult: res}), nil
	})
	return &methods.CnsQueryAsyncBody{Res: &cnstypes.CnsQueryAsyncResponse{Returnval: m.f.start(ctx, j)}}
}

// query selects volumes. paged: without a cursor only the first page.
func (f *Face) query(b cnstypes.BaseCnsQueryFilter, selection []string, paged bool) (cnstypes.CnsQueryResult, error) {
	filter, cur, err := filterOf(b, paged)
	if err != nil {
		return cnstypes.CnsQueryResult{}, err
	}
	f.inv.refresh(f.inv.context()) // for the health of what lies on them
	compliances := map[cns.Home]string{}
	if filter.Compliance != "" {
		f.mu.Lock()
		all := f.core.Homes()
		f.mu.Unlock()
		for h := range all {
			compliances[h] = f.compliance(h)
		}
		filter.Compliances = compliances
	}
	f.mu.Lock()
	page, err := f.core.Query(filter, cur)
	homes := make([]home, len(page.Volumes))
	for i, v := range page.Volumes {
		ds, _, _ := f.core.Datastore(v.Datastore)
		homes[i] = home{ds, f.core.Health(v), f.core.Access(v)}
	}
	f.mu.Unlock()
	if err != nil {
		return cnstypes.CnsQueryResult{}, err
	}
	res := cnstypes.CnsQueryResult{Cursor: cnstypes.CnsCursor{Offset: page.Next, Limit: cur.Limit, TotalRecords: page.Total}}
	for i, v := range page.Volumes {
		h := v.Home()
		if _, ok := compliances[h]; !ok {
			compliances[h] = f.compliance(h)
		}
		w := cnstypes.CnsVolume{
			VolumeId:        volumeID(v.ID),
			DatastoreUrl:    homes[i].URL,
			Name:            v.Name,
			VolumeType:      string(cnstypes.CnsVolumeTypeBlock),
			StoragePolicyId: v.PolicyID,
			Metadata:        metadataWire(v.Metadata),
			BackingObjectDetails: blockDetails{&cnstypes.CnsBlockBackingDetails{
				CnsBackingObjectDetails:        cnstypes.CnsBackingObjectDetails{CapacityInMb: v.CapacityMB},
				BackingDiskId:                  v.ID,
				BackingDiskUrlPath:             homes[i].urlOf(v.DiskPath),
				BackingDiskPath:                v.DiskPath,
				BackingDiskObjectId:            f.objectID(homes[i].Type, v.ID),
				AggregatedSnapshotCapacityInMb: v.SnapshotMB(),
			}},
			ComplianceStatus:             compliances[h],
			DatastoreAccessibilityStatus: homes[i].access,
			HealthStatus:                 homes[i].health,
		}
		if v.Share != nil {
			w.VolumeType, w.BackingObjectDetails = string(cnstypes.CnsVolumeTypeFile), shareWire(v)
		} else if f.release.atLeast(release92) {
			w.ChangedBlockTracking = cnstypes.CnsVolumeCBTStatus(v.CBT())
		}
		choose(&w, selection)
		res.Volumes = append(res.Volumes, w)
	}
	return res, nil
}

// compliance says whether a datastore meets the storage policy of a volume on
// it. Unverified: that volumes without a policy are notApplicable.
func (f *Face) compliance(h cns.Home) string {
	switch {
	case h.Policy == "":
		return cns.NotApplicable
	case f.cfg.Policies != nil && !f.cfg.Policies(h.Policy):
		return cns.Unknown
	case f.satisfies(h.Policy, h.Datastore) != nil:
		return cns.NonCompliant
	}
	return cns.Compliant
}

// home is where a volume lies, and how that is.
type home struct {
	cns.Datastore
	health, access string
}

// urlOf is the URL of a path such as "[ds] dir/a.vmdk".
func (h home) urlOf(path string) string {
	_, rel, _ := strings.Cut(path, "] ")
	return h.URL + rel
}

// objectID is the id of the object that backs a disk, which only datastores
// that are object stores have (govmomi's cns/client_test.go).
func (f *Face) objectID(datastoreType, disk string) string {
	switch datastoreType {
	case string(vim.HostFileSystemVolumeFileSystemTypeVsan):
		return uuid(f.ids.digest("vsan object", disk))
	case string(vim.HostFileSystemVolumeFileSystemTypeVVOL):
		// Unverified: the form of the ids of vVols.
		return "rfc4122." + uuid(f.ids.digest("vvol", disk))
	}
	return ""
}

// choose blanks what a selection doesn't name. The id is always given, and
// an empty selection means everything.
func choose(v *cnstypes.CnsVolume, names []string) {
	if len(names) == 0 {
		return
	}
	has := func(n cnstypes.QuerySelectionNameType) bool { return slices.Contains(names, string(n)) }
	full := *v
	*v = cnstypes.CnsVolume{VolumeId: full.VolumeId}
	if has(cnstypes.QuerySelectionNameTypeVolumeName) {
		v.Name = full.Name
	}
	if has(cnstypes.QuerySelectionNameTypeVolumeType) {
		v.VolumeType = full.VolumeType
	}
	if has(cnstypes.QuerySelectionNameTypeBackingObjectDetails) {
		v.BackingObjectDetails = full.BackingObjectDetails
	}
	if has(cnstypes.QuerySelectionNameTypeComplianceStatus) {
		v.ComplianceStatus = full.ComplianceStatus
	}
	if has(cnstypes.QuerySelectionNameTypeDataStoreAccessibility) {
		v.DatastoreAccessibilityStatus = full.DatastoreAccessibilityStatus
	}
	if has(cnstypes.QuerySelectionNameTypeHealthStatus) {
		v.HealthStatus = full.HealthStatus
	}
	if has(cnstypes.QuerySelectionNameTypeDataStoreUrl) {
		v.DatastoreUrl = full.DatastoreUrl
	}
	if has(cnstypes.QuerySelectionNameTypePolicyId) {
		v.StoragePolicyId = full.StoragePolicyId
	}
}

func filterOf(b cnstypes.BaseCnsQueryFilter, paged bool) (cns.Filter, cns.Cursor, error) {
	var out cns.Filter
	var cur cns.Cursor
	if b == nil || b.GetCnsQueryFilter() == nil {
		return out, cur, &cns.Error{Kind: cns.InvalidArgument, Field: "filter", Reason: "missing"}
	}
	f := b.GetCnsQueryFilter()
	for _, id := range f.VolumeIds {
		out.IDs = append(out.IDs, id.Id)
	}
	for _, ds := range f.Datastores {
		out.Datastores = append(out.Datastores, ds.Value)
	}
	for _, l := range f.Labels {
		out.Labels = append(out.Labels, cns.Label{Key: l.Key, Value: l.Value})
	}
	out.CBT = string(f.ChangedBlockTracking)
	out.Names, out.Clusters, out.PolicyID = f.Names, f.ContainerClusterIds, f.StoragePolicyId
	out.Compliance, out.Accessibility, out.Health = f.ComplianceStatus, f.DatastoreAccessibilityStatus, f.HealthStatus
	if k, ok := b.(*cnstypes.CnsKubernetesQueryFilter); ok {
		out.Namespaces, out.Pods, out.PVCs, out.PVs = k.Namespaces, k.PodNames, k.PvcNames, k.PvNames
	}
	return out, cursor(f.Cursor, paged), nil
}

// cursor: a limit that is missing is 100, one above 1000 is 1000.
// Unverified: whether CNS refuses the latter.
func cursor(c *cnstypes.CnsCursor, paged bool) cns.Cursor {
	out := cns.Cursor{}
	if c != nil {
		out = cns.Cursor{Offset: c.Offset, Limit: c.Limit}
	} else if !paged {
		return out
	}
	if out.Limit == 0 {
		out.Limit = cns.DefaultLimit
	}
	out.Limit = min(out.Limit, cns.MaxLimit)
	return out
}

// CnsQueryVolumeInfo describes the disks of volumes; an unknown one is a fault
// of its own result.
func (m *manager) CnsQueryVolumeInfo(ctx *simulator.Context, req *cnstypes.CnsQueryVolumeInfo) soap.HasFault {
	volume := ""
	if len(req.VolumeIds) > 0 {
		volume = req.VolumeIds[0].Id
	}
	j := job1("CnsQueryVolumeInfo", volume, func(context.Context, *simulator.Context) (vim.AnyType, error) {
		if len(req.VolumeIds) == 0 {
			return nil, &taskError{invalid("volumes")}
		}
		out := &cnstypes.CnsVolumeOperationBatchResult{}
		var refused error
		for _, id := range req.VolumeIds {
			r := &cnstypes.CnsQueryVolumeInfoResult{}
			r.VolumeId = id
			info, err := m.f.info(id.Id)
			if err != nil {
				r.Fault = wire("CnsQueryVolumeInfo", err)
				refused = err
			} else {
				r.VolumeInfo = info
			}
			out.VolumeResults = append(out.VolumeResults, r)
		}
		return out, refused
	})
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		r := &cnstypes.CnsQueryVolumeInfoResult{}
		r.VolumeId, r.Fault = volumeID(volume), f
		return batch(r)
	}
	return &methods.CnsQueryVolumeInfoBody{Res: &cnstypes.CnsQueryVolumeInfoResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) info(id string) (*cnstypes.CnsBlockVolumeInfo, error) {
	f.mu.Lock()
	v, err := f.core.Volume(id)
	holders := f.core.AttachmentsOf(id)
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if v.Share != nil {
		// Unverified: what CNS says about a file volume here.
		return nil, &cns.Error{Kind: cns.NotSupported, Field: "volumeIds", Value: id, Reason: "a file volume has no disk"}
	}
	if v.Lost {
		return nil, &cns.Error{Kind: cns.NotFound, Field: "volumeIds", Value: id, Reason: "its disk is gone"}
	}
	return &cnstypes.CnsBlockVolumeInfo{VStorageObject: f.storageObject(f.inv.context(), v.Disk, holders)}, nil
}

// CnsQuerySnapshots lists the snapshots of a volume, one of them, or all of
// all volumes, in pages.
func (m *manager) CnsQuerySnapshots(ctx *simulator.Context, req *cnstypes.CnsQuerySnapshots) soap.HasFault {
	specs := req.SnapshotQueryFilter.SnapshotQuerySpecs
	volume, snapshot := "", ""
	if len(specs) > 0 {
		volume = specs[0].VolumeId.Id
		if specs[0].SnapshotId != nil {
			snapshot = specs[0].SnapshotId.Id
		}
	}
	j := job1("CnsQuerySnapshots", volume, func(context.Context, *simulator.Context) (vim.AnyType, error) {
		if len(specs) > 1 {
			return nil, &taskError{invalid("CnsSnapshotQuerySpec")}
		}
		return m.f.querySnapshots(len(specs) == 0, volume, snapshot, req.SnapshotQueryFilter.Cursor)
	})
	j.Snapshot = snapshot
	j.failed = func(f *vim.LocalizedMethodFault) vim.AnyType {
		return &cnstypes.CnsSnapshotQueryResult{Entries: []cnstypes.CnsSnapshotQueryResultEntry{{Error: f}}}
	}
	return &methods.CnsQuerySnapshotsBody{Res: &cnstypes.CnsQuerySnapshotsResponse{Returnval: m.f.start(ctx, j)}}
}

func (f *Face) querySnapshots(all bool, volume, snapshot string, c *cnstypes.CnsCursor) (vim.AnyType, error) {
	cur := cursor(c, true)
	if cur.Offset < 0 || cur.Limit < 0 {
		return nil, &taskError{invalid("snapshotQueryFilter.cursor")}
	}
	var list []cns.Snapshot
	var err error
	f.mu.Lock()
	switch {
	case all:
		list = f.core.Snapshots()
	case snapshot != "":
		var s cns.Snapshot
		if s, err = f.core.Snapshot(volume, snapshot); err == nil {
			list = []cns.Snapshot{s}
		}
	default:
		var v cns.Volume
		if v, err = f.core.Volume(volume); err == nil {
			list = v.Snapshots
		}
	}
	f.mu.Unlock()
	res := &cnstypes.CnsSnapshotQueryResult{}
	if err != nil {
		// Here an unknown volume has a fault of its own.
		fault := wire("CnsQuerySnapshots", err)
		var e *cns.Error
		if errors.As(err, &e) && e.Kind == cns.NotFound {
			fault = local(&cnstypes.CnsVolumeNotFoundFault{CnsFault: cnstypes.CnsFault{Reason: e.Error()}, VolumeId: volumeID(volume)},
				"CnsVolumeNotFoundFault error: "+e.Reason)
		}
		res.Entries = []cnstypes.CnsSnapshotQueryResultEntry{{Error: fault}}
		return res, err
	}
	total := int64(len(list))
	from := min(cur.Offset, total)
	to := min(from+cur.Limit, total)
	for _, s := range list[from:to] {
		res.Entries = append(res.Entries, cnstypes.CnsSnapshotQueryResultEntry{Snapshot: f.snapshotWire(s)})
	}
	res.Cursor = cnstypes.CnsCursor{Offset: to, Limit: cur.Limit, TotalRecords: total}
	return res, nil
}
