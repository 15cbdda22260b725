package array

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What a group does with content. Started synchronously, primary and secondary
// have one image from the end of the first sync on, until the group stops: then
// the secondary gets a copy of its own. Periodically, the secondary is
// overwritten with what the primary had when the sync began; asynchronously, it
// is overwritten so every few seconds, without a task.

// StartGroup lets a group copy. Errors: NON_EXISTENT_RCOPY_GROUP,
// RCOPY_GROUP_OPERATION_ONLY_ON_PRIMARY_SIDE, RCOPY_GROUP_STARTED,
// RCOPY_TARGET_IS_NOT_READY, RCOPY_GROUP_EMPTY,
// RCOPY_GROUP_VOL_SIZE_NOT_MATCH,
// RCOPY_GROUP_SECONDARY_DOES_NOT_MATCH_PRIMARY, RCOPY_GROUP_IS_BUSY.
func (a *Array) StartGroup(now time.Time, name string) (Task, []ContentOp, error) {
	g, b, p, err := a.change(name)
	if err != nil {
		return Task{}, nil, err
	}
	if err := a.startable(g, b); err != nil {
		return Task{}, nil, err
	}
	t, ops := a.startSync(now, g, b, p)
	return t, ops, nil
}

func (a *Array) startable(g *group, b *Array) error {
	if len(g.Volumes) == 0 {
		return g.refuse(GroupEmpty, "the group has no volumes")
	}
	for _, x := range g.Volumes {
		v, _ := a.volumes.get(x.Volume)
		w := b.peerOf(x)
		if v.busy != nil || w.busy != nil {
			return g.refuse(GroupBusy, "a task works on a volume of the group: "+v.Name)
		}
		if v.SizeMiB != w.SizeMiB {
			return g.refuse(GroupVolumeSize, fmt.Sprintf("%s has %d MiB, its peer %d", v.Name, v.SizeMiB, w.SizeMiB))
		}
	}
	return nil
}

// startSync begins to copy all volumes of a group.
func (a *Array) startSync(now time.Time, g *group, b *Array, p *group) (Task, []ContentOp) {
	g.State, p.State = GroupIsStarted, GroupIsStarted
	g.FailSafe, p.FailSafe = false, false
	t := &task{Task: Task{Type: SyncTask, Name: g.Name}, group: g}
	var ops []ContentOp
	for _, x := range g.Volumes {
		v, _ := a.volumes.get(x.Volume)
		w := b.peerOf(x)
		t.TotalMiB += max(v.WrittenMiB, 1)
		if g.Mode != Synchronous {
			frozen := fmt.Sprintf("%s-sync-%d", v.Image, a.taskSeq+1)
			ops = append(ops, ContentOp{Do: CopyImage, Image: frozen, From: v.Image, SizeMiB: v.SizeMiB})
			t.ops = append(t.ops, ContentOp{Do: OverwriteImage, Image: w.Image, From: frozen, SizeMiB: w.SizeMiB}, ContentOp{Do: DropImage, Image: frozen})
			t.undo = append(t.undo, ContentOp{Do: DropImage, Image: frozen})
		}
	}
	g.setStates(Syncing)
	p.setStates(Syncing)
	g.busy = a.start(now, t)
	if g.Mode != Synchronous {
		a.following[g] = struct{}{}
	}
	return t.Task, ops
}

// synced ends a sync: what it returns comes on top of what the task has to do.
func (a *Array) synced(now time.Time, t *task) []ContentOp {
	g := t.group
	b, p := a.peer(g)
	var ops []ContentOp
	for _, x := range g.Volumes {
		v, _ := a.volumes.get(x.Volume)
		w := b.peerOf(x)
		b.discharge(w)
		w.WrittenMiB = min(v.WrittenMiB, w.SizeMiB)
		b.charge(now, w)
		if g.Mode == Synchronous && w.Image != v.Image {
			ops = append(ops, ContentOp{Do: ShareImage, Image: v.Image, Array: b.cfg.Serial, Volume: w.Name}, ContentOp{Do: DropImage, Image: w.Image})
			b.setImage(w, v.Image)
		}
	}
	g.setStates(Synced)
	p.setStates(Synced)
	g.LastSync, p.LastSync = t.Started, t.Started
	return ops
}

