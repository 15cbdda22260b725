package cnsface_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/mo"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

func pv(name string, gone bool) cnstypes.BaseCnsEntityMetadata {
	return &cnstypes.CnsKubernetesEntityMetadata{
		CnsEntityMetadata: cnstypes.CnsEntityMetadata{EntityName: name, ClusterID: "k1", Delete: gone, Labels: []vim.KeyValue{{Key: "app", Value: name}}},
		EntityType:        "PERSISTENT_VOLUME",
	}
}

func pvc(name string) cnstypes.BaseCnsEntityMetadata {
	return &cnstypes.CnsKubernetesEntityMetadata{
		CnsEntityMetadata: cnstypes.CnsEntityMetadata{EntityName: name, ClusterID: "k1"},
		EntityType:        "PERSISTENT_VOLUME_CLAIM",
		Namespace:         "default",
		ReferredEntity:    []cnstypes.CnsKubernetesEntityReference{{EntityType: "PERSISTENT_VOLUME", EntityName: "pv", ClusterID: "k1"}},
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	id := l.create("a", 1)
	update := func(volume string, es ...cnstypes.BaseCnsEntityMetadata) outcome {
		t.Helper()
		return l.wait(l.cns.UpdateVolumeMetadata(l.ctx, []cnstypes.CnsVolumeMetadataUpdateSpec{{
			VolumeId: cnstypes.CnsVolumeId{Id: volume},
			Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: l.spec("", 0).Metadata.ContainerCluster, EntityMetadata: es},
		}}))
	}
	get := func() []cnstypes.BaseCnsEntityMetadata {
		t.Helper()
		r, err := l.cns.QueryVolume(l.ctx, &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}})
		if err != nil || len(r.Volumes) != 1 {
			t.Fatal(err, r)
		}
		return r.Volumes[0].Metadata.EntityMetadata
	}
	l.ok(update(id, pv("pv", false)))
	l.ok(update(id, pvc("claim")))
	if got := get(); !reflect.DeepEqual(got, []cnstypes.BaseCnsEntityMetadata{pv("pv", false), pvc("claim")}) {
		t.Errorf("merged: %+v", got)
	}
	l.ok(update(id, pv("pv", true)))
	if got := get(); len(got) != 1 {
		t.Errorf("deleted: %+v", got)
	}
	l.refused(notFound, update("nope", pv("pv", false)))
	l.refused(invalidArg, update(id, pv("pv", false), pv("pv", false)))
	l.refused(taskInvalid, l.wait(l.cns.UpdateVolumeMetadata(l.ctx, nil)))
	r, err := l.cns.QueryVolume(l.ctx, &cnstypes.CnsKubernetesQueryFilter{PvcNames: []string{"claim"}, Namespaces: []string{"default"}})
	if err != nil || len(r.Volumes) != 1 {
		t.Errorf("by claim: %v %+v", err, r)
	}
}

