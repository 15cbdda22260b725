package array

import (
	"fmt"
	"time"
)

// CloneSpec says what physical copy to make.
type CloneSpec struct {
	Of string
	// To is the volume that gets the content: with Online a new one in the CPG,
	// which can be exported while the copy runs; else one that is there, at least
	// as large and not exported.
	To           string
	Online       bool
	CPG, SnapCPG string
	Provisioning Provisioning
	Compression  bool
	// Keep lets the copy be brought up to date later (saveSnapshot).
	Keep     bool
	Priority int // 1 high, 2 medium, 3 low; 0 is 2
}

// clone is what a physical copy needs.
type clone struct {
	from, to *volume
	task     *task
	ops      []ContentOp
}

func (a *Array) planClone(s CloneSpec) (clone, error) {
	from, err := a.volume("name", s.Of)
	if err != nil {
		return clone{}, err
	}
	if s.Priority < 0 || s.Priority > 3 {
		return clone{}, &Error{Kind: BadEnum, Field: "priority", Value: fmt.Sprint(s.Priority), Reason: "allowed are 1 to 3"}
	}
	if s.To == s.Of {
		return clone{}, &Error{Kind: CopyToSelf, Field: "destVolume", Value: s.To, Reason: "the source itself"}
	}
	if err := from.idle(); err != nil {
		return clone{}, err
	}
	if err := from.whole(); err != nil {
		return clone{}, err
	}
	if s.Online {
		return a.planOnline(s, from)
	}
	if s.CPG != "" || s.SnapCPG != "" {
		// HPE's python client takes them out, as the array refuses them.
		return clone{}, &Error{Kind: ParamConflict, Field: "destCPG", Value: s.CPG, Reason: "only with online"}
	}
	to, err := a.volume("destVolume", s.To)
	if err != nil {
		return clone{}, err
	}
	refuse := func(k Kind, holder, reason string) (clone, error) {
		return clone{}, &Error{Kind: k, Field: "destVolume", Value: s.To, Reason: reason, Holder: holder}
	}
	if to.CopyType == Virtual {
		return refuse(NotBaseVolume, "", "a virtual copy can't be copied to")
	}
	if to.group != nil {
		return refuse(InRemoteCopy, to.group.Name, "the volume is in a remote copy group")
	}
	if err := to.idle(); err != nil {
		return refuse(CopyRunning, fmt.Sprintf("task %d", to.busy.ID), "a task works on the volume")
	}
	if x := a.exportOf(to); x != "" {
		return refuse(VolumeExported, x, "the volume is exported")
	}
	if from.base() == to {
		return refuse(CopyToBase, from.Name, "the source is a copy of the volume")
	}
	for p := from.parent; p != nil; p = p.parent {
		if p == to {
			return refuse(CircularCopy, from.Name, "the source is a copy of the volume")
		}
	}
	if n := len(a.children[to]); n > 0 {
		return refuse(HasChild, "", fmt.Sprintf("the volume has %d copies", n))
	}
	if from.SizeMiB > to.SizeMiB {
		return refuse(ParentTooBig, from.Name, fmt.Sprintf("the source has %d MiB, the volume %d", from.SizeMiB, to.SizeMiB))
	}
	if s.Keep && from.base().snap == nil {
		return clone{}, &Error{Kind: NoSnapCPG, Field: "saveSnapshot", Value: "true", Reason: "the source has no CPG for snapshots", Holder: from.Name}
	}
	if to.Provisioning != Full {
		n := *to
		n.WrittenMiB = max(n.WrittenMiB, from.WrittenMiB)
		if err := a.room("destVolume", to.user, n.userMiB()-to.userMiB()); err != nil {
			return clone{}, err
		}
	}
	return clone{from, to, &task{Task: Task{Type: CopyTask, Name: s.Of + "->" + s.To, TotalMiB: from.SizeMiB, Priority: s.Priority},
		from: from, to: to, keep: s.Keep}, []ContentOp{{Do: OverwriteImage, Image: to.Image, From: from.Image, SizeMiB: to.SizeMiB}}}, nil
}

