package csp

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// volumeOut is how the API shows a volume.
type volumeOut struct {
	ID             string            `json:"id"`
	Name           string            `json:"name"`
	Size           int64             `json:"size"` // bytes
	Description    string            `json:"description"`
	Published      bool              `json:"published"`
	BaseSnapshotID string            `json:"base_snapshot_id"`
	VolumeGroupID  string            `json:"volume_group_id"`
	Clone          bool              `json:"clone"`
	Config         map[string]string `json:"config"`
}

// backgroundStatus is the member of config that tells of a copy that runs.
const backgroundStatus = "background_operation_status"

// What it says. Unverified: the words; the driver knows Completed only.
const (
	statusRunning   = "Running"
	statusCompleted = "Completed"
	statusFailed    = "Failed"
)

// copying says what became of the copy to a volume. An array lets a physical
// copy be a volume of its own once it is complete.
func (i item) copying() string {
	switch {
	case !i.Copy:
		return ""
	case i.vv.State == wsapi.StateFailed:
		return statusFailed
	case i.vv.CopyType == wsapi.PhysicalCopy:
		return statusRunning
	}
	return statusCompleted
}

func (i item) volumeOut(published bool) volumeOut {
	o := volumeOut{ID: i.ID, Name: i.ID, Size: i.vv.SizeMiB << 20, Description: i.Description, Published: published || i.shared(),
		VolumeGroupID: i.Set, Clone: i.Copy || i.Of != "", BaseSnapshotID: i.Base, Config: map[string]string{}}
	maps.Copy(o.Config, i.Config)
	delete(o.Config, fileRules)
	for k, v := range map[string]string{"cpg": i.vv.UserCPG, "snap_cpg": i.vv.SnapCPG, "provisioning_type": provisioningName(i.vv.Provisioning)} {
		if v != "" {
			o.Config[k] = v
		}
	}
	if s := i.copying(); s != "" {
		o.Config[backgroundStatus] = s
	}
	return o
}

func provisioningName(n int) string {
	return map[int]string{1: "full", 2: "tpvv", 6: "dedup", 7: "reduce"}[n]
}

// volumeOf finds the volume of a call by its id, with 404 where there is none.
func volumeOf(ctx context.Context, a *wsapi.Client, id string) (*item, error) {
	x, err := find(ctx, a, kindVolume, id)
	if err != nil {
		return nil, err
	}
	if x == nil || x.Todo {
		return nil, refuse(http.StatusNotFound, "volume %s not found", clip(id))
	}
	return x, nil
}

// hold finds a volume as volumeOf does, and keeps other calls from it until
// leave.
func (s *Server) hold(c *call, id string) (x *item, leave func(), err error) {
	if leave, err = s.enter(c, kindVolume, id); err != nil {
		return nil, nil, err
	}
	if x, err = volumeOf(c.ctx, c.array, id); err != nil {
		leave()
		return nil, nil, err
	}
	return x, leave, nil
}

// published says whether a volume is exported.
func published(ctx context.Context, a *wsapi.Client, vv string) (bool, error) {
	all, err := a.VLUNsOf(ctx, vv)
	if err != nil && !wsapi.NotFound(err) {
		return false, failed("looking for exports", err)
	}
	return len(templates(all)) > 0, nil
}

// show reads a volume anew.
func (s *Server) show(c *call, id string) (reply, error) {
	x, err := volumeOf(c.ctx, c.array, id)
	if err != nil {
		return reply{}, err
	}
	p, err := published(c.ctx, c.array, x.vv.Name)
	if err != nil {
		return reply{}, err
	}
	return reply{body: x.volumeOut(p)}, nil
}

func (s *Server) getVolume(c *call) (reply, error) {
	x, err := volumeOf(c.ctx, c.array, c.vars["id"])
	if err != nil {
		return reply{}, err
	}
	if x.untidy() {
		if err := s.tidy(c, x.ID); err != nil {
			s.log.Warn("snapshot for a clone stays", "volume", x.ID, "err", err)
		}
	}
	p, err := published(c.ctx, c.array, x.vv.Name)
	if err != nil {
		return reply{}, err
	}
	return reply{body: x.volumeOut(p)}, nil
}

// listVolumes lists the volumes that the provider made, or (name) finds one:
// 404 where there is none, for the driver takes an empty list for an error.
func (s *Server) listVolumes(c *call) (reply, error) {
	if name, ok := c.query["name"]; ok {
		x, err := volumeOf(c.ctx, c.array, name)
		if err != nil {
			return reply{}, err
		}
		if x.copying() == statusFailed { // so that the next attempt begins anew
			if err := s.dropFailed(c, name); err != nil {
				return reply{}, err
			}
			return reply{}, refuse(http.StatusNotFound, "volume %s not found", clip(name))
		}
		p, err := published(c.ctx, c.array, x.vv.Name)
		if err != nil {
			return reply{}, err
		}
		return reply{body: []volumeOut{x.volumeOut(p)}}, nil
	}
	all, err := list(c.ctx, c.array, kindVolume)
	if err != nil {
		return reply{}, err
	}
	vluns, err := c.array.VLUNs(c.ctx)
	if err != nil {
		return reply{}, failed("listing exports", err)
	}
	exported := map[string]bool{}
	for _, v := range templates(vluns) {
		exported[v.Volume] = true
	}
	out := []volumeOut{}
	for _, x := range all {
		out = append(out, x.volumeOut(exported[x.vv.Name]))
	}
	return reply{body: out}, nil
}

