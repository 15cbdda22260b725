package csp

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// replicated says whether parameters ask for replication, and to where.
func (s *Server) replicated(cfg config) (d ReplicationDevice, ok bool, err error) {
	name := cfg["replication_devices"]
	if name == "" {
		return d, false, nil
	}
	if d, ok = s.cfg.ReplicationDevices[name]; !ok {
		return d, false, wrong("replication_devices", name, "there is no such replication device")
	}
	return d, true, nil
}

// checkReplication refuses replication that cannot be.
func (s *Server) checkReplication(c *call, cfg config) error {
	d, ok, err := s.replicated(cfg)
	if err != nil || !ok {
		return err
	}
	if d.TargetName == c.on.Name {
		return wrong("replication_devices", cfg["replication_devices"], "its target is the array itself")
	}
	if cfg["replication_policy"] == policyActive && d.TargetMode == modePeriodic {
		return wrong("replication_policy", policyActive, "the replication device is periodic")
	}
	if cfg["periodic_replication_interval"] != "" && d.TargetMode != modePeriodic {
		return wrong("periodic_replication_interval", cfg["periodic_replication_interval"], "the replication device is not periodic")
	}
	return nil
}

// groupOf is the remote copy group that parameters ask for: one that they name,
// or one for the volume alone. Unverified: how the latter is named.
func groupOf(id string, cfg config) string {
	if g := cfg["remote_copy_group"]; g != "" {
		return g
	}
	return short("rcg", id, maxGroupName)
}

// replicate puts a volume in its remote copy group, which is made where there is
// none. The group has to stop for it. An attempt that was interrupted is gone on
// with.
func (s *Server) replicate(c *call, name string, r *record) error {
	cfg := config(r.Config)
	d, ok, err := s.replicated(cfg)
	if err != nil || !ok {
		return err
	}
	group := groupOf(r.ID, cfg)
	j := &joining{name: name, r: r}
	if several, _ := cfg.flag("allow_batch_replicated_volume_creation"); several && cfg["remote_copy_group"] != "" {
		return s.inBatch(c, d, group, j)
	}
	s.together(c, d, group, []*joining{j})
	return j.err
}

// together puts volumes in a group, which stops for it once. Each of them says
// what became of it.
func (s *Server) together(c *call, d ReplicationDevice, group string, all []*joining) {
	doing := func(j *joining) string {
		return "adding volume " + clip(j.r.ID) + " to remote copy group " + group
	}
	// fail is the end of those that had no error yet.
	fail := func(err error) {
		for _, j := range all {
			if j.err == nil {
				j.err = failed(doing(j), err)
			}
		}
	}
	leave, err := s.enter(c, "remote copy group", group)
	if err != nil {
		fail(err)
		return
	}
	defer leave()
	g, err := c.array.Group(c.ctx, group)
	if wsapi.NotFound(err) {
		g, err = s.makeGroup(c, group, all[0].name, d)
	}
	switch {
	case err != nil:
		fail(err)
		return
	case g.Role != wsapi.Primary:
		fail(roleChanged(doing(all[0]), group))
		return
	case g.Target() != d.TargetName:
		fail(wrong("remote_copy_group", group, "its target is "+g.Target()))
		return
	}
	started, in := g.Started(), 0
	for _, j := range all {
		if _, there := g.RemoteVolume(j.name); !there {
			if g.Started() {
				if err := c.array.StopGroup(c.ctx, group); err != nil {
					fail(err)
					return
				}
				g.Targets[0].State = wsapi.GroupStopped
			}
			if j.err = failed(doing(j), s.admit(c, g, j.name, d, j.r.Config)); j.err != nil {
				continue
			}
			g.Volumes = append(g.Volumes, wsapi.GroupVolume{Local: j.name})
		}
		j.r.Replica = group
		if j.err = s.markPeer(c, d, j.name, *j.r); j.err == nil {
			in++
		}
	}
	// Where none came in it goes on as it was. A volume without its mark is not done:
	// the next attempt, which finds it in the group, starts that.
	if in == 0 && !started {
		return
	}
	if err := c.array.StartGroup(c.ctx, group); in > 0 {
		fail(err)
	}
}

// markPeer writes the record of a volume to its peer, by which it is known when
// the other array is the one that is used. Unverified: whether the real arrays
// or the real provider do.
func (s *Server) markPeer(c *call, d ReplicationDevice, name string, r record) error {
	p := &pairing{on: s.arrayNamed(d.TargetName)}
	p.array = p.on.client(s.peerLogin(c, d))
	r.Todo, r.Set = false, ""
	if err := save(c.ctx, p.array, name, r); err != nil {
		return peerFailed(p, err)
	}
	return nil
}

