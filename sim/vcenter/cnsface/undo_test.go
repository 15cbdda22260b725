package cnsface

import (
	"errors"
	"testing"

	cnstypes "github.com/vmware/govmomi/cns/types"

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

// TestUndo: what was half done is taken back.
func TestUndo(t *testing.T) {
	t.Parallel()
	store := &slowStore{Store: disk.NewMemory()}
	f, m := bare(t, Config{Disks: store})
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
