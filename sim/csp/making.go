package csp

import (
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// makeVolume makes a volume of what its parameters say. there is what an
// attempt before has left, or nil. What is made halfway is dropped, or, where
// not even that can be done, seen by nobody until an attempt ends well.
func (s *Server) makeVolume(c *call, in volumeIn, there *item) error {
	r := in.newRecord()
	m := maker{s, c, in, &r, there}
	if err := m.checkPlace(); err != nil {
		return err
	}
	r.Todo = m.places()
	name, err := m.content()
	if err != nil {
		return err
	}
	if !r.Todo && !r.long() {
		return nil
	}
	err = m.place(name)
	if err == nil {
		r.Todo = false
		err = failed("creating volume "+clip(in.Name), save(c.ctx, c.array, name, r))
	}
	if err != nil {
		if x, ferr := find(c.ctx, c.array, kindVolume, in.Name); ferr == nil && x != nil && x.Todo {
			x.Set, x.Replica, x.Config = r.Set, r.Replica, r.Config
			if derr := s.drop(c, x, true); derr != nil {
				s.log.Warn("volume made halfway stays", "volume", in.Name, "err", derr)
			}
		}
	}
	return err
}

// maker makes one volume.
type maker struct {
	*Server
	c     *call
	in    volumeIn
	r     *record
	there *item
}

// places says whether the volume has to be put in something.
func (m maker) places() bool {
	return m.in.Config["qos_name"] != "" || m.in.VolumeGroupID != "" || m.in.Config["replication_devices"] != ""
}

// checkPlace refuses what the volume could not be put in, before it is made.
func (m maker) checkPlace() error {
	if q := m.in.Config["qos_name"]; q != "" {
		if _, err := m.c.array.Rule(m.c.ctx, q); wsapi.NotFound(err) {
			return wrong("qos_name", q, "the array has no volume set of this name with a QoS rule")
		} else if err != nil {
			return failed("looking for the QoS rule of "+q, err)
		}
	}
	if g := m.in.VolumeGroupID; g != "" {
		if m.r.isFile() {
			return wrong("volume_group_id", g, "not with access_protocol nfs")
		}
		if _, err := m.group(m.c, g); err != nil {
			return err
		}
	}
	return m.checkReplication(m.c, m.in.Config)
}

// place puts a volume in what its parameters say.
func (m maker) place(name string) error {
	if q := m.in.Config["qos_name"]; q != "" {
		if err := m.c.array.ChangeSetMembers(m.c.ctx, q, wsapi.AddMembers, name); err != nil {
			return failed("adding volume "+clip(m.in.Name)+" to volume set "+q, err)
		}
	}
	if g := m.in.VolumeGroupID; g != "" {
		m.r.Set = g
		if err := m.c.array.ChangeSetMembers(m.c.ctx, groupSet(g), wsapi.AddMembers, name); err != nil {
			return failed("adding volume "+clip(m.in.Name)+" to volume group "+clip(g), err)
		}
	}
	return m.replicate(m.c, name, m.r)
}

// content makes the virtual volume.
func (m maker) content() (name string, err error) {
	cfg := m.in.Config
	var mib int64
	if m.in.Size != nil && *m.in.Size != 0 {
		if mib, err = sizeMiB(*m.in.Size); err != nil {
			return "", err
		}
	}
	switch {
	case m.in.BaseSnapshotID != "" && m.r.isFile():
		return "", wrong("base_snapshot_id", m.in.BaseSnapshotID, "not with access_protocol nfs")
	case m.in.BaseSnapshotID != "":
		x, err := snapshotOf(m.c.ctx, m.c.array, m.in.BaseSnapshotID)
		if err != nil {
			return "", err
		}
		m.r.Base = x.id()
		return m.copied(x.vv, mib)
	case cfg["clone_of"] != "":
		x, err := m.claimed("clone_of")
		if err != nil {
			return "", err
		}
		m.r.Of = x.ID
		return m.copied(x.vv, mib)
	case cfg["import_vol_as_clone"] != "":
		vv, err := m.arrayVolume("import_vol_as_clone")
		if err != nil {
			return "", err
		}
		return m.copied(vv, mib)
	case cfg["virtual_copy_of"] != "":
		x, err := m.claimed("virtual_copy_of")
		if err != nil {
			return "", err
		}
		if mib > x.vv.SizeMiB {
			return "", refuse(http.StatusBadRequest, "size is %d, a virtual copy has that of its volume, %d", *m.in.Size, x.vv.SizeMiB<<20)
		}
		m.r.Of = x.ID
		name, err = create(m.c.ctx, m.c.array, *m.r, func(name, comment string) error {
			return m.c.array.CreateCopy(m.c.ctx, x.vv.Name, wsapi.NewCopy{Name: name, Comment: comment})
		})
		return name, failed("creating volume "+clip(m.in.Name), err)
	case cfg["import_volume_name"] != "":
		return m.imported()
	}
	if m.there != nil && m.there.Todo {
		return m.there.vv.Name, nil
	}
	if mib == 0 {
		return "", refuse(http.StatusBadRequest, "size is required")
	}
	return m.plain(m.c, m.in, *m.r, mib)
}

// claimed finds the volume of a PVC that a parameter names. Where nobody
// resolves names of PVCs it is taken for the id of the volume.
func (m maker) claimed(parameter string) (*item, error) {
	v := m.in.Config[parameter]
	id := v
	if f := m.cfg.VolumeOf; f != nil {
		if n, ok := f(m.c.ctx, m.in.Config["csi.storage.k8s.io/pvc/namespace"], v); ok {
			id = n
		}
	}
	x, err := find(m.c.ctx, m.c.array, kindVolume, id)
	if err != nil {
		return nil, err
	}
	if x == nil || x.Todo {
		return nil, wrong(parameter, v, "there is no such volume")
	}
	return x, x.notAFile("making another of it")
}

// arrayVolume finds a virtual volume that a parameter names, which is none of
// the provider's.
func (m maker) arrayVolume(parameter string) (wsapi.Volume, error) {
	v := m.in.Config[parameter]
	vv, err := m.c.array.Volume(m.c.ctx, v)
	if wsapi.NotFound(err) || wsapi.Is(err, wsapi.CodeIllegalChar, wsapi.CodeTooLong) {
		return vv, wrong(parameter, v, "the array has no such volume")
	}
	return vv, failed("looking for volume "+clip(v), err)
}

// copied makes a volume with the content of another one, by a physical copy: an
// online one, so that the volume can be used while it runs, where the array
// takes that (of the same size, and not from a read-only snapshot).
func (m maker) copied(from wsapi.Volume, mib int64) (string, error) {
	doing := "copying volume " + from.Name + " to " + clip(m.in.Name)
	if mib != 0 && mib < from.SizeMiB {
		return "", refuse(http.StatusBadRequest, "size is %d, the source has %d", *m.in.Size, from.SizeMiB<<20)
	}
	m.r.Copy = true
	online := (mib == 0 || mib == from.SizeMiB) && !from.ReadOnly
	if m.there != nil && m.there.Todo {
		online = m.there.vv.CopyType == wsapi.PhysicalCopy
		if online { // it runs already
			return m.there.vv.Name, nil
		}
	}
	if online {
		threePAR, err := m.c.on.threePAR(m.c.ctx, m.c.array)
		if err != nil {
			return "", err
		}
		p, err := m.in.Config.provisioning(threePAR)
		if err != nil {
			return "", err
		}
		cpg, snap, err := m.pool(m.c, m.in.Config)
		if err != nil {
			return "", err
		}
		todo := *m.r
		todo.Todo = true
		name, err := m.online(from.Name, todo, wsapi.NewClone{Online: true, DestCPG: cpg, SnapCPG: snap, TPVV: p.tpvv, TDVV: p.tdvv, Reduce: p.reduce, Compression: p.compression})
		if wsapi.Is(err, wsapi.CodeNoCPG) {
			return "", wrong("cpg", cpg+", "+snap, "the array has no such CPG")
		}
		return name, failed(doing, err)
	}
	var name string
	if m.there != nil && m.there.Todo {
		name = m.there.vv.Name
	} else {
		if mib == 0 {
			mib = from.SizeMiB
		}
		todo := *m.r
		todo.Todo = true
		var err error
		if name, err = m.plain(m.c, m.in, todo, mib); err != nil {
			return "", err
		}
	}
	_, err := m.c.array.Clone(m.c.ctx, from.Name, wsapi.NewClone{DestVolume: name})
	if err == nil && !m.r.Todo {
		err = save(m.c.ctx, m.c.array, name, *m.r)
	}
	if err != nil {
		_ = m.c.array.StopCopy(m.c.ctx, name)
		_ = m.c.array.DeleteVolume(m.c.ctx, name)
	}
	return name, failed(doing, err)
}

// online starts a copy to a new volume, and writes its record after: the array
// takes no comment with a physical copy. A mark at the source, made before and
// dropped after, says that a volume without a record is what an attempt before
// has left.
func (m maker) online(from string, todo record, n wsapi.NewClone) (name string, err error) {
	a, ctx := m.c.array, m.c.ctx
	mark := "csp-copy" + short(kindVolume, m.in.Name, len(".0123456789"))
	values, err := a.Values(ctx, from)
	if err != nil {
		return "", err
	}
	name = values[mark]
	if name != "" {
		vv, err := a.Volume(ctx, name)
		if wsapi.NotFound(err) || err == nil && vv.Comment != "" { // it came to nothing
			name = ""
		} else if err != nil {
			return "", err
		}
	}
	for _, n.DestVolume = range names(kindVolume, m.in.Name) {
		if name != "" {
			break
		}
		if _, err := a.Volume(ctx, n.DestVolume); !wsapi.NotFound(err) {
			if err != nil {
				return "", err
			}
			continue // another volume has the name
		}
		if err := a.SetValue(ctx, from, mark, n.DestVolume); err != nil {
			return "", err
		}
		// An answer that was lost: the copy runs, and the mark says that it is ours.
		if _, err := a.Clone(ctx, from, n); err != nil && !wsapi.Is(err, wsapi.CodeVolumeThere) {
			return "", err
		}
		name = n.DestVolume
	}
	if name == "" {
		return "", refuse(http.StatusConflict, "the array has volumes of all names that volume %s could have", clip(m.in.Name))
	}
	r := *m.r
	if r.Todo {
		r = todo
	}
	if err := save(ctx, a, name, r); err != nil {
		return "", err
	}
	if err := a.DeleteValue(ctx, from, mark); err != nil && !wsapi.NotFound(err) {
		m.log.Warn("a mark of a copy stays", "volume", from, "err", err)
	}
	return name, nil
}

// imported takes a virtual volume of somebody else's over: its exports end, and
// it gets the name of the volume.
func (m maker) imported() (string, error) {
	from := m.in.Config["import_volume_name"]
	if m.there != nil && m.there.Todo && decodable(m.there.vv.Comment) {
		return m.there.vv.Name, nil
	}
	vv, err := m.arrayVolume("import_volume_name")
	if err != nil {
		return "", err
	}
	if r, ok := decodeRecord(vv.Comment); ok && r.ID != m.in.Name {
		return "", wrong("import_volume_name", from, "it is volume "+clip(r.ID)+" already")
	}
	if _, err := m.unexport(m.c.ctx, m.c.on, m.c.array, vv.Name, hostBody{}, func(string) bool { return true }); err != nil {
		return "", err
	}
	name, err := create(m.c.ctx, m.c.array, *m.r, func(name, comment string) error {
		ch := wsapi.VolumeChange{Comment: &comment}
		if name != vv.Name {
			ch.NewName = &name
		}
		err := m.c.array.ModifyVolume(m.c.ctx, vv.Name, ch)
		if wsapi.Is(err, wsapi.CodeNoVolume) { // an answer was lost
			if x, ferr := m.c.array.Volume(m.c.ctx, name); ferr == nil && x.Comment == comment {
				return nil
			}
		}
		return err
	})
	return name, failed("importing volume "+clip(from), err)
}

// tidy drops the snapshot that the driver made to copy a volume from, once the
// copy is complete.
func (s *Server) tidy(c *call, id string) error {
	leave, err := s.enter(c, kindVolume, id)
	if err != nil {
		return err
	}
	defer leave()
	x, err := volumeOf(c.ctx, c.array, id)
	if err != nil || !x.untidy() {
		return err
	}
	y, err := find(c.ctx, c.array, kindSnapshot, x.Base)
	if err != nil {
		return err
	}
	if y != nil {
		if err := c.array.DeleteVolume(c.ctx, y.vv.Name); err != nil && !wsapi.NotFound(err) {
			return err
		}
	}
	x.Base = ""
	return save(c.ctx, c.array, x.vv.Name, x.record)
}

// untidy says whether a snapshot that was made for the volume only is left.
func (i item) untidy() bool {
	return strings.HasPrefix(i.Base, forClone) && i.copying() == statusCompleted
}
