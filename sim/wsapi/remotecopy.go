package wsapi

import (
	"net/http"
	"strconv"

	"github.com/csilab/csilab/sim/array"
)

var remoteCopyRoutes = []route{
	get("remotecopy", (*Server).remoteCopy),
	get("remotecopytargets", (*Server).listTargets),
	get("remotecopytargets/{name}", (*Server).getTarget),
	get("remotecopylinks", (*Server).listLinks),
	get("remotecopylinks/{name}", (*Server).getLink),
	get("remotecopygroups", (*Server).listGroups),
	get("remotecopygroups/{name}", (*Server).getGroup),
	change(http.MethodPost, "remotecopygroups", (*Server).createGroup),
	change(http.MethodPut, "remotecopygroups/{name}", (*Server).changeGroup),
	change(http.MethodPost, "remotecopygroups/{name}", (*Server).turnGroup),
	change(http.MethodDelete, "remotecopygroups/{name}", (*Server).deleteGroup),
	get("remotecopygroups/{name}/volumes", (*Server).groupVolumes),
	change(http.MethodPost, "remotecopygroups/{name}/volumes", (*Server).admitVolume),
	change(http.MethodDelete, "remotecopygroups/{name}/volumes/{volume}", (*Server).dismissVolume),
}

// remoteCopy says that remote copy runs. Unverified: the numbers of status.
func (s *Server) remoteCopy(c *call) (reply, error) {
	return reply{body: map[string]any{"status": 1, "asyncEnabled": true, "links": c.link("remotecopy")}}, nil
}

// targetOut shows a target. Unverified: the numbers of state, here 1 ready and
// 2 failed, and which members say how it is reached.
func targetOut(c *call, t array.Target) map[string]any {
	state := 1
	if !t.Ready {
		state = 2
	}
	return map[string]any{"name": t.Name, "type": 1, "enabled": true, "state": state, "systemSerialNumber": t.Serial, "links": c.link("remotecopytargets", t.Name)}
}

