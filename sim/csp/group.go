package csp

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// maxSetName is how long the name of a volume set may be.
const maxSetName = 27

// kindGroup is that of a volume set which is a volume group.
const kindGroup = "group"

// groupSet is the volume set of a volume group.
func groupSet(id string) string {
	if len(id) <= maxSetName && legal(id) == id {
		return id
	}
	return short(kindGroup, id, maxSetName)
}

func (i item) setName() string {
	if i.Set == "" {
		return ""
	}
	return groupSet(i.Set)
}

// groupMark is what the comment of a volume set says.
type groupMark struct {
	Kind        string            `json:"kind"`
	ID          string            `json:"id"`
	Description string            `json:"desc,omitempty"`
	Config      map[string]string `json:"cfg,omitempty"`
	Created     int64             `json:"at,omitempty"`
}

func groupOfSet(s wsapi.Set) (groupMark, bool) {
	var m groupMark
	if !strings.HasPrefix(s.Comment, `{"kind":`) || json.Unmarshal([]byte(s.Comment), &m) != nil || m.Kind != kindGroup {
		return m, false
	}
	return m, true
}

// groupOut is how the API shows a volume group.
type groupOut struct {
	ID           string            `json:"id"`
	Name         string            `json:"name"`
	Description  string            `json:"description"`
	Config       map[string]string `json:"config"`
	Volumes      []volumeOut       `json:"volumes"`
	CreationTime int64             `json:"creation_time"`
}

// group finds a volume group, with 404 where there is none.
func (s *Server) group(c *call, id string) (wsapi.Set, error) {
	set, err := c.array.VolumeSet(c.ctx, groupSet(id))
	if err != nil && !wsapi.NotFound(err) {
		return set, failed("looking for volume group "+clip(id), err)
	}
	if m, ok := groupOfSet(set); err != nil || !ok || m.ID != id {
		return set, refuse(http.StatusNotFound, "volume group %s not found", clip(id))
	}
	return set, nil
}

func (s *Server) showGroup(c *call, id string) (groupOut, error) {
	set, err := s.group(c, id)
	if err != nil {
		return groupOut{}, err
	}
	m, _ := groupOfSet(set)
	out := groupOut{ID: m.ID, Name: m.ID, Description: m.Description, Config: m.Config, Volumes: []volumeOut{}, CreationTime: m.Created}
	if out.Config == nil {
		out.Config = map[string]string{}
	}
	for _, n := range set.Members {
		vv, err := c.array.Volume(c.ctx, n)
		if wsapi.NotFound(err) {
			continue
		}
		if err != nil {
			return out, failed("reading volume group "+clip(id), err)
		}
		r, ok := decodeRecord(vv.Comment)
		if !ok { // put in by hand
			continue
		}
		x := item{vv, r}
		if err := x.fill(c.ctx, c.array, n); err != nil {
			return out, failed("reading volume group "+clip(id), err)
		}
		p, err := published(c.ctx, c.array, n)
		if err != nil {
			return out, err
		}
		out.Volumes = append(out.Volumes, x.volumeOut(p))
	}
	return out, nil
}