func (a *Array) planOnline(s CloneSpec, from *volume) (clone, error) {
	if s.Keep {
		return clone{}, &Error{Kind: ParamConflict, Field: "saveSnapshot", Value: "true", Reason: "not with online"}
	}
	if from.CopyType == Virtual && from.ReadOnly {
		// The guide's INV_OPERATION_VV_READONLY_SNAPSHOT.
		return clone{}, &Error{Kind: ReadOnlySnapshot, Field: "name", Value: s.Of, Reason: "not online from a read-only copy"}
	}
	if from.base().snap == nil {
		// An online copy reads from a snapshot of its source.
		return clone{}, &Error{Kind: NoSnapCPG, Field: "name", Value: s.Of, Reason: "the source has no CPG for snapshots"}
	}
	to, err := a.planVolume(VolumeSpec{Name: s.To, CPG: s.CPG, SnapCPG: s.SnapCPG, SizeMiB: from.SizeMiB, Provisioning: s.Provisioning, Compression: s.Compression})
	if err != nil {
		return clone{}, err
	}
	to.parent, to.CopyType, to.WrittenMiB = from, Physical, from.WrittenMiB
	if err := a.room("destCPG", to.user, to.userMiB()); err != nil {
		return clone{}, err
	}
	return clone{from, to, &task{Task: Task{Type: OnlineCopyTask, Name: s.Of + "->" + s.To, TotalMiB: from.SizeMiB, Priority: s.Priority},
		from: from, to: to}, []ContentOp{{Do: CopyImage, Image: to.Image, From: from.Image, SizeMiB: to.SizeMiB}}}, nil
}

// PlanClone checks whether Clone would succeed.
func (a *Array) PlanClone(s CloneSpec) (Plan, error) {
	c, err := a.planClone(s)
	if err != nil {
		return Plan{}, err
	}
	return Plan{c.to.out(), c.ops}, nil
}

// Clone starts a physical copy, which has the content of its source as of now.
// Errors: those of CreateVolume with Online, NON_EXISTENT_VOL,
// INV_OPERATION_VV_COPY_TO_SELF, INV_OPERATION_VV_NON_BASE_VOLUME,
// INV_OPERATION_VV_IN_REMOTE_COPY, INV_OPERATION_VV_EXPORTED,
// INV_OPERATION_VV_PCOPY_IN_PROGRESS, INV_OPERATION_VV_COPY_TO_BASE,
// INV_OPERATION_VV_COPY_PARENT_TOO_BIG, HAS_CHILD, VV_IN_STALE_STATE,
// INV_INPUT_PARAM_CONFLICT, INV_INPUT_BAD_ENUM_VALUE, NO_SNAP_CPG, NO_SPACE.
func (a *Array) Clone(now time.Time, s CloneSpec) (Task, error) {
	c, err := a.planClone(s)
	if err != nil {
		return Task{}, err
	}
	if s.Online {
		a.appear(now, c.to)
	} else {
		a.copyInto(now, c)
	}
	return a.start(now, c.task).Task, nil
}

// copyInto books what a volume that is there gets from another one.
func (a *Array) copyInto(now time.Time, c clone) {
	a.discharge(c.to)
	c.to.WrittenMiB = max(c.to.WrittenMiB, c.from.WrittenMiB)
	a.charge(now, c.to)
	if c.to.parent != c.from {
		if c.to.parent != nil {
			a.children.drop(c.to.parent, c.to)
		}
		c.to.parent = c.from
		a.children.add(c.from, c.to)
	}
	c.to.CopyType, c.to.State = Physical, Degraded
}

// PlanResync checks whether Resync would succeed.
func (a *Array) PlanResync(name string) (Plan, error) {
	c, err := a.planResync(name)
	if err != nil {
		return Plan{}, err
	}
	return Plan{c.to.out(), c.ops}, nil
}

func (a *Array) planResync(name string) (clone, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return clone{}, err
	}
	if v.CopyType != Physical || v.parent == nil {
		return clone{}, &Error{Kind: NoParent, Field: "name", Value: name, Reason: "no physical copy that could be brought up to date"}
	}
	if err := v.idle(); err != nil {
		return clone{}, err
	}
	c, err := a.planClone(CloneSpec{Of: v.parent.Name, To: name, Keep: true})
	if err != nil {
		return clone{}, err
	}
	c.task.Type = ResyncTask
	return c, nil
}

// Resync copies to a physical copy again what its source has now. Errors:
// NON_EXISTENT_VOL, INV_OPERATION_VV_NO_PARENT, and those of Clone.
func (a *Array) Resync(now time.Time, name string) (Task, error) {
	c, err := a.planResync(name)
	if err != nil {
		return Task{}, err
	}
	a.copyInto(now, c)
	return a.start(now, c.task).Task, nil
}

// StopCopy stops the copy to a volume. Errors: NON_EXISTENT_VOL,
// NON_EXISTENT_VVCOPY.
func (a *Array) StopCopy(now time.Time, name string) ([]ContentOp, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return nil, err
	}
	if t := v.busy; t != nil && t.to == v && (t.Type == CopyTask || t.Type == ResyncTask || t.Type == OnlineCopyTask) {
		return a.cancel(now, t), nil
	}
	return nil, &Error{Kind: NonExistentCopy, Field: "name", Value: name, Reason: "no copy to the volume runs"}
}

