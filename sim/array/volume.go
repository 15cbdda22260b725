package array

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Provisioning of a volume, numbered as the WSAPI does.
type Provisioning int

// The kinds of provisioning.
const (
	Full     Provisioning = 1
	Thin     Provisioning = 2 // TPVV
	Snapshot Provisioning = 3 // of a virtual copy; nothing that can be asked for
	Dedup    Provisioning = 6 // TDVV
	Reduce   Provisioning = 7
)

// CopyType is what a volume is, numbered as the WSAPI does.
type CopyType int

// The kinds of volumes.
const (
	Base     CopyType = 1
	Physical CopyType = 2 // a physical copy that can be brought up to date again
	Virtual  CopyType = 3 // a snapshot
)

// State of a volume, numbered as the WSAPI does.
type State int

// The states.
const (
	Normal   State = 1
	Degraded State = 2
	// FailedState: the content is not complete, as after a copy that was
	// stopped (unverified: the state that the real one shows then).
	FailedState State = 3
)

// Policies of a volume.
type Policies struct {
	StaleSS    bool `json:"staleSS,omitempty"`
	OneHost    bool `json:"oneHost,omitempty"`
	ZeroDetect bool `json:"zeroDetect,omitempty"`
	System     bool `json:"system,omitempty"`
	Caching    bool `json:"caching,omitempty"`
}

// Volume is a virtual volume. What the core hands out is a copy; changing it
// changes nothing.
type Volume struct {
	ID           int64        `json:"id"`
	Name         string       `json:"name"`
	UUID         string       `json:"uuid"`
	WWN          string       `json:"wwn"` // 32 hex digits, upper case: what SCSI inquiries tell
	Domain       string       `json:"domain,omitempty"`
	SizeMiB      int64        `json:"sizeMiB"`
	Provisioning Provisioning `json:"provisioning"`
	Compression  bool         `json:"compression,omitempty"`
	CopyType     CopyType     `json:"copyType"`
	CopyOf       string       `json:"copyOf,omitempty"` // its parent
	ReadOnly     bool         `json:"readOnly,omitempty"`
	UserCPG      string       `json:"userCPG,omitempty"`
	SnapCPG      string       `json:"snapCPG,omitempty"`
	Comment      string       `json:"comment,omitempty"`
	State        State        `json:"state"`
	Policies     Policies     `json:"policies,omitzero"`
	Created      time.Time    `json:"created"`
	Expires      time.Time    `json:"expires,omitzero"`
	Retained     time.Time    `json:"retained,omitzero"` // until then it can't be removed
	// UserWarningPct and UserLimitPct are only told; the limit of a thin volume
	// is not enforced.
	UserWarningPct int `json:"userWarningPct,omitempty"`
	UserLimitPct   int `json:"userLimitPct,omitempty"`
	// WrittenMiB is how much content it has, SnapshotMiB what snapshots keep.
	WrittenMiB  int64 `json:"writtenMiB,omitempty"`
	SnapshotMiB int64 `json:"snapshotMiB,omitempty"`
	// Image has the content. A volume of a synchronous remote copy group has
	// the same as its peer.
	Image string `json:"image"`
	// Values are its key/value pairs.
	Values map[string]string `json:"values,omitempty"`
	// Task is the copy, promotion or tuning that it takes part in, or 0.
	Task int64 `json:"-"`

	Seq        uint64 `json:"seq"` // number among all volumes that were ever made
	Generation int    `json:"generation,omitempty"`
}

type volume struct {
	Volume
	parent     *volume
	user, snap *cpg
	busy       *task  // what it takes part in
	group      *group // remote copy
}

// out makes a copy for the outside.
func (v *volume) out() Volume {
	o := v.Volume
	o.UserCPG, o.SnapCPG, o.CopyOf, o.Task = "", "", "", 0
	if v.user != nil {
		o.UserCPG = v.user.Name
	}
	if v.snap != nil {
		o.SnapCPG = v.snap.Name
	}
	if v.parent != nil {
		o.CopyOf = v.parent.Name
	}
	if v.busy != nil {
		o.Task = v.busy.ID
	}
	if v.Values != nil {
		o.Values = maps.Clone(v.Values)
	}
	return o
}