// peerLogin is who uses the other array: the device's user, or the token's.
func (s *Server) peerLogin(c *call, d ReplicationDevice) login {
	if d.TargetUser != "" {
		return login{d.TargetUser, d.TargetPassword}
	}
	return c.token.login
}

// makeGroup makes a group for volumes like one.
func (s *Server) makeGroup(c *call, group, volume string, d ReplicationDevice) (g wsapi.Group, err error) {
	vv, err := c.array.Volume(c.ctx, volume)
	if err != nil {
		return g, err
	}
	mode := wsapi.Synchronous
	if d.TargetMode == modePeriodic {
		mode = wsapi.Periodic
	}
	err = c.array.CreateGroup(c.ctx, wsapi.NewGroup{Name: group, LocalUserCPG: vv.UserCPG, LocalSnapCPG: vv.SnapCPG,
		Targets: []wsapi.GroupTarget{{Name: d.TargetName, Mode: mode, UserCPG: d.TargetCPG, SnapCPG: cmp.Or(d.TargetSnapCPG, d.TargetCPG)}}})
	if err != nil && !wsapi.Is(err, wsapi.CodeGroupThere) {
		return g, err
	}
	return c.array.Group(c.ctx, group)
}

// admit puts a volume in a stopped group. The first one sets how the group
// copies: with Peer Persistence, or every so often.
func (s *Server) admit(c *call, g wsapi.Group, volume string, d ReplicationDevice, cfg config) error {
	if len(g.Volumes) == 0 {
		if d.TargetMode == modePeriodic {
			if n, err := cfg.number("periodic_replication_interval", 15, 31622400); err != nil {
				return err
			} else if n > 0 {
				if err := c.array.SetPeriod(c.ctx, g.Name, d.TargetName, n); err != nil {
					return err
				}
			}
		} else if active := cfg["replication_policy"] == policyActive; !g.PeerPersistence() || active && !g.Active() {
			if err := c.array.SetPeerPersistence(c.ctx, g.Name, d.TargetName, active); err != nil {
				return err
			}
		}
	}
	return c.array.Admit(c.ctx, g.Name, d.TargetName, volume, volume)
}

// replicateLater puts a volume that is there in the group that changed
// parameters ask for.
func (s *Server) replicateLater(c *call, x *item, cfg config) error {
	if _, ok, err := s.replicated(cfg); err != nil || !ok {
		return err
	}
	if x.Replica != "" {
		if g := groupOf(x.ID, cfg); g != x.Replica {
			return wrong("remote_copy_group", g, "the volume is in "+x.Replica)
		}
		return nil
	}
	if err := s.checkReplication(c, cfg); err != nil {
		return err
	}
	r := x.record
	r.Config = cfg
	if err := s.replicate(c, x.vv.Name, &r); err != nil {
		return err
	}
	x.Replica = r.Replica
	return nil
}

// roleChanged refuses what is not possible while the roles of a group are not
// as they were: with Classic Peer Persistence nothing is, until they are again.
func roleChanged(doing, group string) error {
	return refuse(http.StatusInternalServerError, "%s: the role of remote copy group %s on the array has changed", doing, group)
}

// pairing is how a volume is replicated just now.
type pairing struct {
	group  wsapi.Group
	remote string // the peer
	on     *backend
	array  *wsapi.Client
}

// pairOf looks how a volume is replicated; nil where it is not. It has to be
// primary, or active on both arrays.
func (s *Server) pairOf(c *call, x *item) (*pairing, error) {
	if x.Replica == "" {
		return nil, nil
	}
	doing := "looking for remote copy group " + x.Replica
	g, err := c.array.Group(c.ctx, x.Replica)
	if wsapi.NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, failed(doing, err)
	}
	remote, in := g.RemoteVolume(x.vv.Name)
	if !in {
		return nil, nil
	}
	if g.Role != wsapi.Primary && !(g.Active() && g.Started()) {
		return nil, roleChanged(doing, g.Name)
	}
	p := &pairing{group: g, remote: remote, on: s.arrayNamed(g.Target())}
	if p.on == nil {
		return nil, refuse(http.StatusInternalServerError, "%s: its target %s is not known", doing, g.Target())
	}
	p.array = p.on.client(s.peerLogin(c, s.cfg.ReplicationDevices[x.Config["replication_devices"]]))
	return p, nil
}

// peerFailed is an error of the other array. It is never a 401: the client's
// token is good.
func peerFailed(p *pairing, err error) error {
	if f, ok := failed("array "+p.on.Name, err).(*failure); ok && f.status == http.StatusUnauthorized {
		return refuse(http.StatusInternalServerError, "%s", f.message)
	}
	return failed("array "+p.on.Name, err)
}