func (s *Server) createGroup(c *call) (reply, error) {
	var in struct {
		Name        string `json:"name"`
		Description string `json:"description"`
		Config      config `json:"config"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Name == "" {
		return reply{}, refuse(http.StatusBadRequest, "name is required")
	}
	rule, qos, err := ruleOf(in.Config)
	if err != nil {
		return reply{}, err
	}
	leave, err := s.enter(c, kindGroup, in.Name)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	doing := "creating volume group " + clip(in.Name)
	comment := ascii(groupMark{kindGroup, in.Name, in.Description, in.Config, s.cfg.Now().Unix()})
	if len(comment) > maxComment {
		return reply{}, refuse(http.StatusBadRequest, "name, description and config have %d bytes together, allowed are %d", len(comment), maxComment)
	}
	set := groupSet(in.Name)
	x, err := c.array.VolumeSet(c.ctx, set)
	switch {
	case err == nil: // an attempt before may have come no further than this
		m, ok := groupOfSet(x)
		same := ok && m.ID == in.Name && m.Description == in.Description && maps.Equal(m.Config, map[string]string(in.Config))
		halfway := false
		if same && qos {
			_, err := c.array.Rule(c.ctx, set)
			if halfway = wsapi.NotFound(err); err != nil && !halfway {
				return reply{}, failed(doing, err)
			}
		}
		if !halfway {
			return reply{}, refuse(http.StatusConflict, "volume group %s already exists", clip(in.Name))
		}
	case !wsapi.NotFound(err):
		return reply{}, failed(doing, err)
	default:
		// One that is there now is ours: its answer was lost.
		err = c.array.CreateVolumeSet(c.ctx, wsapi.Set{Name: set, Domain: in.Config["domain"], Comment: comment})
		if err != nil && !wsapi.Is(err, wsapi.CodeSetThere) {
			return reply{}, failed(doing, err)
		}
	}
	if qos {
		rule.Name = set
		if err := c.array.CreateRule(c.ctx, rule); err != nil && !wsapi.Is(err, wsapi.CodeQoSThere) {
			_ = c.array.DeleteVolumeSet(c.ctx, set)
			return reply{}, failed(doing, err)
		}
	}
	out, err := s.showGroup(c, in.Name)
	return reply{body: out}, err
}

// goals of quality of service, which go together. Clients spell them as a
// VolumeGroupClass does, or with underscores.
var goals = []string{"priority", "io_min_goal", "io_max_limit", "bw_min_goal_kb", "bw_max_limit_kb", "latency_goal"}

// ruleOf reads the rule of a group; false without one.
func ruleOf(in config) (r wsapi.Rule, some bool, err error) {
	cfg := config{}
	for k, v := range in {
		cfg[snake(k)] = v
	}
	var missing []string
	for _, n := range goals {
		if cfg[n] == "" {
			missing = append(missing, n)
		}
	}
	if len(missing) == len(goals) {
		return r, false, nil
	}
	if len(missing) > 0 {
		return r, false, wrong(missing[0], "", "all of "+strings.Join(goals, ", ")+" are required together")
	}
	switch strings.ToLower(cfg["priority"]) {
	case "low":
		r.Priority = 1
	case "normal":
		r.Priority = 2
	case "high":
		r.Priority = 3
	default:
		return r, false, wrong("priority", cfg["priority"], "allowed are low, normal and high")
	}
	for n, to := range map[string]*int64{"io_min_goal": &r.IOMinGoal, "io_max_limit": &r.IOMaxLimit, "bw_min_goal_kb": &r.BwMinGoalKB, "bw_max_limit_kb": &r.BwMaxLimit} {
		if *to, err = cfg.number(n, 0, 1<<31-1); err != nil {
			return r, false, err
		}
	}
	if r.LatencyGoal, err = latency(cfg["latency_goal"]); err != nil {
		return r, false, err
	}
	return r, true, nil
}

// latency reads a goal, as in 300ms or 500us, in ms. Without a unit it is ms.
func latency(v string) (int64, error) {
	unit := int64(1000) // µs
	digits := strings.TrimSuffix(v, "ms")
	if d, us := strings.CutSuffix(v, "us"); us {
		unit, digits = 1, d
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > 1<<31 {
		return 0, wrong("latency_goal", v, "allowed is a number of ms or us, as in 300ms")
	}
	return max(n*unit/1000, 1), nil
}

// snake spells aWord as a_word.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (s *Server) getGroup(c *call) (reply, error) {
	out, err := s.showGroup(c, c.vars["id"])
	return reply{body: out}, err
}

func (s *Server) listGroups(c *call) (reply, error) {
	if name := c.query["name"]; name != "" {
		out, err := s.showGroup(c, name)
		return reply{body: []groupOut{out}}, err
	}
	sets, err := c.array.VolumeSets(c.ctx)
	if err != nil {
		return reply{}, failed("listing volume groups", err)
	}
	out := []groupOut{}
	for _, set := range sets {
		m, ok := groupOfSet(set)
		if !ok {
			continue
		}
		g, err := s.showGroup(c, m.ID)
		if err != nil {
			return reply{}, err
		}
		out = append(out, g)
	}
	return reply{body: out}, nil
}

// deleteGroup drops an empty group.
func (s *Server) deleteGroup(c *call) (reply, error) {
	id := c.vars["id"]
	leave, err := s.enter(c, kindGroup, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	set, err := s.group(c, id)
	if err != nil {
		return reply{}, err
	}
	if len(set.Members) > 0 {
		return reply{}, refuse(http.StatusConflict, "volume group %s has %d volumes", clip(id), len(set.Members))
	}
	doing := "deleting volume group " + clip(id)
	if err := c.array.DeleteRule(c.ctx, set.Name); err != nil && !wsapi.NotFound(err) {
		return reply{}, failed(doing, err)
	}
	if err := c.array.DeleteVolumeSet(c.ctx, set.Name); err != nil && !wsapi.NotFound(err) {
		return reply{}, failed(doing, err)
	}
	return reply{}, nil
}

// join puts a volume in a volume group, and out of the one in which it is.
func (s *Server) join(c *call, x *item, id string) error {
	if err := x.notAFile("a volume group"); err != nil {
		return err
	}
	if _, err := s.group(c, id); err != nil {
		return err
	}
	doing := "adding volume " + clip(x.ID) + " to volume group " + clip(id)
	if old := x.setName(); old != "" {
		if err := c.array.ChangeSetMembers(c.ctx, old, wsapi.RemoveMembers, x.vv.Name); err != nil && !wsapi.NotFound(err) {
			return failed(doing, err)
		}
	}
	if err := c.array.ChangeSetMembers(c.ctx, groupSet(id), wsapi.AddMembers, x.vv.Name); err != nil {
		return failed(doing, err)
	}
	x.Set = id
	return failed(doing, save(c.ctx, c.array, x.vv.Name, x.record))
}

// snapshotGroupOut is how the API shows a snapshot group.
type snapshotGroupOut struct {
	ID              string            `json:"id"`
	Name            string            `json:"name"`
	Snapshots       []snapshotOut     `json:"snapshots"`
	Config          map[string]string `json:"config"`
	VolumeGroupID   string            `json:"volume_group_id"`
	VolumeGroupName string            `json:"volume_group_name"`
	CreationTime    int64             `json:"creation_time"`
}

// snapshotGroups reads the snapshot groups of the array, or the one of an id.
func (s *Server) snapshotGroups(c *call, id string) ([]snapshotGroupOut, error) {
	all, err := c.array.Volumes(c.ctx)
	if err != nil {
		return nil, failed("listing snapshot groups", err)
	}
	ids := map[string]string{} // of volumes, by virtual volume
	for _, vv := range all {
		if r, ok := decodeRecord(vv.Comment); ok && r.Kind == kindVolume {
			ids[vv.Name] = r.ID
		}
	}
	out := []snapshotGroupOut{}
	for _, vv := range all {
		r, ok := decodeRecord(vv.Comment)
		if !ok || r.Group == "" || id != "" && r.Group != id {
			continue
		}
		x := item{vv, r}
		if err := x.fill(c.ctx, c.array, vv.Name); err != nil {
			return nil, failed("listing snapshot groups", err)
		}
		of, ok := ids[vv.CopyOf]
		if !ok {
			of = vv.CopyOf
		}
		snap := x.snapshotOut(of)
		i := slices.IndexFunc(out, func(g snapshotGroupOut) bool { return g.ID == r.Group })
		if i < 0 {
			cfg := mergeConfig(x.Config, map[string]string{"is_complete": "true"})
			out = append(out, snapshotGroupOut{ID: r.Group, Name: r.Group, Config: cfg, VolumeGroupID: r.Of, VolumeGroupName: r.Of, CreationTime: snap.CreationTime})
			i = len(out) - 1
		}
		out[i].Snapshots = append(out[i].Snapshots, snap)
	}
	return out, nil
}

// createSnapshotGroup makes snapshots of all volumes of a group, of one moment.
func (s *Server) createSnapshotGroup(c *call) (reply, error) {
	var in struct {
		Name          string `json:"name"`
		VolumeGroupID string `json:"volume_group_id"`
		Config        config `json:"config"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if in.Name == "" {
		return reply{}, refuse(http.StatusBadRequest, "name is required")
	}
	if in.VolumeGroupID == "" {
		return reply{}, refuse(http.StatusBadRequest, "volume_group_id is required")
	}
	n, err := copyOf(in.Config)
	if err != nil {
		return reply{}, err
	}
	leave, err := s.enter(c, "snapshot group", in.Name)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	set, err := s.group(c, in.VolumeGroupID)
	if err != nil {
		return reply{}, err
	}
	if len(set.Members) == 0 {
		return reply{}, refuse(http.StatusBadRequest, "volume group %s has no volumes", clip(in.VolumeGroupID))
	}
	there, err := s.snapshotGroups(c, in.Name)
	if err != nil {
		return reply{}, err
	}
	if len(there) > 0 {
		return reply{}, refuse(http.StatusConflict, "snapshot group %s already exists", clip(in.Name))
	}
	// One comment is for all of them: each is known by its virtual volume's name.
	r := record{Kind: kindSnapshot, Group: in.Name, Of: in.VolumeGroupID, Config: in.Config}
	if n.Comment = ascii(r); len(n.Comment) > maxComment {
		return reply{}, refuse(http.StatusBadRequest, "name, volume group and config have %d bytes together, allowed are %d", len(n.Comment), maxComment)
	}
	const count = "-@count@" // at most four digits
	n.Name = short("snapshot group", in.Name, maxName-len("-9999")) + count
	err = c.array.CopySet(c.ctx, set.Name, n)
	if wsapi.Is(err, wsapi.CodeVolumeThere) { // of a call whose answer was lost
		err = nil
	}
	if err != nil {
		return reply{}, inTheWay(failed("creating snapshot group "+clip(in.Name), err))
	}
	return s.showSnapshotGroup(c, in.Name)
}

func (s *Server) showSnapshotGroup(c *call, id string) (reply, error) {
	all, err := s.snapshotGroups(c, id)
	if err != nil {
		return reply{}, err
	}
	if len(all) == 0 {
		return reply{}, refuse(http.StatusNotFound, "snapshot group %s not found", clip(id))
	}
	return reply{body: all[0]}, nil
}

func (s *Server) getSnapshotGroup(c *call) (reply, error) {
	return s.showSnapshotGroup(c, c.vars["id"])
}

func (s *Server) listSnapshotGroups(c *call) (reply, error) {
	all, err := s.snapshotGroups(c, "")
	if err != nil {
		return reply{}, err
	}
	if of := c.query["volume_group_id"]; of != "" {
		all = slices.DeleteFunc(all, func(g snapshotGroupOut) bool { return g.VolumeGroupID != of })
	}
	return reply{body: all}, nil
}

// deleteSnapshotGroup drops all snapshots of a group. What an attempt before
// dropped is gone.
func (s *Server) deleteSnapshotGroup(c *call) (reply, error) {
	id := c.vars["id"]
	leave, err := s.enter(c, "snapshot group", id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	all, err := s.snapshotGroups(c, id)
	if err != nil {
		return reply{}, err
	}
	if len(all) == 0 {
		return reply{}, refuse(http.StatusNotFound, "snapshot group %s not found", clip(id))
	}
	for _, x := range all[0].Snapshots {
		err := c.array.DeleteVolume(c.ctx, x.ID)
		if wsapi.Is(err, wsapi.CodeCopying) {
			return reply{}, refuse(http.StatusConflict, "deleting snapshot group %s: %v", clip(id), err)
		}
		if err != nil && !wsapi.NotFound(err) {
			return reply{}, failed("deleting snapshot group "+clip(id), err)
		}
	}
	return reply{}, nil
}

// partnerOut is how the API shows another array.
type partnerOut struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	ReplRole string `json:"repl_role"`
	Alive    bool   `json:"is_alive"`
}

// listPartners lists the targets of remote copy. Unverified: the role of one to
// which groups copy in both directions.
func (s *Server) listPartners(c *call) (reply, error) {
	all, err := c.array.Targets(c.ctx)
	if err != nil {
		return reply{}, failed("listing replication partners", err)
	}
	out := []partnerOut{}
	name := c.query["name"]
	for _, t := range all {
		if name == "" || t.Name == name {
			out = append(out, partnerOut{t.Name, t.Name, "bi_directional", t.State == 1})
		}
	}
	if name != "" && len(out) == 0 {
		return reply{}, refuse(http.StatusNotFound, "replication partner %s not found", clip(name))
	}
	return reply{body: out}, nil
}
