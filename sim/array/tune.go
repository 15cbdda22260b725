package array

import (
	"fmt"
	"time"
)

// TuneSpec says where a volume goes, or what it becomes.
type TuneSpec struct {
	Volume  string
	UserCPG string // moves its content
	SnapCPG string // moves what its snapshots take
	Convert Provisioning
}

func (a *Array) planTune(s TuneSpec) (*volume, *task, *cpg, error) {
	v, err := a.volume("name", s.Volume)
	if err != nil {
		return nil, nil, nil, err
	}
	if v.CopyType == Virtual {
		return nil, nil, nil, &Error{Kind: UnsupportedType, Field: "name", Value: s.Volume, Reason: "a virtual copy can't be tuned"}
	}
	if s.UserCPG == "" && s.SnapCPG == "" {
		return nil, nil, nil, &Error{Kind: OneRequired, Field: "userCPG", Reason: "userCPG or snapCPG is required"}
	}
	if s.SnapCPG != "" && (s.UserCPG != "" || s.Convert != 0) {
		return nil, nil, nil, &Error{Kind: ParamConflict, Field: "snapCPG", Value: s.SnapCPG, Reason: "not with userCPG or conversionOperation"}
	}
	if err := v.idle(); err != nil {
		return nil, nil, nil, err
	}
	if v.group != nil && s.Convert != 0 {
		return nil, nil, nil, &Error{Kind: InRemoteCopy, Field: "name", Value: s.Volume, Reason: "the volume is in a remote copy group", Holder: v.group.Name}
	}
	t := &task{Task: Task{Type: TuneTask, Name: s.Volume, TotalMiB: max(v.WrittenMiB, UnitMiB)}, to: v}
	if s.SnapCPG != "" {
		c, err := a.snapCPG(s.SnapCPG, v.user)
		if err != nil {
			return nil, nil, nil, err
		}
		if len(a.children[v]) > 0 {
			return nil, nil, nil, &Error{Kind: HasChild, Field: "snapCPG", Value: s.SnapCPG, Reason: "the volume has copies"}
		}
		return v, t, c, a.room("snapCPG", c, v.snapMiB())
	}
	c, err := a.cpg("userCPG", s.UserCPG)
	if err != nil {
		return nil, nil, nil, err
	}
	if c.Domain != v.Domain {
		return nil, nil, nil, &Error{Kind: CPGOtherDomain, Field: "userCPG", Value: s.UserCPG, Reason: "the CPG is in another domain than the volume"}
	}
	t.user = c
	if s.Convert != 0 {
		p, err := a.provisioning(s.Convert, false, "conversionOperation")
		if err != nil {
			return nil, nil, nil, err
		}
		if len(a.children[v]) > 0 {
			// Unverified: the code; mutations of volumes with copies are documented
			// as not possible.
			return nil, nil, nil, &Error{Kind: HasChild, Field: "conversionOperation", Value: fmt.Sprint(int(s.Convert)), Reason: "the volume has copies"}
		}
		t.convert = p
	}
	n := *v
	if t.convert != 0 {
		n.Provisioning = t.convert
	}
	return v, t, nil, a.room("userCPG", c, n.userMiB())
}

// Tune starts to move a volume to another CPG, and to convert it; its content
// stays as it is, and hosts notice nothing. What snapshots take moves at once.
// Errors: NON_EXISTENT_VOL, INV_OPERATION_UNSUPPORTED_VV_TYPE,
// INV_INPUT_ONE_REQUIRED, INV_INPUT_PARAM_CONFLICT, NON_EXISTENT_CPG,
// CPG_NOT_IN_SAME_DOMAIN, HAS_CHILD, NO_SPACE,
// INV_OPERATION_VV_IN_REMOTE_COPY, and what another task stands against.
func (a *Array) Tune(now time.Time, s TuneSpec) (Task, error) {
	v, t, snap, err := a.planTune(s)
	if err != nil {
		return Task{}, err
	}
	if snap != nil {
		a.discharge(v)
		if v.snap != nil {
			v.snap.SnapshotsFor--
		}
		v.snap = snap
		snap.SnapshotsFor++
		a.charge(now, v)
	}
	return a.start(now, t).Task, nil
}

// tuned moves a volume at the end of its task, or says why it can't.
func (a *Array) tuned(now time.Time, t *task) string {
	if t.user == nil {
		return ""
	}
	v := t.to
	if c, ok := a.cpgs.get(t.user.Name); !ok || c != t.user {
		return "the CPG is gone"
	}
	a.discharge(v)
	n := *v
	if t.convert != 0 {
		n.Provisioning = t.convert
	}
	if err := a.room("userCPG", t.user, n.userMiB()); err != nil {
		a.charge(now, v)
		return err.Error()
	}
	v.user.Volumes--
	a.warn(now, v.user)
	v.user, v.Provisioning = t.user, n.Provisioning
	v.user.Volumes++
	a.charge(now, v)
	return ""
}