// base is the volume at the root of the tree of copies.
func (v *volume) base() *volume {
	for v.CopyType == Virtual && v.parent != nil {
		v = v.parent
	}
	return v
}

// VolumeSpec says what volume to make.
type VolumeSpec struct {
	Name         string
	ID           *int64 // default: the next one
	CPG, SnapCPG string
	SizeMiB      int64
	Provisioning Provisioning // 0: Thin, or Full on a 3PAR as in the guide
	Compression  bool
	Comment      string
	Policies     Policies
	// Hours from now, up to MaxHours; 0 and less is none.
	ExpirationHours, RetentionHours int64
	UserWarningPct, UserLimitPct    int

	wwn string // of the primary volume
}

// MaxHours is the longest expiration and retention, five years.
const MaxHours = 43800

// Plan is what a command would make, and what has to be done with content
// before it is committed.
type Plan struct {
	Volume Volume
	Ops    []ContentOp
}

func checkHours(expiration, retention int64) error {
	for _, x := range []struct {
		field string
		hours int64
	}{{"expirationHours", expiration}, {"retentionHours", retention}} {
		if x.hours < 0 || x.hours > MaxHours {
			return &Error{Kind: InvalidTime, Field: x.field, Value: fmt.Sprint(x.hours), Reason: fmt.Sprintf("allowed are 1 to %d", MaxHours)}
		}
	}
	if retention > 0 && expiration > 0 && retention > expiration {
		return &Error{Kind: RetainBeyondExpiry, Field: "retentionHours", Value: fmt.Sprint(retention), Reason: fmt.Sprintf("the volume expires after %d hours", expiration)}
	}
	return nil
}

// setHours stamps a volume; what is not positive leaves a time as it is.
func (v *Volume) setHours(now time.Time, expiration, retention int64) {
	if expiration > 0 {
		v.Expires = now.Add(time.Duration(expiration) * time.Hour)
	}
	if retention > 0 {
		v.Retained = now.Add(time.Duration(retention) * time.Hour)
	}
}

// newName refuses a name that a volume or a set may not have, or that is taken.
func (a *Array) newName(field, name string) error {
	if err := checkName(field, name, MaxName); err != nil {
		return err
	}
	if a.volumes.has(name) {
		return &Error{Kind: ExistentVolume, Field: field, Value: name, Reason: "a volume has this name", Holder: name}
	}
	return nil
}

// newID chooses the id of a new volume.
func (a *Array) newID(id *int64) (int64, error) {
	if a.volumes.len() >= a.cfg.MaxVolumes {
		return 0, &Error{Kind: VolumeLimit, Field: "name", Reason: fmt.Sprintf("the array has %d volumes, as many as it may", a.volumes.len())}
	}
	if id == nil || *id < 0 { // the guide: negative ones are ignored
		n := a.nextID
		for a.byID[n] != nil {
			n++
		}
		return n, nil
	}
	if *id > 1<<31-1 {
		return 0, &Error{Kind: ExceedsRange, Field: "id", Value: fmt.Sprint(*id), Reason: "allowed are 0 to 2147483647"}
	}
	if v := a.byID[*id]; v != nil {
		return 0, &Error{Kind: ExistentID, Field: "id", Value: fmt.Sprint(*id), Reason: "a volume has this id", Holder: v.Name}
	}
	return *id, nil
}

// newWWN is that of the volume with a number: the vendor's prefix, the number,
// and the array's own. No volume has it again.
func (a *Array) newWWN(seq uint64) string {
	var b [32]byte
	out := appendHex(append(b[:0], "60002AC000000000"...), seq, 8, upperHex)
	return string(appendHex(out, uint64(a.system), 8, upperHex))
}

