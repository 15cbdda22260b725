package csp

import (
	"context"
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// snapshotOut is how the API shows a snapshot.
type snapshotOut struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Size         int64             `json:"size"`
	Description  string            `json:"description"`
	VolumeID     string            `json:"volume_id"`
	VolumeName   string            `json:"volume_name"`
	CreationTime int64             `json:"creation_time"`
	Ready        bool              `json:"ready_to_use"`
	Config       map[string]string `json:"config"`
}

// forClone begins the names of snapshots that the driver makes to copy a volume
// from, and then leaves to the provider.
const forClone = "snap-for-clone-"

func (i item) snapshotOut(volume string) snapshotOut {
	o := snapshotOut{ID: i.id(), Name: i.id(), Size: i.vv.SizeMiB << 20, Description: i.Description, VolumeID: volume, VolumeName: volume,
		CreationTime: i.vv.Created().Unix(), Ready: i.vv.State != wsapi.StateFailed, Config: map[string]string{}}
	for k, v := range i.Config {
		o.Config[k] = v
	}
	o.Config["read_only"] = "false"
	if i.vv.ReadOnly {
		o.Config["read_only"] = "true"
	}
	return o
}

// owner finds the id of the volume that a virtual volume is.
func owner(ctx context.Context, a *wsapi.Client, vv string) (string, error) {
	v, err := a.Volume(ctx, vv)
	if err != nil {
		return "", err
	}
	if r, ok := decodeRecord(v.Comment); ok {
		return item{v, r}.id(), nil
	}
	return vv, nil
}

// volumeID is that of the volume of a snapshot.
func (i item) volumeID(ctx context.Context, a *wsapi.Client) (string, error) {
	if i.Group == "" {
		return i.Of, nil
	}
	id, err := owner(ctx, a, i.vv.CopyOf)
	return id, failed("looking for the volume of snapshot "+clip(i.id()), err)
}