func TestQueries(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	var ids []string
	for i := range 12 {
		s := l.spec(fmt.Sprint("pvc-", i%6), 1)
		s.Datastores = []vim.ManagedObjectReference{l.ds[i%2].Reference()}
		ids = append(ids, l.createSpec(s))
	}
	list := func(vs []cnstypes.CnsVolume) string {
		var out []string
		for _, v := range vs {
			out = append(out, v.VolumeId.Id)
		}
		return strings.Join(out, " ")
	}
	async := func(f cnstypes.CnsQueryFilter, sel *cnstypes.CnsQuerySelection) cnstypes.CnsQueryResult {
		t.Helper()
		return l.ok(l.wait(l.cns.QueryVolumeAsync(l.ctx, f, sel))).(*cnstypes.CnsAsyncQueryResult).QueryResult
	}
	for name, x := range map[string]struct {
		f    cnstypes.CnsQueryFilter
		want []string
	}{
		"all":       {cnstypes.CnsQueryFilter{}, ids},
		"id":        {cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: ids[5]}, {Id: "nope"}}}, ids[5:6]},
		"name":      {cnstypes.CnsQueryFilter{Names: []string{"pvc-1"}}, []string{ids[1], ids[7]}},
		"cluster":   {cnstypes.CnsQueryFilter{ContainerClusterIds: []string{"k2"}}, nil},
		"datastore": {cnstypes.CnsQueryFilter{Datastores: []vim.ManagedObjectReference{l.ds[1].Reference()}, Names: []string{"pvc-1", "pvc-2"}}, []string{ids[1], ids[7]}},
		"health":    {cnstypes.CnsQueryFilter{HealthStatus: "red"}, nil},
	} {
		q, err := l.cns.QueryVolume(l.ctx, &x.f)
		if err != nil {
			t.Fatal(err)
		}
		all, err := l.cns.QueryAllVolume(l.ctx, x.f, cnstypes.CnsQuerySelection{})
		if err != nil {
			t.Fatal(err)
		}
		a := async(x.f, nil)
		want := strings.Join(x.want, " ")
		if list(q.Volumes) != want || list(all.Volumes) != want || list(a.Volumes) != want {
			t.Errorf("%s: query %q, all %q, async %q, want %q", name, list(q.Volumes), list(all.Volumes), list(a.Volumes), want)
		}
		if n := int64(len(x.want)); q.Cursor.TotalRecords != n || q.Cursor.Offset != n || q.Cursor.Limit != 100 {
			t.Errorf("%s: cursor %+v", name, q.Cursor)
		}
	}

	page := cnstypes.CnsQueryFilter{Cursor: &cnstypes.CnsCursor{Offset: 5, Limit: 4}}
	q, err := l.cns.QueryVolume(l.ctx, &page)
	if err != nil || list(q.Volumes) != strings.Join(ids[5:9], " ") || q.Cursor.Offset != 9 || q.Cursor.TotalRecords != 12 {
		t.Errorf("page: %v %+v", err, q)
	}
	sel := []string{string(cnstypes.QuerySelectionNameTypeVolumeName)}
	for how, vs := range map[string][]cnstypes.CnsVolume{
		"all": func() []cnstypes.CnsVolume {
			r, err := l.cns.QueryAllVolume(l.ctx, page, cnstypes.CnsQuerySelection{Names: sel})
			if err != nil {
				t.Fatal(err)
			}
			return r.Volumes
		}(),
		"async": async(page, &cnstypes.CnsQuerySelection{Names: sel}).Volumes,
	} {
		if len(vs) != 4 || vs[0].Name != "pvc-5" || vs[0].VolumeId.Id != ids[5] || vs[0].HealthStatus != "" || vs[0].BackingObjectDetails != nil {
			t.Errorf("%s: selection %+v", how, vs)
		}
	}
	l.datastore(1, func(ds *mo.Datastore) { ds.Summary.Accessible = false })
	if q, err := l.cns.QueryVolume(l.ctx, &cnstypes.CnsQueryFilter{HealthStatus: "red"}); err != nil || len(q.Volumes) != 6 {
		t.Errorf("on a datastore that is away: %v %+v", err, q)
	}
	_, err = l.cns.QueryVolume(l.ctx, &cnstypes.CnsQueryFilter{VolumeIds: make([]cnstypes.CnsVolumeId, 1001)})
	if _, ok := soapFaultOf(err).(vim.InvalidArgument); !ok {
		t.Errorf("1001 ids: %v", err)
	}

	l.ok(l.attach(ids[0], l.vms[0]))
	info := l.ok(l.wait(l.cns.QueryVolumeInfo(l.ctx, []cnstypes.CnsVolumeId{{Id: ids[0]}}))).(*cnstypes.CnsQueryVolumeInfoResult)
	o := info.VolumeInfo.(*cnstypes.CnsBlockVolumeInfo).VStorageObject.Config
	if o.Id.Id != ids[0] || o.CapacityInMB != 1 || len(o.ConsumerId) != 1 || !*o.KeepAfterDeleteVm ||
		!strings.HasSuffix(o.Backing.(*vim.BaseConfigInfoDiskFileBackingInfo).FilePath, "fcd/"+cns.BackingName(ids[0])+".vmdk") || strings.Contains(o.Backing.(*vim.BaseConfigInfoDiskFileBackingInfo).FilePath, ids[0]) {
		t.Errorf("info %+v", o)
	}
	l.refused(notFound, l.wait(l.cns.QueryVolumeInfo(l.ctx, []cnstypes.CnsVolumeId{{Id: "nope"}})))
}

// TestSeed: ids are a pure function of the seed and what is asked for.
func TestSeed(t *testing.T) {
	t.Parallel()
	one, two := newLab(t), newLab(t)
	a, b := one.create("a", 1), one.create("b", 1)
	two.create("c", 1) // in between, and in another order
	if x, y := two.create("b", 1), two.create("a", 1); x != b || y != a {
		t.Errorf("ids %s %s, then %s %s", a, b, y, x)
	}
	s := one.ok(one.snapshot(a, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId.Id
	two.ok(two.snapshot(a, "other"))
	if x := two.ok(two.snapshot(a, "s")).(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId.Id; x != s {
		t.Errorf("snapshot %s, then %s", s, x)
	}
}
