package array

import (
	"cmp"
	"fmt"
	"slices"
)

// Stored is all that has to outlive a restart of an array, as plain data. What
// is configured (ports, users, domains, links), sessions and log-ins of
// initiators are not part of it. It has CHAP secrets.
type Stored struct {
	CPGs        []CPG        `json:"cpgs,omitempty"`
	Volumes     []Volume     `json:"volumes,omitempty"` // oldest first
	Hosts       []StoredHost `json:"hosts,omitempty"`
	VolumeSets  []Set        `json:"volumeSets,omitempty"`
	HostSets    []Set        `json:"hostSets,omitempty"`
	Rules       []Rule       `json:"rules,omitempty"`
	VLUNs       []VLUN       `json:"vluns,omitempty"` // not those by way of a set
	SetVLUNs    []SetVLUN    `json:"setVLUNs,omitempty"`
	Groups      []Group      `json:"groups,omitempty"`
	Flash       *FlashCache  `json:"flash,omitempty"`
	FlashPolicy FlashPolicy  `json:"flashPolicy,omitempty"`
	Tasks       []StoredTask `json:"tasks,omitempty"`
	Events      []Event      `json:"events,omitempty"`
	Counters    Counters     `json:"counters"`
}

// Counters are what ids were given last.
type Counters struct {
	NextID, Host, Set, Rule, Task, Group, Event int64
	Volume, Session                             uint64
}

// StoredHost is a host with its secrets.
type StoredHost struct {
	Host
	Secret       string `json:"secret,omitempty"`
	TargetSecret string `json:"targetSecret,omitempty"`
}

// StoredTask is a task with what it works on.
type StoredTask struct {
	Task
	From    string       `json:"from,omitempty"`
	To      string       `json:"to,omitempty"`
	Keep    bool         `json:"keep,omitempty"`
	Group   string       `json:"group,omitempty"`
	CPG     string       `json:"cpg,omitempty"`
	Convert Provisioning `json:"convert,omitempty"`
	Ops     []ContentOp  `json:"ops,omitempty"`
	Undo    []ContentOp  `json:"undo,omitempty"`
}

// State returns a copy of the state.
func (a *Array) State() *Stored {
	s := &Stored{CPGs: a.CPGs(), Volumes: a.Volumes(), VolumeSets: a.VolumeSets(), HostSets: a.HostSets(), Rules: a.Rules(),
		VLUNs: slices.DeleteFunc(a.VLUNs(), func(x VLUN) bool { return x.Via != "" }), SetVLUNs: a.SetVLUNs(), Groups: a.Groups(), Events: a.Events(0),
		Counters: Counters{a.nextID, a.hostSeq, a.setSeq, a.ruleSeq, a.taskSeq, a.groupSeq, a.eventSeq, a.volumeSeq, a.sessionSeq}}
	if a.flash != nil {
		f := *a.flash
		s.Flash = &f
	}
	s.FlashPolicy = a.flashPolicy
	for h := range a.hosts.all() {
		s.Hosts = append(s.Hosts, StoredHost{h.out(), h.secret, h.targetSecret})
	}
	for t := range a.tasks.all() {
		x := StoredTask{Task: t.Task, Keep: t.keep, Convert: t.convert, Ops: slices.Clone(t.ops), Undo: slices.Clone(t.undo)}
		if t.from != nil {
			x.From = t.from.Name
		}
		if t.to != nil {
			x.To = t.to.Name
		}
		if t.group != nil {
			x.Group = t.group.Name
		}
		if t.user != nil {
			x.CPG = t.user.Name
		}
		s.Tasks = append(s.Tasks, x)
	}
	return s
}

// Restore fills an array that has nothing. Arrays that are linked are linked
// before, and each is restored. Errors name what doesn't fit; then the array is
// as it was.
func (a *Array) Restore(s *Stored) error {
	if a.cpgs.len()+a.volumes.len()+a.hosts.len()+a.groups.len() > 0 {
		return fmt.Errorf("array: restore: the array is not empty")
	}
	n, err := New(a.cfg)
	if err != nil {
		return err
	}
	n.links, n.users = a.links, a.users
	for _, step := range []func(*Stored) error{n.restoreCPGs, n.restoreVolumes, n.restoreHosts, n.restoreSets, n.restoreVLUNs, n.restoreSetVLUNs, n.restoreGroups, n.restoreTasks} {
		if err := step(s); err != nil {
			return fmt.Errorf("array: restore: %w", err)
		}
	}
	if s.Flash != nil {
		if _, err := n.CreateFlashCache(s.Flash.Created, *s.Flash); err != nil {
			return fmt.Errorf("array: restore: flash cache: %w", err)
		}
	}
	n.flashPolicy = s.FlashPolicy
	c := s.Counters
	n.nextID, n.hostSeq, n.setSeq, n.ruleSeq, n.taskSeq, n.groupSeq = c.NextID, c.Host, c.Set, c.Rule, c.Task, c.Group
	n.volumeSeq, n.sessionSeq = c.Volume, c.Session
	if k := int64(len(s.Events)); k != min(c.Event, MaxEvents) {
		return fmt.Errorf("array: restore: %d events of %d", k, c.Event)
	}
	n.events, n.eventSeq = make([]Event, len(s.Events)), c.Event
	for i, e := range s.Events {
		if e.Seq != c.Event-int64(len(s.Events))+int64(i)+1 {
			return fmt.Errorf("array: restore: event %d of %d", e.Seq, c.Event)
		}
		n.events[(e.Seq-1)%MaxEvents] = e
	}
	*a = *n
	return nil
}

