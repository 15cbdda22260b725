package vcenter_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/find"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/mo"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm"
	vslmtypes "github.com/vmware/govmomi/vslm/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// fcds is a vCenter with clients of both managers of first class disks.
type fcds struct {
	*rig
	vim    *vslm.ObjectManager
	global *vslm.GlobalObjectManager
	vslm   *vslm.Client
	vdisks *object.VirtualDiskManager
	ds     []*object.Datastore
	dc     *object.Datacenter
	store  disk.Store
}

func newFCDs(t *testing.T, cfg vcenter.Config) *fcds {
	t.Helper()
	f := &fcds{store: disk.NewMemory()}
	t.Cleanup(func() { f.store.Close() })
	if cfg.Disks == nil {
		cfg.Disks = f.store
	}
	f.rig = newRig(t, cfg)
	f.connect()
	return f
}

func (f *fcds) connect() {
	f.t.Helper()
	c := f.Client.Client
	var err error
	if f.vslm, err = vslm.NewClient(f.ctx, c); err != nil {
		f.t.Fatal(err)
	}
	f.global, f.vim, f.vdisks = vslm.NewGlobalObjectManager(f.vslm), vslm.NewObjectManager(c), object.NewVirtualDiskManager(c)
	finder := find.NewFinder(c)
	if f.dc, err = finder.DefaultDatacenter(f.ctx); err != nil {
		f.t.Fatal(err)
	}
	finder.SetDatacenter(f.dc)
	if f.ds, err = finder.DatastoreList(f.ctx, "*"); err != nil {
		f.t.Fatal(err)
	}
}

// done waits for a task of vim25.
func (f *fcds) done(task *object.Task, err error) (types.AnyType, error) {
	if err != nil {
		return nil, err
	}
	info, err := task.WaitForResultEx(f.ctx)
	if err != nil {
		return nil, err
	}
	return info.Result, nil
}

// ended waits for a task of VSLM.
func (f *fcds) ended(task *vslm.Task, err error) (types.AnyType, error) {
	if err != nil {
		return nil, err
	}
	return task.Wait(f.ctx, time.Minute)
}

