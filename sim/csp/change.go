package csp

import (
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// changeVolume expands a volume, or edits it. What a client sends empty, as
// volume_group_id always, stays as it is.
func (s *Server) changeVolume(c *call) (reply, error) {
	var in volumeIn
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	id := c.vars["id"]
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if in.Size != nil && *in.Size != 0 {
		mib, err := sizeMiB(*in.Size)
		if err != nil {
			return reply{}, err
		}
		if err := s.expand(c, x, mib); err != nil {
			return reply{}, err
		}
	}
	if len(in.Config) > 0 || in.Description != nil && *in.Description != "" {
		if err := s.edit(c, x, in); err != nil {
			return reply{}, err
		}
	}
	if in.VolumeGroupID != "" && in.VolumeGroupID != x.Set {
		if err := s.join(c, x, in.VolumeGroupID); err != nil {
			return reply{}, err
		}
	}
	return s.show(c, id)
}

// immutable are parameters that say what a volume was made of, or of which
// protocol and domain it is.
var immutable = append([]string{"virtual_domain", "access_protocol", fileRules}, sources...)

// edit changes parameters and description: by the array where it is about the
// array, else in the record.
func (s *Server) edit(c *call, x *item, in volumeIn) error {
	cfg := config(mergeConfig(x.Config, in.Config))
	if err := cfg.check(); err != nil {
		return err
	}
	for _, n := range immutable {
		if v, given := in.Config[n]; given && v != x.Config[n] {
			return wrong(n, v, "cannot be changed")
		}
	}
	doing := "editing volume " + clip(x.ID)
	threePAR, err := c.on.threePAR(c.ctx, c.array)
	if err != nil {
		return err
	}
	p, err := cfg.provisioning(threePAR)
	if err != nil {
		return err
	}
	kind := in.Config["provisioning_type"]
	tune := wsapi.Tune{UserCPG: x.vv.UserCPG}
	if kind != "" && kind != provisioningName(x.vv.Provisioning) {
		tune.Conversion = map[string]int{"tpvv": 1, "full": 2, "dedup": 3, "reduce": 4}[kind]
	}
	if p.compression != (x.vv.Compression == 1) && in.Config["compression"] != "" && !p.reduce {
		return wrong("compression", in.Config["compression"], "cannot be changed on this array")
	}
	if g := in.Config["cpg"]; g != "" {
		tune.UserCPG = g
	}
	snap := in.Config["snap_cpg"]
	if snap == x.vv.SnapCPG {
		snap = ""
	}
	moves := tune.Conversion != 0 || tune.UserCPG != x.vv.UserCPG
	if moves || snap != "" { // not with snapshots or clones
		copies, err := c.array.CopiesOf(c.ctx, x.vv.Name)
		if err != nil {
			return failed(doing, err)
		}
		if len(copies) > 0 || x.vv.CopyType == wsapi.VirtualCopy {
			return refuse(http.StatusConflict, "%s: a volume with snapshots or clones cannot be changed", doing)
		}
	}
	if snap != "" {
		if err := c.array.ModifyVolume(c.ctx, x.vv.Name, wsapi.VolumeChange{SnapCPG: &snap}); err != nil {
			return failed(doing, err)
		}
	}
	if moves {
		if err := c.array.TuneVolume(c.ctx, x.vv.Name, tune); err != nil {
			return failed(doing, err)
		}
	}
	if err := s.replicateLater(c, x, cfg); err != nil {
		return err
	}
	x.Config = cfg
	if in.Description != nil && *in.Description != "" {
		x.Description = *in.Description
	}
	return failed(doing, save(c.ctx, c.array, x.vv.Name, x.record))
}

// deleteVolume drops a volume. force ends its exports and drops its snapshots
// before.
func (s *Server) deleteVolume(c *call) (reply, error) {
	id := c.vars["id"]
	force, err := config(c.query).flag("force")
	if err != nil {
		return reply{}, err
	}
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	return reply{}, s.drop(c, x, force)
}

// drop takes a volume out of what the provider put it in, and drops it.
func (s *Server) drop(c *call, x *item, force bool) error {
	doing := "deleting volume " + clip(x.ID)
	if force {
		pair, err := s.pairOf(c, x)
		if err != nil {
			return err
		}
		all := func(string) bool { return true }
		if err := s.unpublishPeer(c, pair, hostBody{}, all); err != nil {
			return err
		}
		nodes, err := s.unexport(c.ctx, c.on, c.array, x.vv.Name, hostBody{}, all)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if err := s.reapAll(c.ctx, c.on, c.array, n); err != nil {
				return err
			}
			if pair != nil {
				if err := s.reapAll(c.ctx, pair.on, pair.array, n); err != nil {
					return peerFailed(pair, err)
				}
			}
		}
	} else {
		is, err := published(c.ctx, c.array, x.vv.Name)
		if err != nil {
			return err
		}
		if is || x.shared() {
			return refuse(http.StatusBadRequest, "%s: the volume is still published", doing)
		}
	}
	snaps, err := snapshotsOf(c.ctx, c.array, x.vv.Name)
	if err != nil {
		return err
	}
	if !force && slices.ContainsFunc(snaps, func(i item) bool { return !strings.HasPrefix(i.id(), forClone) }) {
		return refuse(http.StatusConflict, "%s: the volume has snapshots", doing)
	}
	for _, y := range snaps {
		err := c.array.DeleteVolume(c.ctx, y.vv.Name)
		if wsapi.Is(err, wsapi.CodeCopying) {
			return refuse(http.StatusConflict, "%s: a copy of it runs: %v", doing, err)
		}
		if err != nil && !wsapi.NotFound(err) {
			return failed(doing, err)
		}
	}
	if err := s.withdraw(c, x); err != nil { // from its remote copy group
		return err
	}
	for _, set := range x.sets() {
		err := c.array.ChangeSetMembers(c.ctx, set, wsapi.RemoveMembers, x.vv.Name)
		if err != nil && !wsapi.NotFound(err) {
			return failed(doing, err)
		}
	}
	err = c.array.DeleteVolume(c.ctx, x.vv.Name)
	if x.Copy && wsapi.Is(err, wsapi.CodeOnlineCopy, wsapi.CodeCopying) { // as OpenStack's driver does
		if err = c.array.StopCopy(c.ctx, x.vv.Name); err == nil {
			err = c.array.DeleteVolume(c.ctx, x.vv.Name)
		}
	}
	if wsapi.NotFound(err) {
		return nil
	}
	if wsapi.Is(err, wsapi.CodeCopying) {
		return refuse(http.StatusConflict, "%s: a copy of it runs: %v", doing, err)
	}
	return failed(doing, err)
}

// sets are the volume sets that the provider put a volume in.
func (i item) sets() []string {
	var out []string
	for _, n := range []string{i.Config["qos_name"], i.setName()} {
		if n != "" {
			out = append(out, n)
		}
	}
	return out
}