func (a *Array) provisioning(p Provisioning, compression bool, field string) (Provisioning, error) {
	if p == 0 {
		p = Thin
		if a.cfg.Family == ThreePAR {
			p = Full
		}
	}
	ok := p == Thin || a.cfg.Family == ThreePAR && (p == Full || p == Dedup) || a.cfg.Family == Primera && p == Reduce
	if !ok || compression && (a.cfg.Family != ThreePAR || p == Full) {
		// Unverified: the code for a kind that the family does not have.
		return 0, &Error{Kind: InvalidInput, Field: field, Value: fmt.Sprint(int(p)), Reason: fmt.Sprintf("not on a %s array", a.cfg.Family)}
	}
	return p, nil
}

// snapCPG finds the CPG for snapshots, which lies in the domain of the other.
func (a *Array) snapCPG(name string, user *cpg) (*cpg, error) {
	if name == "" {
		return nil, nil
	}
	c, err := a.cpg("snapCPG", name)
	if err != nil {
		return nil, err
	}
	if user != nil && c.Domain != user.Domain {
		return nil, &Error{Kind: CPGOtherDomain, Field: "snapCPG", Value: name, Reason: "the CPG is in another domain than " + user.Name}
	}
	return c, nil
}

func (a *Array) planVolume(s VolumeSpec) (*volume, error) {
	if err := a.newName("name", s.Name); err != nil {
		return nil, err
	}
	size, err := newSize(s.SizeMiB)
	if err != nil {
		return nil, err
	}
	if err := checkText("comment", s.Comment, MaxComment); err != nil {
		return nil, err
	}
	if err := checkHours(s.ExpirationHours, s.RetentionHours); err != nil {
		return nil, err
	}
	if s.UserWarningPct < 0 || s.UserWarningPct > 100 || s.UserLimitPct < 0 || s.UserLimitPct > 100 {
		return nil, &Error{Kind: ExceedsRange, Field: "usrSpcAllocWarningPct", Value: fmt.Sprint(s.UserWarningPct), Reason: "allowed are 0 to 100"}
	}
	if s.UserLimitPct > 0 && s.UserWarningPct > s.UserLimitPct {
		return nil, &Error{Kind: WarnBeyondLimit, Field: "usrSpcAllocWarningPct", Value: fmt.Sprint(s.UserWarningPct), Reason: fmt.Sprintf("the limit is %d", s.UserLimitPct)}
	}
	if s.Policies.System {
		return nil, &Error{Kind: VolumePolicy, Field: "policies", Value: "system", Reason: "system volumes are made by the array"}
	}
	user, err := a.cpg("cpg", s.CPG)
	if err != nil {
		return nil, err
	}
	snap, err := a.snapCPG(s.SnapCPG, user)
	if err != nil {
		return nil, err
	}
	p, err := a.provisioning(s.Provisioning, s.Compression, "tpvv")
	if err != nil {
		return nil, err
	}
	id, err := a.newID(s.ID)
	if err != nil {
		return nil, err
	}
	v := &volume{user: user, snap: snap, Volume: Volume{ID: id, Name: s.Name, Domain: user.Domain, SizeMiB: size,
		Provisioning: p, Compression: s.Compression, CopyType: Base, Comment: s.Comment, State: Normal, Policies: s.Policies,
		UserWarningPct: s.UserWarningPct, UserLimitPct: s.UserLimitPct, WWN: s.wwn}}
	// A thin volume takes nothing yet, but the first unit has to be there
	// (unverified).
	if err := a.room("sizeMiB", user, max(v.userMiB(), UnitMiB)); err != nil {
		return nil, err
	}
	a.identify(v)
	return v, nil
}

// identify gives a new volume what derives from its number.
func (a *Array) identify(v *volume) {
	v.Seq = a.volumeSeq + 1
	v.UUID = uuid(a.cfg.Seed, "volume", v.Seq)
	v.Image = a.imageName(v.Seq, 0)
	if v.WWN == "" || a.byWWN[v.WWN] != nil {
		v.WWN = a.newWWN(v.Seq)
	}
}