func (f *fcds) must(r types.AnyType, err error) types.AnyType {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

func (f *fcds) refused(want types.BaseMethodFault, _ any, err error) {
	f.t.Helper()
	if !fault.Is(err, want) {
		f.t.Errorf("got %T (%v), want %T", err, err, want)
	}
}

func (f *fcds) spec(name string, mb int64, ds int) types.VslmCreateSpec {
	return types.VslmCreateSpec{Name: name, CapacityInMB: mb, BackingSpec: &types.VslmCreateSpecDiskFileBackingSpec{
		VslmCreateSpecBackingSpec: types.VslmCreateSpecBackingSpec{Datastore: f.ds[ds].Reference()}}}
}

// fcd makes a first class disk.
func (f *fcds) fcd(name string) string {
	f.t.Helper()
	return f.must(f.ended(f.global.CreateDisk(f.ctx, f.spec(name, 16, 0)))).(types.VStorageObject).Config.Id.Id
}

func (f *fcds) retrieve(id string) types.VStorageObjectConfigInfo {
	f.t.Helper()
	o, err := f.global.Retrieve(f.ctx, types.ID{Id: id})
	if err != nil {
		f.t.Fatal(err)
	}
	return o.Config
}

func (f *fcds) write(id string, off int64, s string) {
	f.t.Helper()
	im, err := f.store.Open(id)
	if err != nil {
		f.t.Fatal(err)
	}
	defer im.Close()
	if _, err := im.WriteAt([]byte(s), off); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fcds) read(id string, off int64, n int) string {
	f.t.Helper()
	im, err := f.store.Open(id)
	if err != nil {
		f.t.Fatal(err)
	}
	defer im.Close()
	b := make([]byte, n)
	if _, err := im.ReadAt(b, off); err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// TestFCDOverVim: what govc disk.* does, through the VStorageObjectManager of
// vim25, which wants the datastore with each id.
func TestFCDOverVim(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	ctx, m, ds := f.ctx, f.vim, f.ds[0]
	spec := f.spec("one", 16, 0)
	if err := m.PlaceDisk(ctx, &spec, types.ManagedObjectReference{}); err != nil {
		t.Error(err)
	}
	id := f.must(f.done(m.CreateDisk(ctx, spec))).(types.VStorageObject).Config.Id.Id
	o, err := m.Retrieve(ctx, ds, id)
	if err != nil || o.Config.Name != "one" || o.Config.CapacityInMB != 16 || *o.Config.KeepAfterDeleteVm {
		t.Errorf("%+v, %v", o, err)
	}
	b := o.Config.Backing.(*types.BaseConfigInfoDiskFileBackingInfo)
	if b.FilePath != fmt.Sprintf("[%s] fcd/%s.vmdk", ds.Name(), core.BackingName(id)) || b.Datastore != ds.Reference() || b.ProvisioningType != "thin" {
		t.Errorf("backing %+v", b)
	}
	if ids, err := m.List(ctx, ds); err != nil || !slices.Equal(ids, []types.ID{{Id: id}}) {
		t.Errorf("list %v, %v", ids, err)
	}
	if ids, err := m.List(ctx, f.ds[1]); err != nil || len(ids) != 0 {
		t.Errorf("list of the other datastore %v, %v", ids, err)
	}
	_, err = m.Retrieve(ctx, f.ds[1], id)
	f.refused(&types.NotFound{}, nil, err)
	if err := m.Rename(ctx, ds, id, "uno"); err != nil || f.retrieve(id).Name != "uno" {
		t.Error(err, f.retrieve(id).Name)
	}
	f.must(f.done(m.ExtendDisk(ctx, ds, id, 32)))
	if c := f.retrieve(id).CapacityInMB; c != 32 {
		t.Errorf("%d MB after the extend", c)
	}
	_, err = f.done(m.ExtendDisk(ctx, ds, id, 8))
	f.refused(&types.InvalidArgument{}, nil, err)
	f.must(f.done(m.InflateDisk(ctx, ds, id)))
	if p := f.retrieve(id).Backing.(*types.BaseConfigInfoDiskFileBackingInfo).ProvisioningType; p != "eagerZeroedThick" {
		t.Errorf("inflated: %s", p)
	}

	snap := f.must(f.done(m.CreateSnapshot(ctx, ds, id, "before"))).(types.ID).Id
	info, err := m.RetrieveSnapshotInfo(ctx, ds, id)
	if err != nil || len(info.Snapshots) != 1 || info.Snapshots[0].Id.Id != snap || info.Snapshots[0].Description != "before" {
		t.Errorf("snapshots %+v, %v", info, err)
	}
	_, err = f.done(m.Delete(ctx, ds, id))
	f.refused(&types.InvalidState{}, nil, err)
	_, err = f.done(m.DeleteSnapshot(ctx, ds, id, "nope"))
	f.refused(&types.NotFound{}, nil, err)
	f.must(f.done(m.DeleteSnapshot(ctx, ds, id, snap)))
	_, err = f.done(m.DeleteSnapshot(ctx, ds, id, snap))
	f.refused(&types.NotFound{}, nil, err)

	f.write(id, 0, "content")
	clone := f.must(f.done(m.Clone(ctx, ds, id, types.VslmCloneSpec{Name: "copy", VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}}))).(types.VStorageObject)
	if got := f.read(clone.Config.Id.Id, 0, 7); got != "content" || clone.Config.CapacityInMB != 32 {
		t.Errorf("clone has %q, %+v", got, clone)
	}
	f.must(f.done(m.ReconcileDatastoreInventory(ctx, ds)))
	f.must(f.done(m.Delete(ctx, ds, id)))
	_, err = f.done(m.Delete(ctx, ds, id))
	f.refused(&types.NotFound{}, nil, err)
	_, err = f.done(m.CreateDisk(ctx, types.VslmCreateSpec{Name: "x", CapacityInMB: 1, BackingSpec: &types.VslmCreateSpecDiskFileBackingSpec{
		VslmCreateSpecBackingSpec: types.VslmCreateSpecBackingSpec{Datastore: types.ManagedObjectReference{Type: "Datastore", Value: "datastore-nope"}}}}))
	f.refused(&types.ManagedObjectNotFound{}, nil, err)
}

// TestFCDOverVSLM: the manager of VSLM finds a disk by its id, on whichever
// datastore; its tasks are its own.
func TestFCDOverVSLM(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	ctx, m := f.ctx, f.global
	task, err := m.CreateDisk(ctx, f.spec("one", 16, 0))
	if err != nil {
		t.Fatal(err)
	}
	o := f.must(task.Wait(ctx, time.Minute)).(types.VStorageObject)
	info, err := task.QueryInfo(ctx)
	if err != nil || info.State != vslmtypes.VslmTaskInfoStateSuccess || info.Task != task.ManagedObjectReference || info.Task.Type != "VslmTask" || info.CompleteTime == nil {
		t.Errorf("task %+v, %v", info, err)
	}
	if r, err := task.QueryResult(ctx); err != nil || r.(types.VStorageObject).Config.Id != o.Config.Id {
		t.Errorf("result %+v, %v", r, err)
	}
	f.refused(&types.NotSupported{}, nil, task.Cancel(ctx))
	_, err = vslm.NewTask(f.vslm, types.ManagedObjectReference{Type: "VslmTask", Value: "task-7"}).QueryInfo(ctx)
	f.refused(&types.ManagedObjectNotFound{}, nil, err)
	id := o.Config.Id

	// Settings.
	if err := m.Rename(ctx, id, "uno"); err != nil {
		t.Error(err)
	}
	if err := m.SetControlFlags(ctx, id, []string{"keepAfterDeleteVm", "disableRelocation", "enableChangedBlockTracking"}); err != nil {
		t.Error(err)
	}
	if c := f.retrieve(id.Id); c.Name != "uno" || !*c.KeepAfterDeleteVm || !*c.RelocationDisabled || !*c.ChangedBlockTrackingEnabled {
		t.Errorf("after the flags: %+v", c)
	}
	f.refused(&types.InvalidArgument{}, nil, m.SetControlFlags(ctx, id, []string{"immortal"}))
	relocate := types.VslmRelocateSpec{VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}}
	_, err = f.ended(m.Relocate(ctx, id, relocate))
	f.refused(&types.InvalidState{}, nil, err)
	if err := m.ClearControlFlags(ctx, id); err != nil {
		t.Error(err)
	}
	if c := f.retrieve(id.Id); *c.KeepAfterDeleteVm || *c.RelocationDisabled || *c.ChangedBlockTrackingEnabled {
		t.Errorf("after they were cleared: %+v", c)
	}
	f.must(f.ended(m.Relocate(ctx, id, relocate)))
	if c := f.retrieve(id.Id); c.Backing.GetBaseConfigInfoBackingInfo().Datastore != f.ds[1].Reference() {
		t.Errorf("relocated: %+v", c.Backing)
	}
	f.must(f.ended(m.ExtendDisk(ctx, id, 32)))
	f.must(f.ended(m.InflateDisk(ctx, id)))
	f.must(f.ended(m.UpdatePolicy(ctx, id, nil)))
	if s, err := m.RetrieveState(ctx, id); err != nil || *s.Tentative {
		t.Errorf("state %+v, %v", s, err)
	}

	// Key/value pairs, now and at a snapshot.
	f.must(f.ended(m.UpdateMetadata(ctx, id, []types.KeyValue{{Key: "app.a", Value: "1"}, {Key: "app.b", Value: "2"}, {Key: "x", Value: "3"}}, nil)))
	snap := f.must(f.ended(m.CreateSnapshot(ctx, id, "first"))).(types.ID)
	f.must(f.ended(m.UpdateMetadata(ctx, id, []types.KeyValue{{Key: "app.a", Value: "9"}}, []string{"x"})))
	if kv, err := m.RetrieveMetadata(ctx, id, nil, "app."); err != nil || len(kv) != 2 || kv[0].Value != "9" {
		t.Errorf("metadata %+v, %v", kv, err)
	}
	if kv, err := m.RetrieveMetadata(ctx, id, &snap, ""); err != nil || len(kv) != 3 || kv[0].Value != "1" {
		t.Errorf("metadata of the snapshot %+v, %v", kv, err)
	}
	if v, err := m.RetrieveMetadataValue(ctx, id, &snap, "x"); err != nil || v != "3" {
		t.Errorf("value %q, %v", v, err)
	}
	_, err = m.RetrieveMetadataValue(ctx, id, nil, "x")
	f.refused(&types.KeyNotFound{}, nil, err)
	_, err = f.ended(m.UpdateMetadata(ctx, id, []types.KeyValue{{Key: "a"}, {Key: "a"}}, nil))
	f.refused(&types.InvalidArgument{}, nil, err)

	// Snapshots: restore, revert.
	f.write(id.Id, 0, "old")
	second := f.must(f.ended(m.CreateSnapshot(ctx, id, "second"))).(types.ID)
	f.write(id.Id, 0, "new")
	third := f.must(f.ended(m.CreateSnapshot(ctx, id, "third"))).(types.ID)
	restored := f.must(f.ended(m.CreateDiskFromSnapshot(ctx, id, second, "restored", nil, nil, "elsewhere"))).(types.VStorageObject)
	if got := f.read(restored.Config.Id.Id, 0, 3); got != "old" || restored.Config.CapacityInMB != 32 {
		t.Errorf("restored %q, %+v", got, restored)
	}
	if p := restored.Config.Backing.(*types.BaseConfigInfoDiskFileBackingInfo).FilePath; !strings.HasPrefix(p, "["+f.ds[1].Name()+"] elsewhere/") {
		t.Errorf("restored to %s", p)
	}
	f.must(f.ended(m.Revert(ctx, id, second)))
	if s, err := m.RetrieveSnapshotInfo(ctx, id); err != nil || len(s) != 2 || f.read(id.Id, 0, 3) != "old" {
		t.Errorf("after the revert %+v, %v", s, err)
	}
	_, err = f.ended(m.Revert(ctx, id, third))
	f.refused(&types.NotFound{}, nil, err)
	if d, err := m.RetrieveSnapshotDetails(ctx, id, second); err != nil || d.Path == "" || d.ChangedBlockTrackingId != "" {
		t.Errorf("details %+v, %v", d, err)
	}
	rs, err := m.RetrieveObjects(ctx, []types.ID{id, {Id: "nope"}})
	if err != nil || len(rs) != 2 || len(rs[0].SnapshotInfo) != 2 || rs[0].DatastoreUrl == "" || rs[1].Error == nil || rs[1].CapacityInMB != -1 {
		t.Errorf("objects %+v, %v", rs, err)
	}
	f.must(f.ended(m.DeleteSnapshot(ctx, id, second)))
	f.must(f.ended(m.DeleteSnapshot(ctx, id, snap)))
	clone := f.must(f.ended(m.Clone(ctx, id, types.VslmCloneSpec{Name: "copy", KeepAfterDeleteVm: types.NewBool(true), VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 0).BackingSpec}}))).(types.VStorageObject)
	if got := f.read(clone.Config.Id.Id, 0, 3); got != "old" || !*clone.Config.KeepAfterDeleteVm {
		t.Errorf("clone has %q, %+v", got, clone)
	}

	// The catalogue.
	if s, err := m.QueryGlobalCatalogSyncStatus(ctx); err != nil || len(s) != 2 || s[0].ObjectVClock != s[0].SyncVClock {
		t.Errorf("sync %+v, %v", s, err)
	}
	if s, err := m.QueryGlobalCatalogSyncStatusForDatastore(ctx, rs[0].DatastoreUrl); err != nil || s.DatastoreURL != rs[0].DatastoreUrl {
		t.Errorf("sync %+v, %v", s, err)
	}
	_, err = m.QueryGlobalCatalogSyncStatusForDatastore(ctx, "ds:///nope/")
	f.refused(&types.NotFound{}, nil, err)
	f.must(f.ended(m.ReconcileDatastoreInventory(ctx, f.ds[0])))
	if err := m.ScheduleReconcileDatastoreInventory(ctx, f.ds[0]); err != nil {
		t.Error(err)
	}
	if p, err := m.RetrieveInfrastructurePolicy(ctx, f.ds[0]); err != nil || len(p) != 0 {
		t.Errorf("policies %+v, %v", p, err)
	}
	_, err = m.UpdateInfrastructurePolicy(ctx, types.VslmInfrastructureObjectPolicySpec{Datastore: f.ds[0].Reference()})
	f.refused(&types.NotSupported{}, nil, err)

	f.must(f.ended(m.Delete(ctx, id)))
	_, err = m.Retrieve(ctx, id)
	f.refused(&types.NotFound{}, nil, err)
	_, err = f.ended(m.Delete(ctx, id))
	f.refused(&types.NotFound{}, nil, err)
}

