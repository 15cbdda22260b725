package hpe

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/driver/record"
)

// groupPrefix is that of volume groups that the driver makes. A provider cuts
// snapshots at one moment of the volumes of a volume group, all of them. So the
// volumes of a request are put in one that is named after them, unless they are
// in one already. They stay there, and a group whose last volume was deleted is
// deleted too. A volume that an administrator has put in a group is not taken
// out of it.
const groupPrefix = "csi-"

func groupName(volumes []string) string {
	sum := sha256.Sum256([]byte(strings.Join(volumes, "\n")))
	return groupPrefix + hex.EncodeToString(sum[:8])
}

func ownGroup(id string) bool {
	hash, ok := strings.CutPrefix(id, groupPrefix)
	_, err := hex.DecodeString(hash)
	return ok && err == nil && len(hash) == 16
}

var _ controller.Grouper = (*Backend)(nil)

// CreateGroupSnapshot implements controller.Grouper.
func (b *Backend) CreateGroupSnapshot(ctx context.Context, r controller.CreateGroupSnapshot) (controller.GroupSnapshot, error) {
	var none controller.GroupSnapshot
	s, err := b.session(ctx)
	if err != nil {
		return none, err
	}
	var group string
	sizes := map[string]csp.Bytes{}
	var vs []csp.Volume
	for i, id := range r.Volumes {
		v, err := s.Volume(ctx, id)
		if csp.StatusOf(err) == http.StatusNotFound {
			return none, controller.Errorf(controller.NotFound, "source volume %q doesn't exist", id)
		}
		if err != nil {
			return none, fail(ctx, err, nil, "source volume %s", id)
		}
		if err := settled(v); err != nil {
			return none, err
		}
		if err := notFiles(v, "source_volume_ids"); err != nil {
			return none, err
		}
		sizes[v.ID] = v.Size
		vs = append(vs, v)
		if i == 0 {
			group = v.Group
		} else if v.Group != group {
			group = ""
		}
	}
	if group != "" {
		// Looked at first: a repeated request changes nothing.
		if x, found, err := s.SnapshotGroupNamed(ctx, group, r.Name); err != nil {
			return none, fail(ctx, err, nil, "looking for group snapshot %s", r.Name)
		} else if found {
			return sameVolumes(x, r, sizes)
		}
	}
	if group, err = b.together(ctx, s, r.Volumes, vs); err != nil {
		return none, err
	}
	q := csp.SnapshotGroup{Name: r.Name, Group: group}
	for k, v := range r.Parameters {
		if q.Config == nil {
			q.Config = map[string]any{}
		}
		q.Config[snake(k)] = v
	}
	x, err := s.CreateSnapshotGroup(ctx, q)
	if err != nil && (csp.Unknown(err) || csp.StatusOf(err) == http.StatusConflict) {
		// Done by this call or one before, perhaps of another volume group.
		if got, found, lookup := s.SnapshotGroupNamed(ctx, "", r.Name); lookup == nil && found {
			x, err = got, nil
		}
	}
	if err != nil {
		return none, fail(ctx, err, kinds{http.StatusConflict: controller.AlreadyExists}, "group snapshot %s", r.Name)
	}
	return sameVolumes(x, r, sizes)
}

// together returns the volume group that has just these volumes, and makes it
// so where that is the driver's business.
func (b *Backend) together(ctx context.Context, s *csp.Session, ids []string, vs []csp.Volume) (string, error) {
	if g := vs[0].Group; g != "" && !ownGroup(g) {
		has, err := s.VolumeGroup(ctx, g)
		if err != nil {
			return "", fail(ctx, err, nil, "volume group %s", g)
		}
		var members []string
		for _, v := range has.Volumes {
			members = append(members, v.ID)
		}
		slices.Sort(members)
		if slices.Equal(members, ids) {
			return g, nil
		}
		return "", controller.Errorf(controller.InUse, "volume group %s has the volumes %s, asked for are %s: a group is taken as a whole", g, strings.Join(members, ", "), strings.Join(ids, ", "))
	}
	name := groupName(ids)
	for _, v := range vs {
		if v.Group != "" && v.Group != name && !ownGroup(v.Group) {
			return "", controller.Errorf(controller.InUse, "volume %s is in volume group %s, of which not all volumes are asked for", v.ID, v.Group)
		}
	}
	g, found, err := s.VolumeGroupNamed(ctx, name)
	if err != nil {
		return "", fail(ctx, err, nil, "looking for volume group %s", name)
	}
	if !found {
		g, err = s.CreateVolumeGroup(ctx, csp.VolumeGroup{Name: name, Description: "volumes of one group snapshot"})
		if err != nil && (csp.Unknown(err) || csp.StatusOf(err) == http.StatusConflict) {
			if got, found, lookup := s.VolumeGroupNamed(ctx, name); lookup == nil && found {
				g, err = got, nil
			}
		}
		if err != nil {
			return "", fail(ctx, err, nil, "volume group %s", name)
		}
	}
	id := cmp.Or(g.ID, name)
	for _, v := range vs {
		if v.Group != id {
			if err := b.leaving(ctx, v.ID, v.Group); err != nil {
				return "", err
			}
			if _, err := s.ChangeVolume(ctx, csp.Volume{ID: v.ID, Group: id}); err != nil {
				return "", fail(ctx, err, nil, "putting volume %s in volume group %s", v.ID, id)
			}
		}
		// Also of an attempt before, which got no further.
		if err := b.left(ctx, s, v.ID); err != nil {
			return "", err
		}
	}
	return id, nil
}

