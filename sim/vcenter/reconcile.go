package vcenter

import (
	"log/slog"
	"slices"

	"github.com/csilab/csilab/sim/disk"
	core "github.com/csilab/csilab/sim/vcenter/cns"
)

// images is a store that can say what it holds (sim/disk.Store). With a
// StateDir it must hold the images of this vCenter only.
type images interface {
	List() []disk.Info
	Delete(id string) error
	DeleteSnapshot(id, snap string) error
	Grow(id string, size int64) error
}

// reconcile makes the state of a run that was killed and the images agree. A
// change has two steps, one on the image and one in the state; a kill between
// them leaves a change that nobody was told of. It is undone where the image
// came first, and finished where the image has gone already.
func reconcile(s *core.State, store images, log *slog.Logger) error {
	have := map[string]disk.Info{}
	for _, i := range store.List() {
		have[i.ID] = i
	}
	lost := map[string]bool{} // volumes without content
	known := map[string]bool{}
	fit := func(d *core.Disk) error {
		i, ok := have[d.ID]
		if !ok {
			log.Warn("a volume without content is gone: its delete had begun", "volume", d.ID)
			lost[d.ID] = true
			return nil
		}
		known[d.ID] = true
		d.Snapshots = slices.DeleteFunc(d.Snapshots, func(x core.Snapshot) bool { return !slices.Contains(i.Snapshots, x.ID) })
		for n := range d.Snapshots {
			d.Snapshots[n].Parent = ""
			if n > 0 {
				d.Snapshots[n].Parent = d.Snapshots[n-1].ID
			}
		}
		for _, snap := range i.Snapshots {
			if !slices.ContainsFunc(d.Snapshots, func(x core.Snapshot) bool { return x.ID == snap }) {
				if err := store.DeleteSnapshot(d.ID, snap); err != nil {
					return err
				}
			}
		}
		switch size := d.CapacityMB << 20; {
		case i.Size < size:
			return store.Grow(d.ID, size)
		case i.Size > size: // an image can't shrink
			d.CapacityMB = i.Size >> 20
		}
		return nil
	}
	for n := range s.Volumes {
		if s.Volumes[n].Lost || s.Volumes[n].Share != nil {
			continue // its content is gone, or never was an image
		}
		if err := fit(&s.Volumes[n].Disk); err != nil {
			return err
		}
	}
	for n := range s.Disks {
		if err := fit(&s.Disks[n]); err != nil {
			return err
		}
	}
	s.Files = slices.DeleteFunc(s.Files, func(f core.File) bool {
		_, ok := have[f.ID]
		known[f.ID] = ok
		return !ok
	})
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v core.Volume) bool { return lost[v.ID] })
	s.Disks = slices.DeleteFunc(s.Disks, func(d core.Disk) bool { return lost[d.ID] })
	s.Attachments = slices.DeleteFunc(s.Attachments, func(a core.Attachment) bool { return lost[a.Volume] })
	for id, i := range have {
		if known[id] {
			continue
		}
		for _, snap := range i.Snapshots {
			if err := store.DeleteSnapshot(id, snap); err != nil {
				return err
			}
		}
		if err := store.Delete(id); err != nil {
			return err
		}
	}
	return nil
}