// PromoteSpec says which virtual copy's content its base gets.
type PromoteSpec struct {
	Copy       string
	Online     bool // the base may be exported
	RemoteCopy bool // the base may be in a group that is stopped (allowRemoteCopyParent)
	Priority   int
	ToParent   bool // to its parent, not to the base
}

// PlanPromote checks whether Promote would succeed.
func (a *Array) PlanPromote(s PromoteSpec) (Plan, error) {
	c, err := a.planPromote(s)
	if err != nil {
		return Plan{}, err
	}
	return Plan{c.to.out(), c.ops}, nil
}

func (a *Array) planPromote(s PromoteSpec) (clone, error) {
	v, err := a.volume("name", s.Copy)
	if err != nil {
		return clone{}, err
	}
	refuse := func(k Kind, holder, reason string) (clone, error) {
		return clone{}, &Error{Kind: k, Field: "name", Value: s.Copy, Reason: reason, Holder: holder}
	}
	if v.CopyType != Virtual {
		return refuse(BaseVolume, "", "no virtual copy")
	}
	if s.Priority < 0 || s.Priority > 3 {
		return clone{}, &Error{Kind: BadEnum, Field: "priority", Value: fmt.Sprint(s.Priority), Reason: "allowed are 1 to 3"}
	}
	if s.Online && s.Priority > 0 {
		return clone{}, &Error{Kind: OperationConflict, Field: "priority", Value: fmt.Sprint(s.Priority), Reason: "not with online"}
	}
	to := v.base()
	if s.ToParent {
		to = v.parent
	}
	if to.ReadOnly {
		return refuse(PromoteTarget, to.Name, "what would be written to is read-only")
	}
	for _, x := range []*volume{v, to} {
		if err := x.idle(); err != nil {
			return clone{}, err
		}
	}
	if err := v.whole(); err != nil {
		return clone{}, err
	}
	if g := to.group; g != nil && (!s.RemoteCopy || g.State == GroupIsStarted) {
		return refuse(InRemoteCopy, g.Name, "the volume that would be written to is in a remote copy group")
	}
	if x := a.exportOf(to); x != "" && !s.Online {
		return refuse(ParentExported, x, "the volume that would be written to is exported")
	}
	if x := a.exportOf(v); x != "" && !v.ReadOnly {
		return refuse(VolumeExported, x, "the copy is exported")
	}
	if to.SizeMiB > v.SizeMiB {
		return refuse(ParentGrew, to.Name, fmt.Sprintf("the copy has %d MiB, the volume %d", v.SizeMiB, to.SizeMiB))
	}
	return clone{v, to, &task{Task: Task{Type: PromoteTask, Name: s.Copy + "->" + to.Name, TotalMiB: v.SizeMiB, Priority: s.Priority},
		from: v, to: to}, []ContentOp{{Do: OverwriteImage, Image: to.Image, From: v.Image, SizeMiB: to.SizeMiB}}}, nil
}

// Promote starts to give a volume the content of one of its virtual copies
// again. Errors: NON_EXISTENT_VOL, INV_OPERATION_VV_BASE_VOLUME,
// INV_OPERATION_PARENT_VV_EXPORTED, INV_OPERATION_VV_EXPORTED,
// INV_OPERATION_PARENT_SIZE_HAS_INCREASED, INV_OPERATION_VV_IN_REMOTE_COPY,
// INV_OPERATION_VV_PROMOTE_IN_PROGRESS, VV_IN_STALE_STATE,
// INV_OPERATION_PARAM_CONFLICT, INV_INPUT_BAD_ENUM_VALUE.
func (a *Array) Promote(now time.Time, s PromoteSpec) (Task, error) {
	c, err := a.planPromote(s)
	if err != nil {
		return Task{}, err
	}
	c.to.State = Normal
	return a.start(now, c.task).Task, nil
}

// StopPromote stops a promotion. Errors: NON_EXISTENT_VOL,
// INV_OPERATION_VV_PROMOTE_IS_NOT_IN_PROGRESS.
func (a *Array) StopPromote(now time.Time, name string) error {
	v, err := a.volume("name", name)
	if err != nil {
		return err
	}
	if t := v.busy; t != nil && t.Type == PromoteTask {
		a.cancel(now, t)
		return nil
	}
	return &Error{Kind: PromoteNotRunning, Field: "name", Value: name, Reason: "no promotion runs"}
}