func groupKey(volume string) string { return "group-of-volume " + volume }

// leaving notes the driver's group of a volume that is about to go out of it,
// or to be deleted: once that is done, nobody else knows.
func (b *Backend) leaving(ctx context.Context, volume, group string) error {
	if !ownGroup(group) {
		return nil
	}
	return b.put(ctx, record.Record{Key: groupKey(volume), Op: "leave-group", Began: b.now(), Result: group}, volume)
}

// left removes the group that a volume has left, unless it has others, which
// the provider then says.
func (b *Backend) left(ctx context.Context, s *csp.Session, volume string) error {
	rec, err := b.records.Get(ctx, groupKey(volume))
	if errors.Is(err, record.ErrNotFound) {
		return nil
	}
	if err == nil {
		if err := s.DeleteVolumeGroup(ctx, rec.Result); err != nil && csp.StatusOf(err) != http.StatusConflict {
			return fail(ctx, err, nil, "volume group %s", rec.Result)
		}
		err = b.records.Delete(ctx, groupKey(volume))
	}
	if err != nil && ctx.Err() == nil {
		return controller.Errorf(controller.Unavailable, "the record of the group of volume %s: %w", volume, err)
	}
	return err
}

// deleted clears up after a volume that is gone.
func (b *Backend) deleted(ctx context.Context, s *csp.Session, volume string) error {
	if err := b.left(ctx, s, volume); err != nil {
		return err
	}
	return b.forgetNodes(ctx, volume)
}

// sameVolumes compares a snapshot group that has the name with the request.
func sameVolumes(x csp.SnapshotGroup, r controller.CreateGroupSnapshot, sizes map[string]csp.Bytes) (controller.GroupSnapshot, error) {
	var of []string
	for _, one := range x.Snapshots {
		of = append(of, one.Volume)
	}
	slices.Sort(of)
	if !slices.Equal(of, r.Volumes) {
		return controller.GroupSnapshot{}, controller.Errorf(controller.AlreadyExists, "group snapshot %s exists of the volumes %s, asked for are %s", r.Name, strings.Join(of, ", "), strings.Join(r.Volumes, ", "))
	}
	return groupOf(x, sizes), nil
}

func groupOf(x csp.SnapshotGroup, sizes map[string]csp.Bytes) controller.GroupSnapshot {
	out := controller.GroupSnapshot{ID: x.ID, Created: time.Unix(x.Created, 0)}
	for _, one := range x.Snapshots {
		out.Snapshots = append(out.Snapshots, controller.Snapshot{ID: one.ID, Volume: one.Volume, Bytes: int64(cmp.Or(one.Size, sizes[one.Volume])),
			Created: time.Unix(cmp.Or(one.Created, x.Created), 0), Ready: one.Ready})
	}
	return out
}

// GroupSnapshot implements controller.Grouper.
func (b *Backend) GroupSnapshot(ctx context.Context, id string) (controller.GroupSnapshot, error) {
	s, err := b.session(ctx)
	if err != nil {
		return controller.GroupSnapshot{}, err
	}
	x, err := s.SnapshotGroup(ctx, id)
	if err != nil {
		return controller.GroupSnapshot{}, fail(ctx, err, nil, "group snapshot %s", id)
	}
	return groupOf(x, nil), nil
}

// DeleteGroupSnapshot implements controller.Grouper.
func (b *Backend) DeleteGroupSnapshot(ctx context.Context, id string) error {
	s, err := b.session(ctx)
	if err != nil {
		return err
	}
	if err := s.DeleteSnapshotGroup(ctx, id); err != nil {
		return fail(ctx, err, kinds{http.StatusBadRequest: controller.InUse}, "group snapshot %s", id)
	}
	return nil
}