// unknown is what a reference that leads nowhere is refused with.
func unknown(kind, name, what, ref string) error {
	return fmt.Errorf("%s %q: no %s %q, or one that does not fit", kind, name, what, ref)
}

func (a *Array) restoreCPGs(s *Stored) error {
	for _, c := range s.CPGs {
		if c.Name == "" || a.cpgs.has(c.Name) {
			return fmt.Errorf("CPG %q: empty name, or given twice", c.Name)
		}
		c.UserMiB, c.SnapshotMiB, c.Volumes, c.SnapshotsFor = 0, 0, 0, 0
		a.cpgs.put(c.Name, &cpg{CPG: c})
	}
	return nil
}

func (a *Array) restoreVolumes(s *Stored) error {
	all := make(map[string]*volume, len(s.Volumes))
	for _, o := range s.Volumes {
		if o.Name == "" || all[o.Name] != nil || o.SizeMiB <= 0 || o.Image == "" || o.WWN == "" {
			return fmt.Errorf("volume %q: empty name, size, WWN or image, or given twice", o.Name)
		}
		v := &volume{Volume: o}
		for _, x := range []struct {
			name string
			to   **cpg
		}{{o.UserCPG, &v.user}, {o.SnapCPG, &v.snap}} {
			if x.name != "" {
				c, ok := a.cpgs.get(x.name)
				if !ok {
					return unknown("volume", o.Name, "CPG", x.name)
				}
				*x.to = c
			}
		}
		if (v.user == nil) != (o.CopyType == Virtual) {
			return unknown("volume", o.Name, "CPG", o.UserCPG)
		}
		v.UserCPG, v.SnapCPG, v.CopyOf, v.Task = "", "", "", 0
		if o.Values != nil {
			v.Values = map[string]string{}
			for k, x := range o.Values {
				v.Values[k] = x
			}
		}
		all[o.Name] = v
	}
	for _, o := range s.Volumes {
		v := all[o.Name]
		if o.CopyOf != "" {
			if v.parent = all[o.CopyOf]; v.parent == nil || v.parent == v {
				return unknown("volume", o.Name, "parent", o.CopyOf)
			}
		}
		if (v.CopyType == Virtual) && (v.parent == nil || v.parent.Seq >= v.Seq) { // a chain that could not end
			return unknown("volume", o.Name, "parent", o.CopyOf)
		}
		if a.byID[v.ID] != nil || a.byWWN[v.WWN] != nil {
			return fmt.Errorf("volume %q: id %d or WWN %s given twice", o.Name, v.ID, v.WWN)
		}
		a.insert(v.Created, v)
	}
	return nil
}

func (a *Array) restoreHosts(s *Stored) error {
	for _, o := range s.Hosts {
		if o.Name == "" || a.hosts.has(o.Name) {
			return fmt.Errorf("host %q: empty name, or given twice", o.Name)
		}
		h := &host{Host: o.Host, secret: o.Secret, targetSecret: o.TargetSecret}
		h.FCWWNs, h.ISCSINames, h.NQNs = nil, nil, nil
		a.hosts.put(h.Name, h)
		for _, p := range o.Host.paths() {
			if a.paths[p] != nil {
				return fmt.Errorf("host %q: path %q is claimed twice", o.Name, p.Name)
			}
			a.claim(h, p)
		}
	}
	return nil
}

func (h Host) paths() []Path { return pathsOf(h.FCWWNs, h.ISCSINames, h.NQNs) }