// PlanCreateVolume checks whether CreateVolume would succeed.
func (a *Array) PlanCreateVolume(s VolumeSpec) (Plan, error) {
	v, err := a.planVolume(s)
	if err != nil {
		return Plan{}, err
	}
	return Plan{v.out(), []ContentOp{{Do: MakeImage, Image: v.Image, SizeMiB: v.SizeMiB}}}, nil
}

// CreateVolume makes a volume. Errors: names, EXISTENT_VOL, EXISTENT_ID,
// INV_INPUT, INV_INPUT_BELOW_RANGE, TOO_LARGE, NON_EXISTENT_CPG,
// CPG_NOT_IN_SAME_DOMAIN, NO_SPACE, times, VV_LIMIT_REACHED.
func (a *Array) CreateVolume(now time.Time, s VolumeSpec) (Volume, error) {
	v, err := a.planVolume(s)
	if err != nil {
		return Volume{}, err
	}
	v.setHours(now, s.ExpirationHours, s.RetentionHours)
	a.appear(now, v)
	return v.out(), nil
}

// appear puts a new volume into every index.
func (a *Array) appear(now time.Time, v *volume) {
	a.volumeSeq++
	v.Created = now
	if v.ID == a.nextID {
		a.nextID++
	}
	a.insert(now, v)
	a.log(now, Added, "volume", v.Name)
}

func (a *Array) insert(now time.Time, v *volume) {
	a.volumes.put(v.Name, v)
	a.byID[v.ID] = v
	a.byWWN[v.WWN] = v
	a.byImage[v.Image] = v
	if v.parent != nil {
		a.children.add(v.parent, v)
	}
	if v.CopyType == Virtual {
		a.snapshots++
	}
	if v.user != nil {
		v.user.Volumes++
	}
	if v.snap != nil {
		v.snap.SnapshotsFor++
	}
	a.charge(now, v)
	a.expires(v)
}

// volume finds a volume.
func (a *Array) volume(field, name string) (*volume, error) {
	if v, ok := a.volumes.get(name); ok {
		return v, nil
	}
	if err := checkName(field, name, MaxName); err != nil {
		return nil, err
	}
	return nil, &Error{Kind: NonExistentVolume, Field: field, Value: name, Reason: "no such volume"}
}

// removable refuses a volume that something stands on. Unverified: the order.
func (a *Array) removable(now time.Time, v *volume) error {
	refuse := func(k Kind, holder, reason string) error {
		return &Error{Kind: k, Field: "name", Value: v.Name, Reason: reason, Holder: holder}
	}
	if v.group != nil {
		return refuse(InRemoteCopy, v.group.Name, "the volume is in a remote copy group")
	}
	if err := v.idle(); err != nil {
		return err
	}
	if now.Before(v.Retained) {
		return refuse(Retained, "", "the volume is retained until "+v.Retained.Format(time.RFC3339))
	}
	if x := a.exportOf(v); x != "" {
		return refuse(Exported, x, "the volume is exported")
	}
	var child *volume // read-only ones first
	for c := range a.children[v] {
		if child == nil || c.ReadOnly && !child.ReadOnly || c.ReadOnly == child.ReadOnly && c.Seq < child.Seq {
			child = c
		}
	}
	if child != nil && child.ReadOnly {
		return refuse(HasReadOnlyChild, child.Name, "the volume has a read-only copy")
	}
	if child != nil {
		return refuse(HasChild, child.Name, "the volume has a copy")
	}
	if s, some := least(a.setsOf[v], func(s *volumeSet) string { return s.Name }); some {
		return refuse(InUse, s.Name, "the volume is in a set")
	}
	return nil
}

// idle refuses a volume that a task works on. Clients know the codes: on 29
// and 151 they stop the copy and come again (OpenStack's driver).
func (v *volume) idle() error {
	if v.busy == nil {
		return nil
	}
	t := v.busy
	e := &Error{Field: "name", Value: v.Name, Holder: fmt.Sprintf("task %d", t.ID), Reason: "a task works on the volume"}
	switch {
	case t.Type == PromoteTask:
		e.Kind = PromoteRunning
	case t.Type == TuneTask:
		e.Kind = TuneRunning
	case t.to == v && t.Type == OnlineCopyTask:
		e.Kind = OnlineCopy
	default:
		e.Kind = BeingCopied
	}
	return e
}