// publishPeer lets a node see the volume on the other array too. Where the group
// does not copy just now, what is there is old, and nobody may see it.
func (s *Server) publishPeer(c *call, p *pairing, e export, uuid string) ([]peer, error) {
	if p == nil || !p.group.PeerPersistence() || !p.group.Started() {
		return nil, nil
	}
	b, err := s.described(c, e.protocol, uuid)
	if err != nil {
		return nil, err
	}
	e.on, e.array, e.volume = p.on, p.array, p.remote
	if _, err := s.upsert(c.ctx, p.on, p.array, e.protocol, b); err != nil {
		return nil, peerFailed(p, err)
	}
	p.on.hosts.tell(b)
	lun, ports, err := e.to(c.ctx, uuid)
	if err != nil {
		return nil, peerFailed(p, err)
	}
	names, ips := where(ports)
	return []peer{{int32(lun), names, ips}}, nil
}

// described is what is known of a node: what the client told, or what its host
// on the array of the call says.
func (s *Server) described(c *call, protocol, uuid string) (hostBody, error) {
	if b, ok := c.on.hosts.toldOf(uuid); ok {
		return b, nil
	}
	h, err := c.array.Host(c.ctx, c.on.hosts.nameOf(uuid, protocol))
	if err != nil {
		return hostBody{}, failed("looking for host "+clip(uuid), err)
	}
	m, _ := markOf(h)
	return hostBody{UUID: uuid, Name: m.Name, IQNs: pathsOf(protoISCSI, h), WWPNs: pathsOf(protoFC, h), NQNs: pathsOf(protoNVMe, h)}, nil
}

// unpublishPeer ends exports of the peer to the nodes that it is asked about.
func (s *Server) unpublishPeer(c *call, p *pairing, node hostBody, to func(uuid string) bool) error {
	if p == nil {
		return nil
	}
	_, err := s.unexport(c.ctx, p.on, p.array, p.remote, node, to)
	if err != nil {
		return peerFailed(p, err)
	}
	return nil
}

// stopped does something while the group of a volume does not copy. An attempt
// before may have left it so: it is started in any case.
func (s *Server) stopped(c *call, doing, group string, f func(wsapi.Group) error) error {
	leave, err := s.enter(c, "remote copy group", group)
	if err != nil {
		return err
	}
	defer leave()
	g, err := c.array.Group(c.ctx, group)
	if wsapi.NotFound(err) {
		return f(g)
	}
	if err != nil {
		return failed(doing, err)
	}
	if g.Role != wsapi.Primary {
		return roleChanged(doing, group)
	}
	if g.Started() {
		if err := c.array.StopGroup(c.ctx, group); err != nil {
			// A lost reply, and the group is stopped for the one that is sent then.
			now, gerr := c.array.Group(c.ctx, group)
			if gerr != nil || now.Started() {
				return failed(doing, err)
			}
		}
	}
	err = f(g)
	now, gerr := c.array.Group(c.ctx, group)
	switch {
	case gerr == nil && len(now.Volumes) > 0:
		gerr = c.array.StartGroup(c.ctx, group)
	case wsapi.NotFound(gerr): // it went with its only volume
		gerr = nil
	}
	if err == nil {
		err = gerr
	}
	return failed(doing, err)
}

// withdraw takes a volume out of its remote copy group, and drops its peer. A
// group that was made for it alone goes too.
func (s *Server) withdraw(c *call, x *item) error {
	if x.Replica == "" {
		return nil
	}
	return s.stopped(c, "deleting volume "+clip(x.ID), x.Replica, func(g wsapi.Group) error {
		if _, in := g.RemoteVolume(x.vv.Name); in {
			if err := c.array.Dismiss(c.ctx, g.Name, x.vv.Name); err != nil && !s.dismissed(c, g.Name, x.vv.Name) {
				return err
			}
		}
		alone := !slices.ContainsFunc(g.Volumes, func(v wsapi.GroupVolume) bool { return v.Local != x.vv.Name })
		if one, _ := config(x.Config).flag("one_rcg_per_pvc"); g.Name != "" && one && alone {
			if err := c.array.DeleteGroup(c.ctx, g.Name); err != nil && !wsapi.NotFound(err) {
				return err
			}
		}
		return nil
	})
}

// dismissed says whether a volume is not in a group any more: the reply of the call
// that took it out may be lost, and the next one finds nothing to take.
func (s *Server) dismissed(c *call, group, volume string) bool {
	g, err := c.array.Group(c.ctx, group)
	if wsapi.NotFound(err) {
		return true
	}
	_, in := g.RemoteVolume(volume)
	return err == nil && !in
}

// expand enlarges a volume, with its peer.
func (s *Server) expand(c *call, x *item, mib int64) error {
	if x.Replica == "" || mib < x.vv.SizeMiB {
		return s.grow(c, x, mib)
	}
	return s.stopped(c, "expanding volume "+clip(x.ID), x.Replica, func(wsapi.Group) error { return s.grow(c, x, mib) })
}