// periods begins the syncs of periodic groups that are due, and lets
// asynchronous ones follow.
func (a *Array) periods(now time.Time) []ContentOp {
	var due []*group
	for g := range a.following {
		every := time.Duration(g.Period) * time.Second
		if g.Mode == Asynchronous {
			every = asyncLag
		}
		if g.busy == nil && every > 0 && !now.Before(g.LastSync.Add(every)) {
			due = append(due, g)
		}
	}
	slices.SortFunc(due, func(g, h *group) int { return cmp.Compare(g.ID, h.ID) })
	var ops []ContentOp
	for _, g := range due {
		if b, p, err := a.both(g); err == nil && a.startable(g, b) == nil {
			if g.Mode == Asynchronous {
				ops = append(ops, a.lastSync(now, g, b)...)
				g.LastSync, p.LastSync = now, now
				continue
			}
			_, more := a.startSync(now, g, b, p)
			ops = append(ops, more...)
		}
	}
	return ops
}

// SyncGroup brings the secondary of a started periodic group up to date now.
// Errors: NON_EXISTENT_RCOPY_GROUP,
// RCOPY_GROUP_OPERATION_ONLY_ON_PRIMARY_SIDE, RCOPY_GROUP_NOT_STARTED,
// RCOPY_GROUP_IS_BUSY, RCOPY_TARGET_IS_NOT_READY.
func (a *Array) SyncGroup(now time.Time, name string) (Task, []ContentOp, error) {
	g, b, p, err := a.started(name)
	if err != nil {
		return Task{}, nil, err
	}
	if g.Role != Primary {
		return Task{}, nil, g.refuse(OnlyOnPrimary, "the group is secondary here")
	}
	if err := a.startable(g, b); err != nil {
		return Task{}, nil, err
	}
	t, ops := a.startSync(now, g, b, p)
	return t, ops, nil
}

// started finds a group that is started and not in the middle of a sync.
func (a *Array) started(name string) (g *group, b *Array, p *group, err error) {
	if g, err = a.group(name); err != nil {
		return nil, nil, nil, err
	}
	if g.State != GroupIsStarted {
		return nil, nil, nil, g.refuse(GroupNotStarted, "the group is stopped")
	}
	if b, p, err = a.both(g); err != nil {
		return nil, nil, nil, err
	}
	if g.busy != nil || p.busy != nil {
		return nil, nil, nil, g.refuse(GroupBusy, "a sync runs")
	}
	for _, x := range g.Volumes {
		if x.State != Synced {
			return nil, nil, nil, g.refuse(GroupBusy, "not all volumes are synced")
		}
	}
	return g, b, p, nil
}

// StopGroup lets a group copy no more. Errors: NON_EXISTENT_RCOPY_GROUP,
// RCOPY_GROUP_OPERATION_ONLY_ON_PRIMARY_SIDE, RCOPY_GROUP_NOT_STARTED,
// RCOPY_TARGET_IS_NOT_READY.
func (a *Array) StopGroup(now time.Time, name string) ([]ContentOp, error) {
	g, err := a.group(name)
	if err != nil {
		return nil, err
	}
	if g.Role != Primary {
		return nil, g.refuse(OnlyOnPrimary, "the group is secondary here")
	}
	if g.State != GroupIsStarted {
		return nil, g.refuse(GroupNotStarted, "the group is stopped")
	}
	if _, err := a.reach(g.Target); err != nil {
		return nil, err
	}
	return a.stop(now, g), nil
}

// stop stops a group on both sides; g is of either.
func (a *Array) stop(now time.Time, g *group) []ContentOp {
	b, p := a.peer(g)
	if p == nil { // restored without it
		g.State = GroupIsStopped
		g.setStates(SyncStopped)
		delete(a.following, g)
		return nil
	}
	if g.Role != Primary && p.Role == Primary { // the primary's view is what counts
		return b.stop(now, p)
	}
	var ops []ContentOp
	if t := g.busy; t != nil {
		ops = append(ops, a.cancel(now, t)...)
	}
	for _, x := range g.Volumes {
		v, _ := a.volumes.get(x.Volume)
		w := b.peerOf(x)
		if w != nil && w.Image == v.Image {
			w.Generation++
			b.setImage(w, b.imageName(w.Seq, w.Generation))
			ops = append(ops, ContentOp{Do: CopyImage, Image: w.Image, From: v.Image, SizeMiB: w.SizeMiB},
				ContentOp{Do: SplitImage, Image: w.Image, Array: b.cfg.Serial, Volume: w.Name})
		}
	}
	delete(a.following, g)
	g.State, p.State = GroupIsStopped, GroupIsStopped
	g.setStates(SyncStopped)
	p.setStates(SyncStopped)
	a.log(now, Changed, "group", g.Name)
	b.log(now, Changed, "group", p.Name)
	return ops
}