// PlanDeleteVolume checks whether DeleteVolume would succeed.
func (a *Array) PlanDeleteVolume(now time.Time, name string) (Plan, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return Plan{}, err
	}
	if err := a.removable(now, v); err != nil {
		return Plan{}, err
	}
	return Plan{v.out(), []ContentOp{{Do: DropImage, Image: v.Image}}}, nil
}

// DeleteVolume drops a volume or a virtual copy. Errors: NON_EXISTENT_VOL,
// INV_OPERATION_VV_IN_REMOTE_COPY, VV_BEING_COPIED,
// INV_OPERATION_VV_ONLINE_COPY_IN_PROGRESS, RETAINED, EXPORTED_VLUN,
// HAS_RO_CHILD, HAS_CHILD, IN_USE.
func (a *Array) DeleteVolume(now time.Time, name string) (Volume, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return Volume{}, err
	}
	if err := a.removable(now, v); err != nil {
		return Volume{}, err
	}
	o := v.out()
	a.vanish(now, v)
	a.log(now, Removed, "volume", name)
	return o, nil
}

// vanish takes a volume out of every index.
func (a *Array) vanish(now time.Time, v *volume) {
	a.discharge(v)
	if v.user != nil {
		v.user.Volumes--
		a.warn(now, v.user)
	}
	if v.snap != nil {
		v.snap.SnapshotsFor--
		a.warn(now, v.snap)
	}
	if v.CopyType == Virtual {
		a.snapshots--
	}
	if v.parent != nil {
		a.children.drop(v.parent, v)
		if v.CopyType == Virtual && v.parent.CopyType != Virtual && !a.hasSnapshots(v.parent) {
			a.discharge(v.parent)
			v.parent.SnapshotMiB = 0
			a.charge(now, v.parent)
		}
	}
	delete(a.byImage, v.Image)
	delete(a.byWWN, v.WWN)
	delete(a.byID, v.ID)
	a.volumes.drop(v.Name)
}

// PlanGrow checks whether Grow would succeed.
func (a *Array) PlanGrow(name string, moreMiB int64) (Plan, error) {
	all, size, err := a.planGrow(name, moreMiB)
	if err != nil {
		return Plan{}, err
	}
	p := Plan{Volume: all[0].v.out()}
	p.Volume.SizeMiB = size
	for _, x := range all {
		p.Ops = append(p.Ops, ContentOp{Do: GrowImage, Image: x.v.Image, SizeMiB: size})
	}
	return p, nil
}

type placed struct {
	on *Array
	v  *volume
}

// planGrow says which volumes grow together, the named one first, and to what.
func (a *Array) planGrow(name string, moreMiB int64) ([]placed, int64, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return nil, 0, err
	}
	if moreMiB <= 0 || moreMiB > MaxSizeMiB {
		return nil, 0, &Error{Kind: GrowSize, Field: "sizeMiB", Value: fmt.Sprint(moreMiB), Reason: fmt.Sprintf("allowed are 1 to %d", MaxSizeMiB)}
	}
	size := v.SizeMiB + roundMiB(moreMiB)
	all := []placed{{a, v}}
	if g := v.group; g != nil {
		// Unverified: primary and secondary grow together, while the group is
		// stopped.
		if g.State == GroupIsStarted || g.Role != Primary {
			return nil, 0, &Error{Kind: InRemoteCopy, Field: "name", Value: name, Reason: "its remote copy group is started, or secondary here", Holder: g.Name}
		}
		b, _, err := a.both(g)
		if err != nil {
			return nil, 0, err
		}
		for _, x := range g.Volumes {
			if x.Volume == name {
				all = append(all, placed{b, b.peerOf(x)})
			}
		}
	}
	for _, x := range all {
		if err := x.on.growable(x.v, size); err != nil {
			return nil, 0, err
		}
	}
	return all, size, nil
}