func (a *Array) restoreSets(s *Stored) error {
	for _, o := range s.VolumeSets {
		set := &volumeSet{Set: o}
		if set.Members = nil; o.Name == "" || a.volumeSets.has(o.Name) {
			return fmt.Errorf("volume set %q: empty name, or given twice", o.Name)
		}
		for _, m := range o.Members {
			v, ok := a.volumes.get(m)
			if !ok || slices.Contains(set.members, v) {
				return unknown("volume set", o.Name, "volume", m)
			}
			set.members = append(set.members, v)
			a.setsOf.add(v, set)
		}
		a.volumeSets.put(o.Name, set)
	}
	for _, o := range s.HostSets {
		set := &hostSet{Set: o}
		if set.Members = nil; o.Name == "" || a.hostSets.has(o.Name) {
			return fmt.Errorf("host set %q: empty name, or given twice", o.Name)
		}
		for _, m := range o.Members {
			h, ok := a.hosts.get(m)
			if !ok || slices.Contains(set.members, h) {
				return unknown("host set", o.Name, "host", m)
			}
			set.members = append(set.members, h)
			a.hostSetsOf.add(h, set)
		}
		a.hostSets.put(o.Name, set)
	}
	for _, r := range s.Rules {
		set, ok := a.volumeSets.get(r.Set)
		if !ok || a.rules.has(set) {
			return unknown("rule", r.Set, "volume set", r.Set)
		}
		r.Set = ""
		a.rules.put(set, &r)
	}
	return nil
}

func (a *Array) restoreVLUNs(s *Stored) error {
	for _, o := range s.VLUNs {
		x, err := a.restoreVLUN(o)
		if err != nil {
			return err
		}
		a.export(x)
	}
	return nil
}

// restoreVLUN is what an export was, where that fits.
func (a *Array) restoreVLUN(o VLUN) (*vlun, error) {
	x, err := a.resolve(VLUNSpec{Volume: o.Volume, LUN: o.LUN, Host: o.Host, Port: o.Port})
	if err != nil {
		return nil, fmt.Errorf("export of %q: %w", o.Volume, err)
	}
	if o.LUN < 0 || o.LUN > MaxLUN || a.vluns.has(x.key()) || o.Host == "" && o.Port == nil {
		return nil, fmt.Errorf("export of %q: LUN %d, or given twice", o.Volume, o.LUN)
	}
	for _, h := range x.hosts() {
		if err := h.takes(x.vol, x.LUN); err != nil {
			return nil, fmt.Errorf("export of %q: %w", o.Volume, err)
		}
	}
	if x.Type == PortPresents {
		if w := a.ports[*x.Port].luns.at[x.LUN]; w != nil {
			return nil, fmt.Errorf("export of %q: LUN %d of port %s is that of %q", o.Volume, o.LUN, x.Port, w.Name)
		}
	}
	x.Created = o.Created
	return x, nil
}

func (a *Array) restoreGroups(s *Stored) error {
	for _, o := range s.Groups {
		if o.Name == "" || a.groups.has(o.Name) {
			return fmt.Errorf("group %q: empty name, or given twice", o.Name)
		}
		if a.links[o.Target] == nil {
			return unknown("group", o.Name, "target", o.Target)
		}
		g := &group{Group: o}
		g.Volumes = slices.Clone(o.Volumes)
		for _, x := range g.Volumes {
			v, ok := a.volumes.get(x.Volume)
			if !ok || v.group != nil {
				return unknown("group", o.Name, "volume", x.Volume)
			}
			v.group = g
		}
		a.groups.put(g.Name, g)
		if g.Mode != Synchronous && g.State == GroupIsStarted && g.Role == Primary {
			a.following[g] = struct{}{}
		}
	}
	return nil
}

func (a *Array) restoreTasks(s *Stored) error {
	var ended []Task
	for _, o := range s.Tasks {
		t := &task{Task: o.Task, keep: o.Keep, convert: o.Convert, ops: slices.Clone(o.Ops), undo: slices.Clone(o.Undo)}
		if o.ID <= 0 || a.tasks.has(o.ID) {
			return fmt.Errorf("task %d: no id, or given twice", o.ID)
		}
		a.tasks.put(t.ID, t)
		if t.Status != TaskActive {
			ended = append(ended, t.Task)
			continue
		}
		for _, x := range []struct {
			name string
			to   **volume
		}{{o.From, &t.from}, {o.To, &t.to}} {
			if x.name != "" {
				v, ok := a.volumes.get(x.name)
				if !ok || v.busy != nil {
					return unknown("task", fmt.Sprint(o.ID), "volume", x.name)
				}
				v.busy, *x.to = t, v
			}
		}
		if t.Type == SyncTask {
			g, ok := a.groups.get(o.Group)
			if !ok || g.busy != nil {
				return unknown("task", fmt.Sprint(o.ID), "group", o.Group)
			}
			g.busy, t.group = t, g
		} else if t.to == nil {
			return unknown("task", fmt.Sprint(o.ID), "volume", o.To)
		}
		if o.CPG != "" {
			t.user, _ = a.cpgs.get(o.CPG)
		}
		a.active[t] = struct{}{}
	}
	slices.SortFunc(ended, func(t, u Task) int { return cmp.Or(t.Finished.Compare(u.Finished), cmp.Compare(t.ID, u.ID)) })
	for _, t := range ended {
		a.finished = append(a.finished, t.ID)
	}
	return nil
}