// Failover makes the secondary side of a stopped group primary. The other side
// stays primary as well, until the group is recovered. Errors:
// NON_EXISTENT_RCOPY_GROUP, INV_OPERATION_RCOPY_GROUP_ROLE_CONFLICT,
// RCOPY_GROUP_STARTED.
func (a *Array) Failover(now time.Time, name string) error {
	g, err := a.group(name)
	if err != nil {
		return err
	}
	if g.Role != Secondary {
		return g.refuse(RoleConflict, "the group is primary here")
	}
	if g.State == GroupIsStarted {
		return g.refuse(GroupStarted, "the group is started")
	}
	g.Role, g.Reversed = Primary, !g.Reversed
	a.log(now, Changed, "group", g.Name)
	return nil
}

// Recover makes the other side of a group that failed over to here secondary,
// and starts to copy there what was written here since. Errors:
// NON_EXISTENT_RCOPY_GROUP, INV_OPERATION_RCOPY_GROUP_ROLE_CONFLICT,
// RCOPY_GROUP_STARTED, RCOPY_TARGET_IS_NOT_READY, and those of StartGroup.
func (a *Array) Recover(now time.Time, name string) (Task, []ContentOp, error) {
	g, err := a.group(name)
	if err != nil {
		return Task{}, nil, err
	}
	if g.Role != Primary || !g.Reversed {
		return Task{}, nil, g.refuse(RoleConflict, "the group did not fail over to here")
	}
	if g.State == GroupIsStarted {
		return Task{}, nil, g.refuse(GroupStarted, "the group is started")
	}
	b, p, err := a.both(g)
	if err != nil {
		return Task{}, nil, err
	}
	if p.Role != Primary {
		return Task{}, nil, g.refuse(RoleConflict, "the other side is secondary already")
	}
	if err := a.startable(g, b); err != nil {
		return Task{}, nil, err
	}
	p.Role, p.Reversed = Secondary, !p.Reversed
	t, ops := a.startSync(now, g, b, p)
	return t, ops, nil
}

// swap exchanges the roles of the two sides.
func (a *Array) swap(now time.Time, g *group, b *Array, p *group) {
	for _, x := range []*group{g, p} {
		x.Role, x.Reversed = Primary+Secondary-x.Role, !x.Reversed
	}
	if _, ok := a.following[g]; ok {
		delete(a.following, g)
		b.following[p] = struct{}{}
	} else if _, ok := b.following[p]; ok {
		delete(b.following, p)
		a.following[g] = struct{}{}
	}
	a.log(now, Changed, "group", g.Name)
	b.log(now, Changed, "group", p.Name)
}

// RestoreGroup gives a group that was recovered its natural direction again; it
// stays started. Errors: NON_EXISTENT_RCOPY_GROUP, RCOPY_GROUP_NOT_STARTED,
// RCOPY_GROUP_IS_BUSY, RCOPY_TARGET_IS_NOT_READY,
// INV_OPERATION_RCOPY_GROUP_ROLE_CONFLICT (the direction is natural).
func (a *Array) RestoreGroup(now time.Time, name string) ([]ContentOp, error) {
	g, b, p, err := a.started(name)
	if err != nil {
		return nil, err
	}
	if g.Role != Primary || !g.Reversed {
		return nil, g.refuse(RoleConflict, "the group is not reversed, or secondary here")
	}
	ops := a.lastSync(now, g, b)
	a.swap(now, g, b, p)
	return ops, nil
}

// lastSync overwrites the secondary of a group that isn't synchronous with what
// the primary has now.
func (a *Array) lastSync(now time.Time, g *group, b *Array) []ContentOp {
	var ops []ContentOp
	if g.Mode != Synchronous {
		for _, x := range g.Volumes {
			v, _ := a.volumes.get(x.Volume)
			w := b.peerOf(x)
			ops = append(ops, ContentOp{Do: OverwriteImage, Image: w.Image, From: v.Image, SizeMiB: w.SizeMiB})
			b.discharge(w)
			w.WrittenMiB = min(v.WrittenMiB, w.SizeMiB)
			b.charge(now, w)
		}
	}
	return ops
}

// Switchover makes the other side primary while hosts go on working: Peer
// Persistence without a failure. Errors: NON_EXISTENT_RCOPY_GROUP,
// RCOPY_GROUP_NOT_STARTED, RCOPY_GROUP_IS_BUSY, RCOPY_TARGET_IS_NOT_READY,
// RCOPY_GROUP_OPERATION_ONLY_ON_PRIMARY_SIDE, UNSUP_OP (not synchronous).
func (a *Array) Switchover(now time.Time, name string) error {
	g, b, p, err := a.started(name)
	if err != nil {
		return err
	}
	if g.Role != Primary {
		return g.refuse(OnlyOnPrimary, "the group is secondary here")
	}
	if g.Mode != Synchronous {
		return g.refuse(UnsupportedOp, "only in synchronous mode")
	}
	a.swap(now, g, b, p)
	return nil
}