// TestFCDList: conditions and pages, as govmomi's own test of its List has them.
func TestFCDList(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{Datastores: []vcenter.Datastore{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "d"}}})
	before := time.Now().Format(time.RFC3339Nano)
	for i := range f.ds {
		for j, ns := range []string{"foo", "bar", "baz"} {
			s := f.spec(fmt.Sprintf("%s-disk-%d", ns, i+j), int64(i+j+1)*10, i)
			s.Metadata = []types.KeyValue{{Key: "namespace", Value: ns}, {Key: "name", Value: s.Name}}
			f.must(f.ended(f.global.CreateDisk(f.ctx, s)))
		}
	}
	q := func(field, op string, values ...string) vslmtypes.VslmVsoVStorageObjectQuerySpec {
		return vslmtypes.VslmVsoVStorageObjectQuerySpec{QueryField: field, QueryOperator: op, QueryValue: values}
	}
	type query = []vslmtypes.VslmVsoVStorageObjectQuerySpec
	for name, x := range map[string]struct {
		want int // -1: refused
		q    query
	}{
		"all":                     {12, nil},
		"unknown field":           {-1, query{q("invalid", "equals", "any")}},
		"backing object":          {-1, query{q("backingObjectId", "equals", "any")}},
		"unknown operator":        {-1, query{q("name", "invalid", "any")}},
		"no value":                {-1, query{q("name", "equals")}},
		"two values":              {-1, query{q("name", "equals", "one", "two")}},
		"operator of texts":       {-1, query{q("capacity", "startsWith", "10")}},
		"no number":               {-1, query{q("capacity", "greaterThan", "ten")}},
		"no time":                 {-1, query{q("createTime", "greaterThan", "now")}},
		"larger":                  {3, query{q("capacity", "greaterThan", "40")}},
		"at least":                {6, query{q("capacity", "greaterThanOrEqual", "40")}},
		"not this large":          {11, query{q("capacity", "notEquals", "10")}},
		"too large":               {0, query{q("capacity", "greaterThan", "5000")}},
		"on a datastore":          {3, query{q("datastoreMoId", "equals", strings.TrimPrefix(f.ds[0].Reference().Value, "datastore-"))}},
		"by full reference":       {3, query{q("datastoreMoId", "equals", f.ds[0].Reference().Value)}},
		"key and value":           {4, query{q("metadataKey", "equals", "namespace"), q("metadataValue", "equals", "foo")}},
		"name starts":             {4, query{q("name", "startsWith", "bar")}},
		"name contains":           {12, query{q("name", "contains", "disk")}},
		"name ends":               {2, query{q("name", "endsWith", "-1")}},
		"both":                    {0, query{q("name", "startsWith", "foo"), q("name", "startsWith", "bar")}},
		"younger":                 {12, query{q("createTime", "greaterThan", before)}},
		"older":                   {0, query{q("createTime", "lessThan", before)}},
		"operator of other times": {-1, query{q("createTime", "contains", before)}},
	} {
		res, err := f.global.ListObjectsForSpec(f.ctx, x.q, 1000)
		switch {
		case x.want < 0:
			if err == nil {
				t.Errorf("%s: not refused", name)
			}
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case len(res.Id) != x.want || len(res.QueryResults) != x.want || !res.AllRecordsReturned:
			t.Errorf("%s: %d, want %d", name, len(res.Id), x.want)
		}
	}
	var pages [][]types.ID
	last := ""
	for {
		var after query
		if last != "" {
			after = query{q("id", "greaterThan", last)}
		}
		res, err := f.global.ListObjectsForSpec(f.ctx, after, 5)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, res.Id)
		last = res.Id[len(res.Id)-1].Id
		if res.AllRecordsReturned {
			break
		}
	}
	all := slices.Concat(pages...)
	if len(pages) != 3 || len(all) != 12 || !slices.IsSortedFunc(all, func(a, b types.ID) int { return strings.Compare(a.Id, b.Id) }) {
		t.Errorf("pages %v", pages)
	}
	if res, err := f.global.List(f.ctx); err != nil || len(res.Id) != 12 {
		t.Errorf("%v, %v", res, err)
	}
	_, err := f.global.ListObjectsForSpec(f.ctx, nil, 0)
	f.refused(&types.InvalidArgument{}, nil, err)
}