func (s *Server) createSnapshot(c *call) (reply, error) {
	var in struct {
		Name        string `json:"name"`
		VolumeID    string `json:"volume_id"`
		Description string `json:"description"`
		Config      config `json:"config"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Name == "" {
		return reply{}, refuse(http.StatusBadRequest, "name is required")
	}
	if in.VolumeID == "" {
		return reply{}, refuse(http.StatusBadRequest, "volume_id is required")
	}
	n, err := copyOf(in.Config)
	if err != nil {
		return reply{}, err
	}
	leave, err := s.enter(c, kindSnapshot, in.Name)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	x, err := volumeOf(c.ctx, c.array, in.VolumeID)
	if err == nil {
		err = x.notAFile("a snapshot")
	}
	if err != nil {
		return reply{}, err
	}
	there, err := find(c.ctx, c.array, kindSnapshot, in.Name)
	if err != nil {
		return reply{}, err
	}
	if there != nil && (!there.Todo || there.Of != x.ID) {
		return reply{}, refuse(http.StatusConflict, "snapshot %s already exists", clip(in.Name))
	}
	r := record{Kind: kindSnapshot, ID: in.Name, Description: in.Description, Config: in.Config, Of: x.ID}
	name, err := create(c.ctx, c.array, r, func(name, comment string) error {
		n.Name, n.Comment = name, comment
		return c.array.CreateCopy(c.ctx, x.vv.Name, n)
	})
	if err == nil && r.long() {
		err = save(c.ctx, c.array, name, r)
	}
	if err != nil {
		return reply{}, inTheWay(failed("creating snapshot "+clip(in.Name), err))
	}
	y, err := snapshotOf(c.ctx, c.array, in.Name)
	if err != nil {
		return reply{}, err
	}
	return reply{body: y.snapshotOut(x.ID)}, nil
}

// long says whether a record does not fit in a comment.
func (r record) long() bool {
	_, values, err := r.encode()
	return err == nil && len(values) > 0
}

// copyOf reads the parameters of a snapshot. Unverified: the default of
// read_only, which no document tells; the array's is a copy that can be
// written.
func copyOf(cfg config) (n wsapi.NewCopy, err error) {
	if n.ReadOnly, err = cfg.flag("read_only"); err != nil {
		return n, err
	}
	if n.ExpirationHours, err = cfg.number("expiration_hours", 1, 43800); err != nil {
		return n, err
	}
	n.RetentionHours, err = cfg.number("retention_hours", 1, 43800)
	return n, err
}

func snapshotOf(ctx context.Context, a *wsapi.Client, id string) (*item, error) {
	x, err := find(ctx, a, kindSnapshot, id)
	if err != nil {
		return nil, err
	}
	if x == nil { // of a group: it has its virtual volume's name
		if vv, err := a.Volume(ctx, legal(id)); err == nil && vv.Name == id {
			if r, ok := decodeRecord(vv.Comment); ok && r.Kind == kindSnapshot && r.Group != "" {
				return &item{vv, r}, nil
			}
		}
	}
	if x == nil || x.Todo {
		return nil, refuse(http.StatusNotFound, "snapshot %s not found", clip(id))
	}
	return x, nil
}

func (s *Server) getSnapshot(c *call) (reply, error) {
	x, err := snapshotOf(c.ctx, c.array, c.vars["id"])
	if err != nil {
		return reply{}, err
	}
	v, err := x.volumeID(c.ctx, c.array)
	if err != nil {
		return reply{}, err
	}
	return reply{body: x.snapshotOut(v)}, nil
}

// listSnapshots lists those of a volume, or all, or (name) finds one: 404 where
// there is none. mode=exists asks whether a volume has some.
func (s *Server) listSnapshots(c *call) (reply, error) {
	volume, name := c.query["volume_id"], c.query["name"]
	if name != "" {
		x, err := snapshotOf(c.ctx, c.array, name)
		if err != nil {
			return reply{}, err
		}
		v, err := x.volumeID(c.ctx, c.array)
		if err != nil {
			return reply{}, err
		}
		if volume != "" && v != volume {
			return reply{}, refuse(http.StatusNotFound, "volume %s has no snapshot %s", clip(volume), clip(name))
		}
		return reply{body: []snapshotOut{x.snapshotOut(v)}}, nil
	}
	out := []snapshotOut{}
	if volume == "" {
		all, err := list(c.ctx, c.array, kindSnapshot)
		if err != nil {
			return reply{}, err
		}
		for _, x := range all {
			v, err := x.volumeID(c.ctx, c.array)
			if err != nil {
				return reply{}, err
			}
			if !strings.HasPrefix(x.id(), forClone) {
				out = append(out, x.snapshotOut(v))
			}
		}
		return reply{body: out}, nil
	}
	x, err := volumeOf(c.ctx, c.array, volume)
	if err != nil {
		return reply{}, err
	}
	all, err := snapshotsOf(c.ctx, c.array, x.vv.Name)
	if err != nil {
		return reply{}, err
	}
	for _, y := range all {
		if !strings.HasPrefix(y.id(), forClone) {
			out = append(out, y.snapshotOut(volume))
		}
	}
	return reply{body: out}, nil
}

// snapshotsOf are the provider's snapshots of a virtual volume.
func snapshotsOf(ctx context.Context, a *wsapi.Client, vv string) ([]item, error) {
	all, err := a.CopiesOf(ctx, vv)
	if err != nil {
		return nil, failed("listing snapshots", err)
	}
	var out []item
	for _, v := range all {
		r, ok := decodeRecord(v.Comment)
		if !ok || r.Kind != kindSnapshot {
			continue
		}
		if err := r.fill(ctx, a, v.Name); err != nil && !wsapi.NotFound(err) {
			return nil, failed("listing snapshots", err)
		}
		if !r.Todo {
			out = append(out, item{v, r})
		}
	}
	return out, nil
}

func (s *Server) deleteSnapshot(c *call) (reply, error) {
	id := c.vars["id"]
	leave, err := s.enter(c, kindSnapshot, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	x, err := snapshotOf(c.ctx, c.array, id)
	if err != nil {
		return reply{}, err
	}
	err = c.array.DeleteVolume(c.ctx, x.vv.Name)
	switch {
	case wsapi.NotFound(err):
		return reply{}, nil
	case wsapi.Is(err, wsapi.CodeCopying): // content is copied from it
		return reply{}, &failure{status: http.StatusConflict, message: "deleting snapshot " + clip(id) + ": " + err.Error()}
	}
	return reply{}, failed("deleting snapshot "+clip(id), err)
}