// Reverse exchanges the roles of a stopped group. Errors:
// NON_EXISTENT_RCOPY_GROUP, RCOPY_GROUP_STARTED, RCOPY_TARGET_IS_NOT_READY,
// RCOPY_GROUP_SECONDARY_DOES_NOT_MATCH_PRIMARY.
func (a *Array) Reverse(now time.Time, name string) error {
	g, err := a.group(name)
	if err != nil {
		return err
	}
	if g.State == GroupIsStarted {
		return g.refuse(GroupStarted, "the group is started")
	}
	b, p, err := a.both(g)
	if err != nil {
		return err
	}
	if g.Role == p.Role {
		return g.refuse(GroupSplit, "both sides are primary")
	}
	a.swap(now, g, b, p)
	return nil
}

// Override lets a primary that was cut off take I/O again. Errors:
// NON_EXISTENT_RCOPY_GROUP, INV_OPERATION_RCOPY_GROUP_ROLE_CONFLICT.
func (a *Array) Override(now time.Time, name string) error {
	g, err := a.group(name)
	if err != nil {
		return err
	}
	if !g.FailSafe {
		return g.refuse(RoleConflict, "the group is not in fail-safe")
	}
	g.FailSafe = false
	a.log(now, Changed, "group", g.Name)
	return nil
}

// Connect changes the link to a target. When it goes, started groups stop on
// both sides; when it comes back nothing starts by itself. Errors:
// RCOPY_GROUP_INV_TARGET.
func (a *Array) Connect(now time.Time, target string, up bool) ([]ContentOp, error) {
	l, ok := a.links[target]
	if !ok {
		return nil, &Error{Kind: GroupTarget, Field: "targetName", Value: target, Reason: "no such target"}
	}
	l.up, l.peer.links[a.cfg.Name].up = up, up
	var ops []ContentOp
	if !up {
		for g := range a.groups.all() {
			if g.Target == target && g.State == GroupIsStarted {
				ops = append(ops, a.stop(now, g)...)
			}
		}
	}
	return ops, nil
}

// Lost says that a target is down, by the word of the quorum witness: the link
// goes, and groups with Peer Persistence that were synced and secondary here
// are primary from now on. The lost side, should it still run, takes no I/O to
// them. Errors: RCOPY_GROUP_INV_TARGET.
func (a *Array) Lost(now time.Time, target string) ([]ContentOp, error) {
	var take []*group
	for g := range a.groups.all() {
		synced := !slices.ContainsFunc(g.Volumes, func(x GroupVolume) bool { return x.State != Synced })
		if g.Target == target && g.AutoFailover && g.Role == Secondary && g.State == GroupIsStarted && synced {
			take = append(take, g)
		}
	}
	ops, err := a.Connect(now, target, false)
	if err != nil {
		return nil, err
	}
	for _, g := range take {
		if err := a.Failover(now, g.Name); err != nil {
			return nil, err
		}
		if _, p := a.peer(g); p != nil {
			p.FailSafe = true
		}
	}
	return ops, nil
}

// standby says whether the paths to a volume here take no I/O: it is secondary
// and not active, or its primary was cut off. A group that stops makes no
// secondary writable: it would be on an image that is old or half copied. Only a
// failover does (HPE 3PAR CIM API Programming Reference, OS 3.1.2 MU2, state
// transitions during disaster recovery: Secondary/Stopped is Broken,
// Primary-Rev/Stopped is FailedOver). Unverified: that paths are on standby also
// where the group's policy has no path management.
func (v *volume) standby() bool {
	return v.group != nil && (v.group.FailSafe || v.group.Role == Secondary && !v.distant())
}

// following says whether a volume is overwritten by its primary.
func (v *volume) following() bool {
	return v.group != nil && v.group.Role == Secondary && v.group.State == GroupIsStarted
}

// distant says whether the paths to a volume here take I/O on behalf of its
// primary on the other array: with Active Peer Persistence, once it has all that
// the primary has. Unverified: how they stand to hosts, here as what is active
// and not optimized; the proximity of hosts is not simulated.
func (v *volume) distant() bool {
	return v.following() && v.group.ActiveActive && !v.group.FailSafe && v.group.Volumes[0].State == Synced // all have one state
}