func (s *Server) listTargets(c *call) (reply, error) {
	var out []map[string]any
	for _, t := range s.a.Targets() {
		out = append(out, targetOut(c, t))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getTarget(c *call) (reply, error) {
	for _, t := range s.a.Targets() {
		if t.Name == c.vars["name"] {
			return reply{body: targetOut(c, t)}, nil
		}
	}
	// Unverified: the number for a target that is not there.
	f := refuse(array.GroupTarget, "name", "remote copy target does not exist")
	f.status = http.StatusNotFound
	return reply{}, f
}

// linkOut shows a link. Unverified: all its members; the client that is public
// (HPE's PowerShell toolkit) hands on what it gets. Status is 1 up, 2 down.
func linkOut(c *call, l array.RemoteLink) map[string]any {
	status := 1
	if !l.Up {
		status = 2
	}
	return map[string]any{"name": l.Name, "targetName": l.Target, "portPos": l.Port, "address": l.Address, "targetAddress": l.Peer, "status": status,
		"links": c.link("remotecopylinks", l.Name)}
}

func (s *Server) listLinks(c *call) (reply, error) {
	var out []map[string]any
	for _, l := range s.a.RemoteLinks() {
		out = append(out, linkOut(c, l))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getLink(c *call) (reply, error) {
	for _, l := range s.a.RemoteLinks() {
		if l.Name == c.vars["name"] {
			return reply{body: linkOut(c, l)}, nil
		}
	}
	return reply{}, refuse(array.NonExistentLink, "name", "remote copy link does not exist")
}

func (s *Server) groupVolumesOut(g array.Group) []map[string]any {
	out := []map[string]any{}
	for _, v := range g.Volumes {
		x := map[string]any{"localVolumeName": v.Volume, "remoteVolumes": []map[string]any{
			{"targetName": g.Target, "remoteVolumeName": v.Remote, "syncStatus": v.State}}}
		if o, err := s.a.Volume(v.Volume); err == nil {
			x["localVolumeId"] = o.ID
		}
		out = append(out, x)
	}
	return out
}

func (s *Server) groupOut(c *call, g array.Group) map[string]any {
	target := map[string]any{"targetName": g.Target, "remoteGroupName": g.Remote, "mode": g.Mode, "state": g.State, "roleReversed": g.Reversed,
		"policies": map[string]any{"autoFailover": g.AutoFailover, "pathManagement": g.AutoFailover, "activeActive": g.ActiveActive, "autoRecover": false, "overPeriodAlert": false}}
	if g.Period > 0 {
		target["syncPeriod"] = g.Period
	}
	if !g.LastSync.IsZero() {
		target["groupLastSyncTime8601"] = stamp(g.LastSync)
	}
	out := map[string]any{"id": g.ID, "name": g.Name, "role": g.Role, "targets": []any{target}, "volumes": s.groupVolumesOut(g),
		"links": c.link("remotecopygroups", g.Name)}
	for k, v := range map[string]string{"domain": g.Domain, "localUserCPG": g.UserCPG, "localSnapCPG": g.SnapCPG} {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

func (s *Server) listGroups(c *call) (reply, error) {
	var out []map[string]any
	for _, g := range s.a.Groups() {
		out = append(out, s.groupOut(c, g))
	}
	return reply{body: list(out)}, nil
}

func (s *Server) getGroup(c *call) (reply, error) {
	g, err := s.a.Group(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: s.groupOut(c, g)}, nil
}

func (s *Server) groupVolumes(c *call) (reply, error) {
	g, err := s.a.Group(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	return reply{body: list(s.groupVolumesOut(g))}, nil
}

func (s *Server) createGroup(c *call) (reply, error) {
	var in struct {
		Name         *string `json:"name"`
		Domain       *string `json:"domain"`
		LocalUserCPG *string `json:"localUserCPG"`
		LocalSnapCPG *string `json:"localSnapCPG"`
		Targets      []struct {
			TargetName *string `json:"targetName"`
			Mode       *int64  `json:"mode"`
			UserCPG    *string `json:"userCPG"`
			SnapCPG    *string `json:"snapCPG"`
		} `json:"targets"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Name != nil, "name"); err != nil {
		return reply{}, err
	}
	if err := required(len(in.Targets) > 0, "targets"); err != nil {
		return reply{}, err
	}
	if len(in.Targets) > 1 { // a group has one target here
		return reply{}, refuse(array.UnsupportedOp, "targets", "unsupported operation")
	}
	t := in.Targets[0]
	if err := required(t.TargetName != nil, "targetName"); err != nil {
		return reply{}, err
	}
	if err := required(t.Mode != nil, "mode"); err != nil {
		return reply{}, err
	}
	mode := array.GroupMode(*t.Mode)
	if mode == 2 { // what periodic was before it was 3: still taken (HPE's PowerShell toolkit)
		mode = array.Periodic
	}
	g, err := s.a.CreateGroup(c.now, array.GroupSpec{Name: *in.Name, Target: *t.TargetName, Domain: given(in.Domain), Mode: mode,
		LocalUserCPG: given(in.LocalUserCPG), LocalSnapCPG: given(in.LocalSnapCPG), TargetUserCPG: given(t.UserCPG), TargetSnapCPG: given(t.SnapCPG)})
	if err != nil {
		return reply{}, err
	}
	return created("remotecopygroups", g.Name), nil
}

// admission of a volume to a group.
type admission struct {
	VolumeName   *string `json:"volumeName"`
	Snapshot     *string `json:"snapshotName"`
	AutoCreation *bool   `json:"volumeAutoCreation"`
	SkipSync     *bool   `json:"skipInitialSync"`
	DifferentWWN *bool   `json:"differentSecondaryWWN"`
	Targets      []struct {
		TargetName *string `json:"targetName"`
		Volume     *string `json:"secVolumeName"`
	} `json:"targets"`
}

func (s *Server) admit(c *call, in admission) (reply, error) {
	if err := required(in.VolumeName != nil, "volumeName"); err != nil {
		return reply{}, err
	}
	if err := required(len(in.Targets) > 0, "targets"); err != nil {
		return reply{}, err
	}
	t := in.Targets[0]
	if len(in.Targets) > 1 || in.Snapshot != nil || given(in.SkipSync) || given(in.DifferentWWN) {
		return reply{}, refuse(array.UnsupportedOp, "volumeName", "unsupported operation")
	}
	if err := required(t.TargetName != nil, "targetName"); err != nil {
		return reply{}, err
	}
	if err := required(t.Volume != nil, "secVolumeName"); err != nil {
		return reply{}, err
	}
	g, err := s.a.Group(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	if g.Target != *t.TargetName {
		return reply{}, refuse(array.GroupTarget, "targetName", "the group has the target "+g.Target)
	}
	ops, err := s.a.AdmitVolume(c.now, g.Name, array.AdmitSpec{Volume: *in.VolumeName, Remote: *t.Volume, Create: given(in.AutoCreation)})
	if err == nil {
		s.owe(ops)
	}
	return reply{}, err
}

func (s *Server) admitVolume(c *call) (reply, error) {
	var in admission
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	r, err := s.admit(c, in)
	if err == nil {
		r = created("remotecopygroups", c.vars["name"], "volumes", *in.VolumeName)
	}
	return r, err
}

func (s *Server) dismiss(c *call, volume string, removePeer bool) (reply, error) {
	ops, err := s.a.DismissVolume(c.now, c.vars["name"], volume, removePeer)
	if err == nil {
		s.owe(ops)
	}
	return reply{}, err
}

// flag reads true or false of a URL.
func (c *call) flag(name string) (bool, error) {
	v := c.query.Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, refuse(array.InvalidInput, name, "invalid input: allowed are true and false")
	}
	return b, nil
}

func (s *Server) dismissVolume(c *call) (reply, error) {
	peer, err := c.flag("removeSecondaryVolume")
	if err != nil {
		return reply{}, err
	}
	if _, err := c.flag("keepSnap"); err != nil { // there are no snapshots of syncs
		return reply{}, err
	}
	return s.dismiss(c, c.vars["volume"], peer)
}

// started answers with the number of a task that copies, where there is one.
func (s *Server) started(t array.Task, ops []array.ContentOp, err error) (reply, error) {
	if err != nil {
		return reply{}, err
	}
	s.owe(ops)
	if t.ID == 0 {
		return reply{}, nil
	}
	return tasked(t, nil)
}

// The actions of a PUT of a group.
const (
	admitAction   = 1
	dismissAction = 2
	startAction   = 3
	stopAction    = 4
	syncAction    = 5
)

func (s *Server) changeGroup(c *call) (reply, error) {
	action, rest, err := takeAction(c.body)
	if err != nil {
		return reply{}, err
	}
	name := c.vars["name"]
	if action == nil {
		return s.modifyGroup(c)
	}
	switch *action {
	case admitAction:
		var in admission
		if err := decode(rest, &in); err != nil {
			return reply{}, err
		}
		return s.admit(c, in)
	case dismissAction:
		var in struct {
			VolumeName *string `json:"volumeName"`
			Keep       *bool   `json:"keepSnap"`
			RemovePeer *bool   `json:"removeSecondaryVolume"`
		}
		if err := decode(rest, &in); err != nil {
			return reply{}, err
		}
		if err := required(in.VolumeName != nil, "volumeName"); err != nil {
			return reply{}, err
		}
		return s.dismiss(c, *in.VolumeName, given(in.RemovePeer))
	case startAction, stopAction, syncAction:
		var in struct {
			SkipStart  *bool   `json:"skipStart"`
			TargetName *string `json:"targetName"`
			NoSnapshot *bool   `json:"noSnapshot"`
			NoResync   *bool   `json:"noResyncSnapshot"`
			FullSync   *bool   `json:"fullSync"` // how much goes over the link; the content is the same
		}
		if err := decode(rest, &in); err != nil {
			return reply{}, err
		}
		if given(in.SkipStart) {
			return reply{}, refuse(array.UnsupportedOp, "skipStart", "unsupported operation")
		}
		if in.TargetName != nil {
			if g, err := s.a.Group(name); err != nil {
				return reply{}, err
			} else if g.Target != *in.TargetName {
				return reply{}, refuse(array.GroupTarget, "targetName", "the group has the target "+g.Target)
			}
		}
		switch *action {
		case startAction:
			return s.started(s.a.StartGroup(c.now, name))
		case syncAction:
			return s.started(s.a.SyncGroup(c.now, name))
		}
		ops, err := s.a.StopGroup(c.now, name)
		return s.started(array.Task{}, ops, err)
	}
	return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed are 1 to 5")
}

// modifyGroup changes what a group has for its target.
func (s *Server) modifyGroup(c *call) (reply, error) {
	var in struct {
		Targets []struct {
			TargetName   *string `json:"targetName"`
			SyncPeriod   *int64  `json:"syncPeriod"`
			RemovePeriod *bool   `json:"rmSyncPeriod"`
			Policies     *struct {
				AutoFailover   *bool `json:"autoFailover"`
				PathManagement *bool `json:"pathManagement"`
				ActiveActive   *bool `json:"activeActive"` // unverified: its name; the shell's is active_active
				AutoRecover    *bool `json:"autoRecover"`
				Alert          *bool `json:"overPeriodAlert"`
			} `json:"policies"`
		} `json:"targets"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(len(in.Targets) == 1, "targets"); err != nil {
		return reply{}, err
	}
	t := in.Targets[0]
	if err := required(t.TargetName != nil, "targetName"); err != nil {
		return reply{}, err
	}
	g, err := s.a.Group(c.vars["name"])
	if err != nil {
		return reply{}, err
	}
	if g.Target != *t.TargetName {
		return reply{}, refuse(array.GroupTarget, "targetName", "the group has the target "+g.Target)
	}
	ch := array.GroupChange{Period: t.SyncPeriod}
	if given(t.RemovePeriod) {
		if ch.Period != nil {
			return reply{}, refuse(array.ParamConflict, "rmSyncPeriod", "invalid input: parameters cannot be present at the same time")
		}
		ch.Period = new(int64)
	}
	if p := t.Policies; p != nil {
		if given(p.AutoRecover) || given(p.Alert) {
			return reply{}, refuse(array.UnsupportedOp, "policies", "unsupported operation")
		}
		ch.AutoFailover, ch.ActiveActive = p.AutoFailover, p.ActiveActive // path management comes with the first
	}
	_, err = s.a.ModifyGroup(c.now, g.Name, ch)
	return reply{}, err
}

// turnGroup changes which side of a group is primary. Unverified: which action
// is which command of the array's shell: 6 reverse, 7 failover, 8 switchover, 9
// recover, 10 restore, 11 override.
func (s *Server) turnGroup(c *call) (reply, error) {
	var in struct {
		Action     *int64  `json:"action"`
		TargetName *string `json:"targetName"`
		SkipStart  *bool   `json:"skipStart"`
		SkipSync   *bool   `json:"skipSync"`
		Discard    *bool   `json:"discardNewData"`
		SkipPromo  *bool   `json:"skipPromote"`
		NoSnapshot *bool   `json:"noSnapshot"`
		StopGroups *bool   `json:"stopGroups"`
		Direction  *bool   `json:"localGroupsDirection"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Action != nil, "action"); err != nil {
		return reply{}, err
	}
	for _, x := range []struct {
		is   *bool
		name string
	}{{in.SkipStart, "skipStart"}, {in.SkipSync, "skipSync"}, {in.Discard, "discardNewData"}, {in.StopGroups, "stopGroups"}, {in.Direction, "localGroupsDirection"}} {
		if given(x.is) {
			return reply{}, refuse(array.UnsupportedOp, x.name, "unsupported operation")
		}
	}
	name := c.vars["name"]
	switch *in.Action {
	case 6:
		return reply{}, s.a.Reverse(c.now, name)
	case 7:
		return reply{}, s.a.Failover(c.now, name)
	case 8:
		return reply{}, s.a.Switchover(c.now, name)
	case 9:
		return s.started(s.a.Recover(c.now, name))
	case 10:
		ops, err := s.a.RestoreGroup(c.now, name)
		return s.started(array.Task{}, ops, err)
	case 11:
		return reply{}, s.a.Override(c.now, name)
	}
	return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed are 6 to 11")
}

func (s *Server) deleteGroup(c *call) (reply, error) {
	if _, err := c.flag("keepSnap"); err != nil {
		return reply{}, err
	}
	return reply{}, s.a.DeleteGroup(c.now, c.vars["name"])
}