func (a *Array) growable(v *volume, size int64) error {
	if v.CopyType == Virtual {
		return &Error{Kind: UnsupportedType, Field: "name", Value: v.Name, Reason: "a virtual copy can't grow"}
	}
	if err := v.idle(); err != nil {
		return err
	}
	if size > MaxSizeMiB {
		return &Error{Kind: SizeExceedsLimits, Field: "sizeMiB", Value: fmt.Sprint(size - v.SizeMiB), Reason: fmt.Sprintf("the volume would have %d, allowed are %d", size, MaxSizeMiB)}
	}
	if more := size - v.SizeMiB; v.Provisioning == Full && more > a.freeMiB(v.user) {
		if l := v.user.GrowthLimitMiB; l > 0 && v.user.UsedMiB()+more > l {
			return &Error{Kind: ExceedsCPGLimit, Field: "sizeMiB", Value: fmt.Sprint(more), Reason: fmt.Sprintf("the CPG may take %d MiB", l), Holder: v.user.Name}
		}
		return a.room("sizeMiB", v.user, more)
	}
	return nil
}

// Grow enlarges a volume by some MiB, rounded up to whole units. Errors:
// NON_EXISTENT_VOL, INV_OPERATION_UNSUPPORTED_VV_TYPE, INV_INPUT_VV_GROW_SIZE,
// VV_NEW_SIZE_EXCEEDS_LIMITS, VV_NEW_SIZE_EXCEED_CPG_LIMIT, NO_SPACE,
// RCOPY_TARGET_IS_NOT_READY, and what a running task or a started remote copy
// group stands against.
func (a *Array) Grow(now time.Time, name string, moreMiB int64) (Volume, error) {
	all, size, err := a.planGrow(name, moreMiB)
	if err != nil {
		return Volume{}, err
	}
	for _, x := range all {
		x.on.discharge(x.v)
		x.v.SizeMiB = size
		x.on.charge(now, x.v)
		x.on.log(now, Changed, "volume", x.v.Name)
	}
	return all[0].v.out(), nil
}

// VolumeChange says what to change; nil leaves a thing as it is.
type VolumeChange struct {
	NewName, Comment, SnapCPG, UserCPG *string
	Policies                           *Policies
	ExpirationHours, RetentionHours    int64
	RemoveExpiration                   bool
}