// TestVSLMSession: the endpoint takes the session of vim25 in the header of
// that name only.
func TestVSLMSession(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	if _, err := f.global.ListObjectsForSpec(f.ctx, nil, 10); err != nil {
		t.Fatal(err)
	}
	mine := f.Client.Client.SessionCookie()
	mine.XMLName.Local = "myCookie"
	f.vslm.Cookie = func() *soap.HeaderElement { return mine }
	_, err := f.global.ListObjectsForSpec(f.ctx, nil, 10)
	f.refused(&types.NotAuthenticated{}, nil, err)
}

// TestRegisterDisk: a virtual disk that was made by path becomes a first class
// disk, and a volume; each once.
func TestRegisterDisk(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	ctx := f.ctx
	path := f.ds[0].Path("vms/data.vmdk")
	urlOf := func(ds *object.Datastore, path string) string {
		return fmt.Sprintf("https://vc/folder/%s?dcPath=%s&dsName=%s", path, url.QueryEscape(f.dc.Name()), url.QueryEscape(ds.Name()))
	}
	make := func(path string, kb int64) error {
		_, err := f.done(f.vdisks.CreateVirtualDisk(ctx, path, f.dc, &types.FileBackedVirtualDiskSpec{
			VirtualDiskSpec: types.VirtualDiskSpec{DiskType: string(types.VirtualDiskTypeThin), AdapterType: string(types.VirtualDiskAdapterTypeLsiLogic)}, CapacityKb: kb}))
		return err
	}
	if err := make(path, 20<<10); err != nil {
		t.Fatal(err)
	}
	f.refused(&types.FileAlreadyExists{}, nil, make(path, 1<<10))
	f.refused(&types.InvalidDatastorePath{}, nil, make("[nowhere] a.vmdk", 1<<10))
	f.refused(&types.InvalidDatastorePath{}, nil, make("["+f.ds[0].Name()+"] ../a.vmdk", 1<<10))
	f.refused(&types.InvalidArgument{}, nil, make(f.ds[0].Path("b.vmdk"), -1))
	uuid, err := f.vdisks.QueryVirtualDiskUuid(ctx, path, f.dc)
	if err != nil || !strings.HasPrefix(uuid, "60 00 c2 9") || len(uuid) != 47 {
		t.Errorf("uuid %q, %v", uuid, err)
	}
	f.must(f.done(f.vdisks.ExtendVirtualDisk(ctx, path, f.dc, 32<<10, nil)))
	f.must(f.done(f.vdisks.CopyVirtualDisk(ctx, path, f.dc, f.ds[1].Path("copy.vmdk"), nil, nil, false)))
	f.must(f.done(f.vdisks.MoveVirtualDisk(ctx, f.ds[1].Path("copy.vmdk"), f.dc, f.ds[1].Path("moved.vmdk"), nil, false)))
	_, err = f.done(f.vdisks.DeleteVirtualDisk(ctx, f.ds[1].Path("copy.vmdk"), f.dc))
	f.refused(&types.FileNotFound{}, nil, err)
	f.must(f.done(f.vdisks.DeleteVirtualDisk(ctx, f.ds[1].Path("moved.vmdk"), f.dc)))

	for _, bad := range []string{"", "data.vmdk", "https://vc/vms/data.vmdk", urlOf(f.ds[0], "vms/data.vmdk") + "x", strings.Replace(urlOf(f.ds[0], "vms/data.vmdk"), "dcPath=", "dcPath=x", 1)} {
		_, err := f.global.RegisterDisk(ctx, bad, "")
		f.refused(&types.InvalidArgument{}, nil, err)
	}
	_, err = f.global.RegisterDisk(ctx, urlOf(f.ds[1], "vms/data.vmdk"), "")
	f.refused(&types.FileNotFound{}, nil, err)
	o, err := f.global.RegisterDisk(ctx, urlOf(f.ds[0], "vms/data.vmdk"), "")
	if err != nil || o.Config.Name != "data" || o.Config.CapacityInMB != 32 || o.Config.Backing.(*types.BaseConfigInfoDiskFileBackingInfo).FilePath != path {
		t.Fatalf("%+v, %v", o, err)
	}
	// The fault names the disk: the upstream driver goes on with that.
	_, err = f.vim.RegisterDisk(ctx, urlOf(f.ds[0], "vms/data.vmdk"), "again")
	var exists *types.AlreadyExists
	if _, ok := fault.As(err, &exists); !ok || exists.Name != o.Config.Id.Id {
		t.Errorf("registered again: %v", err)
	}
	if again, err := f.vdisks.QueryVirtualDiskUuid(ctx, path, f.dc); err != nil || again != uuid {
		t.Errorf("uuid %q, %v", again, err)
	}

	// CNS makes a volume of it, by id or by path.
	s := volumeSpec("vol")
	s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskId: o.Config.Id.Id}
	task, err := f.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{s})
	r, _, err := f.result(ctx, task, err)
	if err != nil || r.VolumeId.Id != o.Config.Id.Id {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := make(f.ds[1].Path("legacy/x.vmdk"), 1<<10); err != nil {
		t.Fatal(err)
	}
	s.BackingObjectDetails = &cnstypes.CnsBlockBackingDetails{BackingDiskUrlPath: urlOf(f.ds[1], "legacy/x.vmdk")}
	task, err = f.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{s})
	if r, _, err = f.result(ctx, task, err); err != nil {
		t.Fatal(err)
	}
	if p := f.retrieve(r.VolumeId.Id).Backing.(*types.BaseConfigInfoDiskFileBackingInfo).FilePath; p != f.ds[1].Path("legacy/x.vmdk") {
		t.Errorf("lies at %s", p)
	}
	task, err = f.cns.CreateVolume(ctx, []cnstypes.CnsVolumeCreateSpec{s})
	again, _, err := f.result(ctx, task, err)
	if already, ok := again.Fault.Fault.(*cnstypes.CnsAlreadyRegisteredFault); err == nil || !ok || already.VolumeId != r.VolumeId {
		t.Errorf("%+v, %v", again, err)
	}
}