// dropFailed drops a volume whose copy failed.
func (s *Server) dropFailed(c *call, id string) error {
	leave, err := s.enter(c, kindVolume, id)
	if err != nil {
		return err
	}
	defer leave()
	x, err := find(c.ctx, c.array, kindVolume, id)
	if err != nil || x == nil || x.copying() != statusFailed {
		return err
	}
	return s.drop(c, x, false)
}

// volumeIn is what a client says about a volume. Members that it sends empty
// are as if they were absent.
type volumeIn struct {
	Name           string  `json:"name"`
	Size           *int64  `json:"size"`
	Description    *string `json:"description"`
	BaseSnapshotID string  `json:"base_snapshot_id"`
	Clone          bool    `json:"clone"`
	VolumeGroupID  string  `json:"volume_group_id"`
	Config         config  `json:"config"`
}

// pool is where a new volume goes.
func (s *Server) pool(c *call, cfg config) (cpg, snap string, err error) {
	cpg = cfg["cpg"]
	if cpg == "" { // the provider chooses: the one with most space
		all, err := c.array.CPGs(c.ctx)
		if err != nil {
			return "", "", failed("listing CPGs", err)
		}
		all = slices.DeleteFunc(all, func(g wsapi.CPG) bool { return g.Domain != cfg["virtual_domain"] })
		if len(all) == 0 {
			return "", "", wrong("cpg", "", "required, as the array has none to choose")
		}
		cpg = slices.MaxFunc(all, func(g, h wsapi.CPG) int {
			return cmp.Or(cmp.Compare(g.FreeMiB, h.FreeMiB), cmp.Compare(h.Name, g.Name))
		}).Name
	}
	// Unverified: today's documents want snapCpg given for snapshots; those of
	// earlier versions have this default.
	if snap = cfg["snap_cpg"]; snap == "" {
		snap = cpg
	}
	return cpg, snap, nil
}

func (s *Server) createVolume(c *call) (reply, error) {
	var in volumeIn
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Name == "" {
		return reply{}, refuse(http.StatusBadRequest, "name is required")
	}
	if err := in.Config.check(); err != nil {
		return reply{}, err
	}
	if v := in.Config[fileRules]; v != "" {
		return reply{}, wrong(fileRules, v, "not a parameter")
	}
	if in.Config["access_protocol"] == protoFile && c.on.FileService == "" {
		return reply{}, noFileService()
	}
	leave, err := s.enter(c, kindVolume, in.Name)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	there, err := find(c.ctx, c.array, kindVolume, in.Name)
	if err != nil {
		return reply{}, err
	}
	if there != nil && !there.Todo && decodable(there.vv.Comment) {
		return reply{}, refuse(http.StatusConflict, "volume %s already exists", clip(in.Name))
	}
	if err := s.makeVolume(c, in, there); err != nil {
		return reply{}, inTheWay(err)
	}
	return s.show(c, in.Name)
}

func decodable(comment string) bool {
	_, ok := decodeRecord(comment)
	return ok
}

// newRecord is that of a volume to be made.
func (in volumeIn) newRecord() record {
	r := record{Kind: kindVolume, ID: in.Name, Config: in.Config}
	if in.Description != nil {
		r.Description = *in.Description
	}
	if r.Description == "" {
		r.Description = in.Config["description"]
	}
	return r
}

// plain makes a volume without content.
func (s *Server) plain(c *call, in volumeIn, r record, mib int64) (string, error) {
	threePAR, err := c.on.threePAR(c.ctx, c.array)
	if err != nil {
		return "", err
	}
	p, err := in.Config.provisioning(threePAR)
	if err != nil {
		return "", err
	}
	cpg, snap, err := s.pool(c, in.Config)
	if err != nil {
		return "", err
	}
	name, err := create(c.ctx, c.array, r, func(name, comment string) error {
		return c.array.CreateVolume(c.ctx, wsapi.NewVolume{Name: name, CPG: cpg, SnapCPG: snap, SizeMiB: mib,
			TPVV: p.tpvv, TDVV: p.tdvv, Reduce: p.reduce, Compression: p.compression, Comment: comment})
	})
	var e *wsapi.Error
	if wsapi.Is(err, wsapi.CodeNoCPG) && errors.As(err, &e) {
		if e.Ref == "snapCPG" {
			return "", wrong("snap_cpg", snap, "the array has no such CPG")
		}
		return "", wrong("cpg", cpg, "the array has no such CPG")
	}
	return name, failed("creating volume "+clip(in.Name), err)
}

// grow enlarges a volume to some MiB.
func (s *Server) grow(c *call, x *item, mib int64) error {
	if mib < x.vv.SizeMiB {
		return wrong("size", strconv.FormatInt(mib<<20, 10), "the volume has "+strconv.FormatInt(x.vv.SizeMiB<<20, 10)+" and cannot shrink")
	}
	if mib == x.vv.SizeMiB {
		return nil
	}
	return failed("expanding volume "+clip(x.ID), c.array.GrowVolume(c.ctx, x.vv.Name, mib-x.vv.SizeMiB))
}
