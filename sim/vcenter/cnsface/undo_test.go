package cnsface

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
)

// slowStore runs a function while it makes an image.
type slowStore struct {
	disk.Store
	during func()
	grow   error
}

func (s *slowStore) Create(id string, size int64) error {
	if f := s.during; f != nil {
		s.during = nil
		f()
	}
	return s.Store.Create(id, size)
}

func (s *slowStore) Grow(id string, size int64) error {
	if s.grow != nil {
		return s.grow
	}
	return s.Store.Grow(id, size)
}

// thick is storage whose disks take their size at once.
func thick(string) Storage { return Storage{Thick: true} }

// TestUndo: what was half done is taken back.
func TestUndo(t *testing.T) {
	t.Parallel()
	store := &slowStore{Store: disk.NewMemory()}
	f, m := bare(t, Config{Disks: store, Storage: thick})
	ds := f.inv.datastores[0]
	_, free, _ := f.core.Datastore(ds.Value)
	half := free/2 + 1
	spec := func(name string, mb int64) cnstypes.CnsVolumeCreateSpec {
		s := cnstypes.CnsVolumeCreateSpec{Name: name, VolumeType: "BLOCK",
			Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: mb}}}
		s.Datastores = append(s.Datastores, ds)
		return s
	}
	// While one volume's image is made, another takes the space.
	store.during = func() {
		if _, err := f.create(f.ctx, f.inv.context(), spec("fast", half)); err != nil {
			t.Error(err)
		}
	}
	if _, err := f.create(f.ctx, f.inv.context(), spec("slow", half)); err == nil {
		t.Error("two volumes that don't fit")
	}
	if vs, images := f.Volumes(), store.List(); len(vs) != 1 || vs[0].Name != "fast" || len(images) != 1 || images[0].ID != vs[0].ID {
		t.Errorf("volumes %+v, images %+v", vs, images)
	}
	m.remove(f.Volumes()[0].ID)

	// An image that doesn't grow leaves the volume and the space as they were.
	id := m.volume(t, "a")
	store.grow = errors.New("no")
	if _, err := f.extend(f.ctx, f.inv.context(), id, 100); err == nil {
		t.Error("extended without an image")
	}
	if _, now, _ := f.core.Datastore(ds.Value); now != free-1 || f.Volumes()[0].CapacityMB != 1 {
		t.Errorf("%d MB free of %d, volume %+v", now, free, f.Volumes()[0])
	}
}

// vanishing is hardware whose VM is deleted while it gets a disk.
type vanishing struct {
	f       *Face
	vm      vim.ManagedObjectReference
	plugged int
}

func (v *vanishing) Attach(context.Context, string, string, string) error {
	v.plugged++
	v.f.inv.vim.Remove(v.f.inv.context(), v.vm)
	return nil
}

func (v *vanishing) Detach(context.Context, string, string) error { v.plugged--; return nil }
func (v *vanishing) Resize(context.Context, string, string) error { return nil }

// TestVMVanishes while a volume is attached to it.
func TestVMVanishes(t *testing.T) {
	t.Parallel()
	hw := &vanishing{}
	f, m := bare(t, Config{Hardware: hw})
	hw.f, hw.vm = f, f.inv.vim.Any("VirtualMachine").Reference()
	id := m.volume(t, "a")
	_, err := f.attach(f.ctx, f.inv.context(), cnstypes.CnsVolumeAttachDetachSpec{VolumeId: volumeID(id), Vm: hw.vm})
	if err == nil || !strings.Contains(err.Error(), "ManagedObjectNotFound") {
		t.Errorf("attach: %v", err)
	}
	if as := f.Attachments(); len(as) != 0 || hw.plugged != 0 {
		t.Errorf("attachments %+v, %d disks plugged in", as, hw.plugged)
	}
}

// TestDatastoreVanishes: the volume on it is known, but red, and nothing new
// goes there.
func TestDatastoreVanishes(t *testing.T) {
	t.Parallel()
	f, m := bare(t, Config{})
	m.volume(t, "a")
	f.inv.vim.Remove(f.inv.context(), vim.ManagedObjectReference{Type: "Datastore", Value: f.Volumes()[0].Datastore})
	r, err := f.query(&cnstypes.CnsQueryFilter{}, nil, true)
	if err != nil || len(r.Volumes) != 1 || r.Volumes[0].HealthStatus != "red" {
		t.Errorf("%v %+v", err, r.Volumes)
	}
	_, err = f.create(f.ctx, f.inv.context(), cnstypes.CnsVolumeCreateSpec{Name: "b", VolumeType: "BLOCK",
		Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
		BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}}})
	if err == nil || !strings.Contains(err.Error(), "no datastore") {
		t.Errorf("create: %v", err)
	}
}

// TestLocksInOneOrder: requests that name each other's volumes don't wait for
// each other, and one that names a volume twice doesn't wait for itself.
func TestLocksInOneOrder(t *testing.T) {
	t.Parallel()
	f, _ := bare(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 8 {
		keys := [][]string{{"a", "b"}, {"b", "a"}, {"a", "a"}}[i%3]
		wg.Go(func() {
			for range 500 {
				unlock, err := f.volumes.lockAll(ctx, slices.Clone(keys)...)
				if err != nil {
					t.Error(err)
					return
				}
				unlock()
			}
		})
	}
	wg.Wait()
	source := "0b5dd4f4-7a9e-4b3c-9d2e-000000000001"
	done := make(chan error, 1)
	go func() {
		_, err := f.create(ctx, f.inv.context(), cnstypes.CnsVolumeCreateSpec{Name: "b", VolumeType: "BLOCK", VolumeId: &cnstypes.CnsVolumeId{Id: source},
			VolumeSource:         &cnstypes.CnsSnapshotVolumeSource{VolumeId: volumeID(source)},
			Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{}})
		done <- err
	}()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "no such volume") {
		t.Errorf("its own source: %v", err)
	}
}