// TestFCDAttach: the disk is in the VM's hardware, the node has it, CNS and
// both managers say so; one VM at a time.
func TestFCDAttach(t *testing.T) {
	t.Parallel()
	hw := &plugs{}
	f := newFCDs(t, vcenter.Config{Hardware: hw})
	ctx, id := f.ctx, f.fcd("one")
	one, two := f.node("node-1"), f.node("node-2")
	disks := func(vm *object.VirtualMachine) (out []*types.VirtualDisk) {
		t.Helper()
		var m mo.VirtualMachine
		if err := vm.Properties(ctx, vm.Reference(), []string{"config.hardware"}, &m); err != nil {
			t.Fatal(err)
		}
		for _, d := range m.Config.Hardware.Device {
			if x, ok := d.(*types.VirtualDisk); ok && x.VDiskId != nil {
				out = append(out, x)
			}
		}
		return out
	}
	f.must(nil, one.AttachDisk(ctx, id, f.ds[0], 0, nil))
	ds := disks(one)
	if len(ds) != 1 || ds[0].VDiskId.Id != id || ds[0].CapacityInBytes != 16<<20 {
		t.Fatalf("hardware %+v", ds)
	}
	if got := hw.list(); len(got) != 1 || !strings.HasSuffix(got[0], " "+id) {
		t.Errorf("nodes have %v", got)
	}
	if c := f.retrieve(id).ConsumerId; len(c) != 1 || c[0].Id != f.v.VMUUID("node-1") {
		t.Errorf("consumers %v", c)
	}
	as, err := f.global.RetrieveAssociations(ctx, []types.ID{{Id: id}, {Id: "nope"}})
	if err != nil || len(as) != 2 || len(as[0].VmDiskAssociation) != 1 || as[0].VmDiskAssociation[0].VmId != one.Reference().Value || as[0].VmDiskAssociation[0].DiskKey != ds[0].Key || as[1].Fault == nil {
		t.Errorf("associations %+v, %v", as, err)
	}
	vas, err := methods.RetrieveVStorageObjectAssociations(ctx, f.Client.Client, &types.RetrieveVStorageObjectAssociations{
		This: *f.Client.ServiceContent.VStorageObjectManager, Ids: []types.RetrieveVStorageObjSpec{{Id: types.ID{Id: id}, Datastore: f.ds[0].Reference()}}})
	if err != nil || len(vas.Returnval) != 1 || len(vas.Returnval[0].VmDiskAssociations) != 1 {
		t.Errorf("associations %+v, %v", vas, err)
	}
	f.refused(&types.ResourceInUse{}, nil, two.AttachDisk(ctx, id, f.ds[0], 0, nil))
	_, err = f.ended(f.global.AttachDisk(ctx, types.ID{Id: id}, two, 0, nil))
	f.refused(&types.ResourceInUse{}, nil, err)
	f.refused(&types.NotFound{}, nil, two.AttachDisk(ctx, id, f.ds[1], 0, nil))
	// What rewrites or removes the disk waits until it is free.
	_, err = f.ended(f.global.Delete(ctx, types.ID{Id: id}))
	f.refused(&types.InvalidState{}, nil, err)
	_, err = f.ended(f.global.InflateDisk(ctx, types.ID{Id: id}))
	f.refused(&types.InvalidState{}, nil, err)
	_, err = f.ended(f.global.Relocate(ctx, types.ID{Id: id}, types.VslmRelocateSpec{VslmMigrateSpec: types.VslmMigrateSpec{BackingSpec: f.spec("", 0, 1).BackingSpec}}))
	f.refused(&types.InvalidState{}, nil, err)
	snap := f.must(f.ended(f.global.CreateSnapshot(ctx, types.ID{Id: id}, "online"))).(types.ID)
	_, err = f.ended(f.global.Revert(ctx, types.ID{Id: id}, snap))
	f.refused(&types.InvalidState{}, nil, err)
	f.must(f.ended(f.global.DeleteSnapshot(ctx, types.ID{Id: id}, snap)))
	_, err = f.done(f.vdisks.DeleteVirtualDisk(ctx, f.ds[0].Path("fcd/"+core.BackingName(id)+".vmdk"), f.dc))
	f.refused(&types.FileLocked{}, nil, err)
	f.must(f.ended(f.global.ExtendDisk(ctx, types.ID{Id: id}, 32)))
	if d := disks(one); d[0].CapacityInBytes != 32<<20 {
		t.Errorf("the VM sees %d bytes", d[0].CapacityInBytes)
	}

	f.refused(&types.InvalidArgument{}, nil, two.DetachDisk(ctx, id))
	f.must(nil, one.DetachDisk(ctx, id))
	f.refused(&types.InvalidArgument{}, nil, one.DetachDisk(ctx, id))
	f.refused(&types.NotFound{}, nil, one.DetachDisk(ctx, "nope"))
	if len(disks(one)) != 0 || len(hw.list()) != 0 || len(f.retrieve(id).ConsumerId) != 0 {
		t.Error("still attached somewhere")
	}
	// A place on a controller, through VSLM.
	key, unit := ds[0].ControllerKey, int32(9)
	f.must(f.ended(f.global.AttachDisk(ctx, types.ID{Id: id}, two, key, &unit)))
	if d := disks(two); len(d) != 1 || *d[0].UnitNumber != 9 || d[0].ControllerKey != key {
		t.Errorf("hardware %+v", d)
	}
	// A volume of CNS is such a disk too, and CNS sees who has it.
	vol := f.volume("vol")
	f.must(f.ended(f.global.AttachDisk(ctx, types.ID{Id: vol}, two, 0, nil)))
	if err := f.delete(ctx, vol); err == nil || !strings.Contains(err.Error(), "ResourceInUse") {
		t.Errorf("delete of a volume that is attached: %v", err)
	}
	if err := f.detach(ctx, vol, two.Reference()); err != nil {
		t.Error(err)
	}
}

