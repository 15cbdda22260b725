package cnsface

import (
	"fmt"
	"testing"

	govcns "github.com/vmware/govmomi/cns"
	"github.com/vmware/govmomi/cns/methods"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	vim "github.com/vmware/govmomi/vim25/types"
)

// bare is a face on an inventory without a server: methods are called as
// vcsim calls them.
func bare(t testing.TB, cfg Config) (*Face, *manager) {
	t.Helper()
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.Install(SmallModel(t, 1).Service); err != nil {
		t.Fatal(err)
	}
	return f, &manager{govcns.CnsVolumeManagerInstance, f}
}

func (f *Face) request() *simulator.Context {
	c := f.inv.context()
	c.Session = &simulator.Session{UserSession: vim.UserSession{UserName: "u"}}
	return c
}

// volume makes a volume and returns its id.
func (m *manager) volume(t testing.TB, name string) string {
	ref := m.CnsCreateVolume(m.f.request(), &cnstypes.CnsCreateVolume{CreateSpecs: []cnstypes.CnsVolumeCreateSpec{{
		Name: name, VolumeType: "BLOCK",
		Metadata: cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{
			CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}}}}}).(*methods.CnsCreateVolumeBody).Res.Returnval
	m.f.tasks.Wait()
	info, _ := m.f.tasks.Info(ref.Value)
	if info.Error != nil {
		t.Fatalf("%+v", info.Error)
	}
	return info.Result.(*cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].GetCnsVolumeOperationResult().VolumeId.Id
}

func (m *manager) remove(id string) {
	m.CnsDeleteVolume(m.f.request(), &cnstypes.CnsDeleteVolume{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}, DeleteDisk: true})
	m.f.tasks.Wait()
}

// TestNothingPilesUp: what is deleted leaves nothing behind but its count of
// the name.
func TestNothingPilesUp(t *testing.T) {
	t.Parallel()
	f, m := bare(t, Config{KeepTasks: 10})
	for range 500 {
		id := m.volume(t, "same")
		m.CnsCreateSnapshots(f.request(), &cnstypes.CnsCreateSnapshots{SnapshotSpecs: []cnstypes.CnsSnapshotCreateSpec{{VolumeId: volumeID(id)}}})
		f.tasks.Wait()
		s := f.Snapshots()
		m.CnsDeleteSnapshots(f.request(), &cnstypes.CnsDeleteSnapshots{SnapshotDeleteSpecs: []cnstypes.CnsSnapshotDeleteSpec{{VolumeId: volumeID(id), SnapshotId: cnstypes.CnsSnapshotId{Id: s[0].ID}}}})
		f.tasks.Wait()
		m.remove(id)
	}
	seen := len(f.tasks.List())
	if seen != 10 || len(f.volumes.m)+len(f.vms.m)+len(f.deletes.m)+len(f.ids.snaps)+len(f.inv.unplugging) != 0 || len(f.ids.names) != 1 {
		t.Errorf("%d tasks, %d+%d locks, %d deletes, %d counts of snapshots, %d of names",
			seen, len(f.volumes.m), len(f.vms.m), len(f.deletes.m), len(f.ids.snaps), len(f.ids.names))
	}
	if len(f.Volumes())+len(f.Snapshots()) != 0 {
		t.Error("volumes left")
	}
}

// TestLargestPage: a page has 1000 volumes at most, whatever is asked for.
func TestLargestPage(t *testing.T) {
	t.Parallel()
	f, m := bare(t, Config{KeepTasks: 10})
	const n = 1001
	for i := range n {
		m.volume(t, fmt.Sprint("pvc-", i))
	}
	filter := cnstypes.CnsQueryFilter{Cursor: &cnstypes.CnsCursor{Limit: 5000}}
	for how, ask := range map[string]func() cnstypes.CnsQueryResult{
		"CnsQueryVolume": func() cnstypes.CnsQueryResult {
			return m.CnsQueryVolume(f.request(), &cnstypes.CnsQueryVolume{Filter: &filter}).(*methods.CnsQueryVolumeBody).Res.Returnval
		},
		"CnsQueryAllVolume": func() cnstypes.CnsQueryResult {
			return m.CnsQueryAllVolume(f.request(), &cnstypes.CnsQueryAllVolume{Filter: filter}).(*methods.CnsQueryAllVolumeBody).Res.Returnval
		},
	} {
		filter.Cursor = &cnstypes.CnsCursor{Limit: 5000}
		first := ask()
		if len(first.Volumes) != 1000 || first.Cursor != (cnstypes.CnsCursor{Offset: 1000, Limit: 1000, TotalRecords: n}) {
			t.Errorf("%s: %d volumes, cursor %+v", how, len(first.Volumes), first.Cursor)
		}
		filter.Cursor = &first.Cursor
		if rest := ask(); len(rest.Volumes) != 1 || rest.Cursor.Offset != n {
			t.Errorf("%s: then %d volumes, cursor %+v", how, len(rest.Volumes), rest.Cursor)
		}
	}
}

func BenchmarkCreateDelete(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, m := bare(b, Config{KeepTasks: 100})
			for i := range n {
				m.volume(b, fmt.Sprint("old-", i))
			}
			b.ResetTimer()
			for range b.N {
				m.remove(m.volume(b, "new"))
			}
		})
	}
}

func BenchmarkQueryByID(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f, m := bare(b, Config{KeepTasks: 100})
			id := ""
			for i := range n {
				id = m.volume(b, fmt.Sprint("old-", i))
			}
			req := &cnstypes.CnsQueryVolume{Filter: &cnstypes.CnsQueryFilter{VolumeIds: []cnstypes.CnsVolumeId{{Id: id}}}}
			c := f.request()
			b.ResetTimer()
			for range b.N {
				if r := m.CnsQueryVolume(c, req).(*methods.CnsQueryVolumeBody).Res.Returnval; len(r.Volumes) != 1 {
					b.Fatal(r)
				}
			}
		})
	}
}
