package array

import (
	"encoding/json"
	"slices"
	"testing"
	"time"
)

// FuzzRestore: no state, however wrong, makes an array panic: not when it is
// restored, not when it is worked with afterwards.
func FuzzRestore(f *testing.F) {
	a, b := world(f)
	for _, x := range []*Array{a, b} {
		s := x.State()
		s.Events, s.Counters.Event = nil, 0 // a small seed mutates better
		seed, err := json.Marshal(s)
		ok(f, err)
		f.Add(seed)
	}
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"counters":{"Event":-1,"Volume":18446744073709551615}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		var s Stored
		if json.Unmarshal(in, &s) != nil {
			return
		}
		n, err := New(a.cfg)
		ok(t, err)
		m, err := New(b.cfg)
		ok(t, err, Link(n, m))
		if n.Restore(&s) != nil {
			return
		}
		now := epoch.Add(time.Hour)
		n.Tick(now)
		for _, v := range n.Volumes() {
			_, _ = n.PlanGrow(v.Name, 256)
			_, _ = n.PlanClone(CloneSpec{Of: v.Name, To: "fuzz", Online: true, CPG: v.UserCPG})
			_, _ = n.CreateCopy(now, CopySpec{Of: v.Name, Name: "fuzz"})
			_, _ = n.DeleteVolume(now, "fuzz")
			_, _ = n.DeleteVolume(now, v.Name)
		}
		for _, g := range n.Groups() {
			_, _, _ = n.StartGroup(now, g.Name)
			_, _, _ = n.Recover(now, g.Name)
			_, _ = n.StopGroup(now, g.Name)
		}
		_, _ = n.Lost(now, "two")
		for _, task := range n.Tasks() {
			_, _, _ = n.CancelTask(now, task.ID)
		}
		for _, x := range n.VLUNs() {
			_, _ = n.DeleteVLUN(now, VLUNKey{x.Volume, x.LUN, x.Host, x.Port})
		}
		for _, h := range slices.Backward(n.Hosts()) {
			n.ActiveVLUNs(h.Name)
			_ = n.DeleteHost(now, h.Name)
		}
		n.State()
	})
}