// TestVirtualDisksOfVMs: files that a VM has can't be had by path.
func TestVirtualDisksOfVMs(t *testing.T) {
	t.Parallel()
	f := newFCDs(t, vcenter.Config{})
	var m mo.VirtualMachine
	vm := f.node("node-1")
	if err := vm.Properties(f.ctx, vm.Reference(), []string{"config.hardware"}, &m); err != nil {
		t.Fatal(err)
	}
	boot := object.VirtualDeviceList(m.Config.Hardware.Device).SelectByType((*types.VirtualDisk)(nil))[0].(*types.VirtualDisk).Backing.(*types.VirtualDiskFlatVer2BackingInfo)
	path := boot.FileName
	_, err := f.done(f.vdisks.CreateVirtualDisk(f.ctx, path, f.dc, &types.FileBackedVirtualDiskSpec{CapacityKb: 1024}))
	f.refused(&types.FileAlreadyExists{}, nil, err)
	_, err = f.done(f.vdisks.DeleteVirtualDisk(f.ctx, path, f.dc))
	f.refused(&types.FileLocked{}, nil, err)
	_, err = f.done(f.vdisks.ExtendVirtualDisk(f.ctx, path, f.dc, 1<<30, nil))
	f.refused(&types.FileLocked{}, nil, err)
	_, err = f.done(f.vdisks.MoveVirtualDisk(f.ctx, path, f.dc, f.ds[0].Path("x.vmdk"), nil, false))
	f.refused(&types.FileLocked{}, nil, err)
	if id, err := f.vdisks.QueryVirtualDiskUuid(f.ctx, path, f.dc); err != nil || strings.NewReplacer(" ", "", "-", "").Replace(id) != strings.ReplaceAll(boot.Uuid, "-", "") {
		t.Errorf("uuid %q of %q, %v", id, boot.Uuid, err)
	}
	_, rel, _ := strings.Cut(path, "] ")
	_, err = f.global.RegisterDisk(f.ctx, "https://vc/folder/"+rel+"?dcPath="+f.dc.Name()+"&dsName="+f.ds[0].Name(), "")
	f.refused(&types.NotSupported{}, nil, err)
	id := f.fcd("one")
	f.must(nil, vm.AttachDisk(f.ctx, id, f.ds[0], 0, nil))
	_, err = f.done(f.vdisks.ExtendVirtualDisk(f.ctx, f.ds[0].Path("fcd/"+core.BackingName(id)+".vmdk"), f.dc, 1<<20, nil))
	f.refused(&types.FileLocked{}, nil, err)
}