// ModifyVolume changes a volume. Errors: NON_EXISTENT_VOL, EXISTENT_VOL, names,
// times, RETAINED (a retention can't be shortened), INV_INPUT_VV_POLICY,
// INV_OPERATION_VV_CPG_ON_SNAPSHOT, INV_OPERATION_VV_MODIFY_USR_CPG_TPVV,
// IN_USE (the CPG for snapshots while there are some), NON_EXISTENT_CPG,
// CPG_NOT_IN_SAME_DOMAIN, INV_INPUT_MISSING_REQUIRED (nothing to change).
func (a *Array) ModifyVolume(now time.Time, name string, ch VolumeChange) (Volume, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return Volume{}, err
	}
	if ch == (VolumeChange{}) {
		return Volume{}, &Error{Kind: MissingRequired, Field: "newName", Reason: "nothing to change"}
	}
	n := *v
	if ch.NewName != nil && *ch.NewName != name {
		n.Name = *ch.NewName
		if err := a.newName("newName", n.Name); err != nil {
			return Volume{}, err
		}
		if v.group != nil {
			// Unverified: that a volume keeps its name while it is replicated.
			return Volume{}, &Error{Kind: InRemoteCopy, Field: "newName", Value: n.Name, Reason: "the volume is in a remote copy group", Holder: v.group.Name}
		}
		if v.busy != nil && v.busy.Type == OnlineCopyTask {
			return Volume{}, v.idle()
		}
	}
	if ch.Comment != nil {
		n.Comment = *ch.Comment
		if err := checkText("comment", n.Comment, MaxComment); err != nil {
			return Volume{}, err
		}
	}
	if ch.UserCPG != nil {
		if v.CopyType == Virtual {
			return Volume{}, &Error{Kind: CPGOnSnapshot, Field: "userCPG", Value: *ch.UserCPG, Reason: "a virtual copy has no CPG of its own"}
		}
		if _, err := a.cpg("userCPG", *ch.UserCPG); err != nil {
			return Volume{}, err
		}
		return Volume{}, &Error{Kind: UserCPGFixed, Field: "userCPG", Value: *ch.UserCPG, Reason: "the volume has to be tuned to move"}
	}
	if ch.SnapCPG != nil {
		if v.CopyType == Virtual {
			return Volume{}, &Error{Kind: CPGOnSnapshot, Field: "snapCPG", Value: *ch.SnapCPG, Reason: "a virtual copy has no CPG of its own"}
		}
		if n.snap, err = a.snapCPG(*ch.SnapCPG, v.user); err != nil {
			return Volume{}, err
		}
		if n.snap != v.snap && (len(a.children[v]) > 0 || v.SnapshotMiB > 0) {
			return Volume{}, &Error{Kind: InUse, Field: "snapCPG", Value: *ch.SnapCPG, Reason: "the volume has snapshots in its CPG"}
		}
	}
	if ch.Policies != nil {
		if ch.Policies.System {
			return Volume{}, &Error{Kind: VolumePolicy, Field: "policies", Value: "system", Reason: "system volumes are made by the array"}
		}
		n.Policies = *ch.Policies
	}
	if ch.RemoveExpiration {
		if ch.ExpirationHours > 0 {
			return Volume{}, &Error{Kind: ParamConflict, Field: "rmExpTime", Value: "true", Reason: "not with expirationHours"}
		}
		n.Expires = time.Time{}
	}
	if err := checkHours(ch.ExpirationHours, ch.RetentionHours); err != nil {
		return Volume{}, err
	}
	n.setHours(now, ch.ExpirationHours, ch.RetentionHours)
	if n.Retained.Before(v.Retained) {
		return Volume{}, &Error{Kind: Retained, Field: "retentionHours", Value: fmt.Sprint(ch.RetentionHours), Reason: "a retention can't be shortened"}
	}
	if !n.Expires.IsZero() && n.Retained.After(n.Expires) {
		return Volume{}, &Error{Kind: RetainBeyondExpiry, Field: "retentionHours", Value: fmt.Sprint(ch.RetentionHours), Reason: "the volume expires before"}
	}
	if n.snap != v.snap {
		if v.snap != nil {
			v.snap.SnapshotsFor--
		}
		if n.snap != nil {
			n.snap.SnapshotsFor++
		}
	}
	if n.Name != name {
		a.volumes.rename(name, n.Name)
	}
	again := !n.Expires.Equal(v.Expires)
	*v = n
	if again {
		a.expires(v)
	}
	a.log(now, Changed, "volume", v.Name)
	return v.out(), nil
}

// Volume returns a copy of a volume. Errors: NON_EXISTENT_VOL.
func (a *Array) Volume(name string) (Volume, error) {
	v, err := a.volume("name", name)
	if err != nil {
		return Volume{}, err
	}
	return v.out(), nil
}

// VolumeByWWN finds a volume as a host knows it.
func (a *Array) VolumeByWWN(wwn string) (Volume, bool) {
	v, ok := a.byWWN[wwn]
	if !ok {
		return Volume{}, false
	}
	return v.out(), true
}

// Volumes returns all volumes and virtual copies, oldest first.
func (a *Array) Volumes() []Volume {
	out := make([]Volume, 0, a.volumes.len())
	for v := range a.volumes.all() {
		out = append(out, v.out())
	}
	return out
}

// CopiesOf returns the names of the copies of a volume, sorted.
func (a *Array) CopiesOf(name string) []string {
	v, ok := a.volumes.get(name)
	if !ok {
		return nil
	}
	var out []string
	for c := range a.children[v] {
		out = append(out, c.Name)
	}
	slices.Sort(out)
	return out
}
