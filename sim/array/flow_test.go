package array

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

func is(t *testing.T, err error, k Kind) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != k {
		t.Fatalf("got %v, want %s", err, k)
	}
}

func ops(all []ContentOp) (out []Action) {
	for _, o := range all {
		out = append(out, o.Do)
	}
	return out
}

// TestLUNIsReused: the lowest free LUN is given by default, so the number of a
// volume that went is the next one's; the WWN is not.
func TestLUNIsReused(t *testing.T) {
	a, _ := world(t)
	export := func(v string, port *PortPos) VLUN {
		return must[VLUN](t)(a.CreateVLUN(epoch, VLUNSpec{Volume: v, Host: "h1", Port: port, Auto: true}))
	}
	first := export("plain", &PortPos{0, 2, 1})
	second := export("plain", &PortPos{0, 2, 2})
	if first.LUN != 0 || second.LUN != 0 || first.Type != MatchedSet {
		t.Fatalf("over two ports at %+v and %+v", first, second)
	}
	if x := export("lone", nil); x.LUN != 1 || x.Type != HostSees {
		t.Fatalf("the next volume is at %+v", x)
	}
	init, pos := Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1}
	before := a.Devices(init, pos)
	must[VLUN](t)(a.DeleteVLUN(epoch, VLUNKey{"plain", 0, "h1", &PortPos{0, 2, 2}}))
	if x := must[VLUN](t)(a.PlanVLUN(VLUNSpec{Volume: "full", Host: "h1", Auto: true})); x.LUN != 2 {
		t.Fatalf("a LUN is free while an export over another port has it: %+v", x)
	}
	must[VLUN](t)(a.DeleteVLUN(epoch, VLUNKey{"plain", 0, "h1", &PortPos{0, 2, 1}}))
	if x := export("full", nil); x.LUN != 0 {
		t.Fatalf("the LUN is not used again: %+v", x)
	}
	after := a.Devices(init, pos)
	if before[0].LUN != after[0].LUN || before[0].WWN == after[0].WWN || before[0].Image == after[0].Image {
		t.Fatalf("LUN 0 was %+v, is %+v", before[0], after[0])
	}
	if last := after[len(after)-1]; last.Volume != "spare" || last.LUN != 9 {
		t.Fatalf("what the port presents is missing: %+v", after)
	}
	if n := len(a.ActiveVLUNs("h1")); n != len(after) {
		t.Fatalf("%d exports are active, %d devices there", n, len(after))
	}
}

// TestPortPresents: whoever sees the port finds what it presents, until that
// ends; another initiator than h1's finds nothing else.
func TestPortPresents(t *testing.T) {
	a, _ := world(t)
	stranger, pos := Path{ISCSI, iqn + "99"}, PortPos{0, 2, 1}
	if d := a.Devices(stranger, pos); len(d) != 1 || d[0].Volume != "spare" {
		t.Fatalf("a stranger finds %+v", d)
	}
	must[VLUN](t)(a.DeleteVLUN(epoch, VLUNKey{Volume: "spare", LUN: 9, Port: &pos}))
	if d := a.Devices(stranger, pos); len(d) != 0 {
		t.Fatalf("a stranger still finds %+v", d)
	}
}

// TestCloneRuns: a copy has progress, can be exported while it runs, and is a
// volume of its own afterwards.
func TestCloneRuns(t *testing.T) {
	a, _ := world(t)
	c := CloneSpec{Of: "plain", To: "clone", Online: true, CPG: "cpg"}
	p := must[Plan](t)(a.PlanClone(c))
	if !reflect.DeepEqual(ops(p.Ops), []Action{CopyImage}) || p.Ops[0].From == p.Ops[0].Image {
		t.Fatalf("content: %+v", p.Ops)
	}
	id := must[Task](t)(a.Clone(epoch, c)).ID
	must[VLUN](t)(a.CreateVLUN(epoch, VLUNSpec{Volume: "clone", Host: "h1", Auto: true}))
	a.Tick(epoch.Add(500 * time.Millisecond))
	if x := must[Task](t)(a.Task(id)); x.Status != TaskActive || x.Percent() != 48 {
		t.Fatalf("half way: %+v", x)
	}
	if v := must[Volume](t)(a.Volume("clone")); v.Task != id || v.CopyOf != "plain" {
		t.Fatalf("half way: %+v", v)
	}
	a.Tick(epoch.Add(2 * time.Second))
	v := must[Volume](t)(a.Volume("clone"))
	if x := must[Task](t)(a.Task(id)); x.Status != TaskDone || v.CopyOf != "" || v.CopyType != Base || v.Image != p.Ops[0].Image {
		t.Fatalf("done: %+v, %+v", x, v)
	}
	must[Volume](t)(a.DeleteVolume(epoch, "plain"))
}

// TestStoppedCopyIsStale: what a copy left half done can't be exported or
// copied, but be deleted.
func TestStoppedCopyIsStale(t *testing.T) {
	a, _ := world(t)
	_, err := a.StopCopy(epoch, "online")
	ok(t, err)
	_, err = a.CreateVLUN(epoch, VLUNSpec{Volume: "online", Host: "h1", Auto: true})
	is(t, err, StaleState)
	_, err = a.CreateCopy(epoch, CopySpec{Of: "online", Name: "s"})
	is(t, err, StaleState)
	must[Volume](t)(a.DeleteVolume(epoch, "online"))
}

// TestExpiry: a copy whose time has come goes, unless it is exported; one that
// is retained does not go before.
func TestExpiry(t *testing.T) {
	a, _ := world(t)
	must[Volume](t)(a.CreateCopy(epoch, CopySpec{Of: "plain", Name: "s1", ExpirationHours: 2, RetentionHours: 1}))
	must[Volume](t)(a.CreateCopy(epoch, CopySpec{Of: "plain", Name: "s2", ExpirationHours: 2}))
	must[VLUN](t)(a.CreateVLUN(epoch, VLUNSpec{Volume: "s2", LUN: 7, Host: "h1"}))
	_, err := a.DeleteVolume(epoch.Add(59*time.Minute), "s1")
	is(t, err, Retained)
	if gone := a.Tick(epoch.Add(2 * time.Hour)); !reflect.DeepEqual(ops(gone)[len(gone)-1:], []Action{DropImage}) {
		t.Fatalf("content: %+v", gone)
	}
	_, err = a.Volume("s1")
	is(t, err, NonExistentVolume)
	must[VLUN](t)(a.DeleteVLUN(epoch, VLUNKey{Volume: "s2", LUN: 7, Host: "h1"}))
	a.Tick(epoch.Add(3 * time.Hour))
	_, err = a.Volume("s2")
	is(t, err, NonExistentVolume)
}

// TestSetCopyIsOfOneMoment: all volumes of a set or none.
func TestSetCopyIsOfOneMoment(t *testing.T) {
	a, _ := world(t)
	must[Set](t)(a.ModifyVolumeSet(epoch, "vols", SetChange{Add: []string{"plain"}}))
	_, err := a.CopySet(epoch, CopySpec{Of: "vols", Name: "s"})
	is(t, err, NamePattern)
	if n := len(must[[]Volume](t)(a.CopySet(epoch, CopySpec{Of: "vols", Name: "s-@vvname@", ReadOnly: true}))); n != 2 {
		t.Fatalf("%d copies", n)
	}
	must[Set](t)(a.ModifyVolumeSet(epoch, "vols", SetChange{Add: []string{"lone"}}))
	before := a.dump()
	_, err = a.CopySet(epoch, CopySpec{Of: "vols", Name: "t-@count@"})
	is(t, err, NoSnapCPG)
	if !reflect.DeepEqual(before, a.dump()) {
		t.Fatal("some copies were made")
	}
}

// TestSessions idle out, count from one client, and are capped.
func TestSessions(t *testing.T) {
	a, _ := world(t)
	s := must[Session](t)(a.OpenSession(epoch, "admin", "secret", "10.0.0.1"))
	must[Session](t)(a.OpenSession(epoch, "guest", "guest", "10.0.0.2"))
	_, err := a.OpenSession(epoch, "admin", "secret", "10.0.0.1")
	is(t, err, TooBusy)
	_, err = a.UseSession(epoch, s.Key, "10.0.0.9")
	is(t, err, SessionKey)
	must[Session](t)(a.UseSession(epoch.Add(14*time.Minute), s.Key, "10.0.0.1"))
	must[Session](t)(a.OpenSession(epoch.Add(15*time.Minute), "admin", "secret", "10.0.0.1")) // the guest's idled out
	_, err = a.UseSession(epoch.Add(29*time.Minute), s.Key, "10.0.0.1")
	is(t, err, SessionKey)
}

// TestPeerPersistence: primary and secondary share one content while the group
// is in sync; when the primary is lost the secondary takes over with its own
// copy and the same WWN, the lost side is cut off, and the way back works.
func TestPeerPersistence(t *testing.T) {
	a, b := world(t)
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "pp", Target: "two", Mode: Synchronous, TargetUserCPG: "cpg", AutoFailover: true}))
	made := must[[]ContentOp](t)(a.AdmitVolume(epoch, "pp", AdmitSpec{Volume: "plain", Remote: "plain", Create: true}))
	if !reflect.DeepEqual(ops(made), []Action{MakeImage}) {
		t.Fatalf("content: %+v", made)
	}
	there := must[Group](t)(a.Group("pp")).Remote
	must[Host](t)(b.CreateHost(epoch, HostSpec{Name: "h1", ISCSINames: []string{iqn + "1"}}))
	must[VLUN](t)(b.CreateVLUN(epoch, VLUNSpec{Volume: "plain", Host: "h1", Auto: true}))
	must[VLUN](t)(a.CreateVLUN(epoch, VLUNSpec{Volume: "plain", Host: "h1", Auto: true}))
	_, _, err := a.StartGroup(epoch, "pp")
	ok(t, err)
	now := epoch.Add(time.Minute)
	shared := a.Tick(now)
	device := func(x *Array) Device { return x.Devices(Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1})[0] }
	if p, s := device(a), device(b); p.WWN != s.WWN || p.Image != s.Image || p.Standby || !s.Standby {
		t.Fatalf("in sync: %+v and %+v by %+v", p, s, shared)
	}

	split := must[[]ContentOp](t)(b.Lost(now, "one"))
	if p, s := device(a), device(b); p.Image == s.Image || s.Image == made[0].Image || !p.Standby || s.Standby {
		t.Fatalf("after the loss: %+v and %+v by %+v", p, s, split)
	}
	_, _, err = b.Recover(now, there)
	is(t, err, TargetNotReady)
	_, err = a.Connect(now, "two", true)
	ok(t, err)
	_, _, err = a.StartGroup(now, "pp")
	is(t, err, GroupSplit)
	_, _, err = b.Recover(now, there)
	ok(t, err)
	_, err = b.RestoreGroup(now, there)
	is(t, err, GroupBusy)
	now = now.Add(time.Minute)
	b.Tick(now)
	if p, s := device(a), device(b); p.Image != s.Image || !p.Standby || s.Standby {
		t.Fatalf("recovered: %+v and %+v", p, s)
	}
	_, err = b.RestoreGroup(now, there)
	ok(t, err)
	ok(t, a.Switchover(now, "pp"), b.Switchover(now, there))
	if p, s := device(a), device(b); p.Standby || !s.Standby {
		t.Fatalf("natural again: %+v and %+v", p, s)
	}
	if g := must[Group](t)(a.Group("pp")); g.Role != Primary || g.Reversed || g.State != GroupIsStarted {
		t.Fatalf("natural again: %+v", g)
	}
}

// TestActivePeerPersistence: once it is synced the secondary takes I/O, over
// paths that are worse than the primary's, until its primary takes it over or is
// lost.
func TestActivePeerPersistence(t *testing.T) {
	a, b := world(t)
	yes, no := true, false
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "app", Target: "two", Mode: Synchronous, TargetUserCPG: "cpg"}))
	_, err := a.ModifyGroup(epoch, "app", GroupChange{ActiveActive: &yes})
	is(t, err, ParamConflict)
	_, err = a.ModifyGroup(epoch, "app", GroupChange{AutoFailover: &yes, ActiveActive: &yes})
	is(t, err, UnsupportedOp) // the world has 3PARs
	a.cfg.Family, b.cfg.Family = Primera, Primera
	must[Group](t)(a.ModifyGroup(epoch, "app", GroupChange{AutoFailover: &yes, ActiveActive: &yes}))
	_, err = a.ModifyGroup(epoch, "app", GroupChange{AutoFailover: &no})
	is(t, err, ParamConflict)
	must[[]ContentOp](t)(a.AdmitVolume(epoch, "app", AdmitSpec{Volume: "plain", Remote: "plain", Create: true}))
	must[Host](t)(b.CreateHost(epoch, HostSpec{Name: "h1", ISCSINames: []string{iqn + "1"}}))
	must[VLUN](t)(b.CreateVLUN(epoch, VLUNSpec{Volume: "plain", Host: "h1", Auto: true}))
	must[VLUN](t)(a.CreateVLUN(epoch, VLUNSpec{Volume: "plain", Host: "h1", Auto: true}))
	check := func(when string, astandby, adistant, bstandby, bdistant bool) {
		t.Helper()
		device := func(x *Array) Device { return x.Devices(Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1})[0] }
		if p, s := device(a), device(b); p.Standby != astandby || p.Distant != adistant || s.Standby != bstandby || s.Distant != bdistant || s.Distant && p.Image != s.Image {
			t.Fatalf("%s: %+v and %+v", when, p, s)
		}
	}
	_, _, err = a.StartGroup(epoch, "app")
	ok(t, err)
	check("while it is synced", false, false, true, false)
	now := epoch.Add(time.Minute)
	a.Tick(now)
	check("synced", false, false, false, true)
	must[[]ContentOp](t)(a.StopGroup(now, "app"))
	check("stopped", false, false, true, false)
	_, _, err = a.StartGroup(now, "app")
	ok(t, err)
	now = now.Add(time.Minute)
	a.Tick(now)
	check("synced again", false, false, false, true)
	ok(t, a.Switchover(now, "app"))
	check("switched over", false, true, false, false)
	ok(t, b.Switchover(now, must[Group](t)(a.Group("app")).Remote))
	must[[]ContentOp](t)(b.Lost(now, "one"))
	check("lost", true, false, false, false)
}

// TestLostBeforeSynced: a secondary that has not all that was written serves
// nothing when its primary is lost.
func TestLostBeforeSynced(t *testing.T) {
	a, b := world(t)
	yes := true
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "app", Target: "two", Mode: Synchronous, TargetUserCPG: "cpg"}))
	must[Group](t)(a.ModifyGroup(epoch, "app", GroupChange{AutoFailover: &yes}))
	must[[]ContentOp](t)(a.AdmitVolume(epoch, "app", AdmitSpec{Volume: "plain", Remote: "plain", Create: true}))
	must[Host](t)(b.CreateHost(epoch, HostSpec{Name: "h1", ISCSINames: []string{iqn + "1"}}))
	must[VLUN](t)(b.CreateVLUN(epoch, VLUNSpec{Volume: "plain", Host: "h1", Auto: true}))
	_, _, err := a.StartGroup(epoch, "app")
	ok(t, err)
	must[[]ContentOp](t)(b.Lost(epoch, "one"))
	remote := must[Group](t)(a.Group("app")).Remote
	g := must[Group](t)(b.Group(remote))
	if d := b.Devices(Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1}); g.Role != Secondary || g.State != GroupIsStopped || len(d) != 1 || !d[0].Standby {
		t.Fatalf("%+v, %+v", g, d)
	}
	ok(t, b.Failover(epoch, remote))
	if d := b.Devices(Path{ISCSI, iqn + "1"}, PortPos{0, 2, 1}); d[0].Standby {
		t.Fatalf("failed over: %+v", d)
	}
}

// TestPeriodicGroup: the secondary gets what the primary had when a sync began,
// again each period; a sync that is cut off leaves it as it was.
func TestPeriodicGroup(t *testing.T) {
	a, _ := world(t)
	must[Group](t)(a.CreateGroup(epoch, GroupSpec{Name: "per", Target: "two", Mode: Periodic, TargetUserCPG: "cpg", Period: 300}))
	must[[]ContentOp](t)(a.AdmitVolume(epoch, "per", AdmitSpec{Volume: "plain", Remote: "plain", Create: true}))
	ok(t, a.Written(epoch, "plain", 1000, 0))
	_, frozen, err := a.StartGroup(epoch, "per")
	ok(t, err)
	if !reflect.DeepEqual(ops(frozen), []Action{CopyImage}) {
		t.Fatalf("at the start: %+v", frozen)
	}
	done := a.Tick(epoch.Add(2 * time.Second))
	if o := ops(done); len(o) < 2 || o[len(o)-2] != OverwriteImage || o[len(o)-1] != DropImage {
		t.Fatalf("at the end: %+v", done)
	}
	a.Tick(epoch.Add(299 * time.Second))
	if g := must[Group](t)(a.Group("per")); g.Volumes[0].State != Synced {
		t.Fatalf("synced: %+v", g)
	}
	if again := a.Tick(epoch.Add(300 * time.Second)); !reflect.DeepEqual(ops(again), []Action{CopyImage}) {
		t.Fatalf("after the period: %+v", again)
	}
	cut := must[[]ContentOp](t)(a.StopGroup(epoch.Add(300*time.Second), "per"))
	if !reflect.DeepEqual(ops(cut), []Action{DropImage}) {
		t.Fatalf("cut off: %+v", cut)
	}
}

// TestHostSetFollows: a host that joins a set has what is exported to it, one
// that leaves doesn't.
func TestHostSetFollows(t *testing.T) {
	a, _ := world(t)
	init, pos := Path{ISCSI, iqn + "7"}, PortPos{1, 2, 1}
	must[Host](t)(a.CreateHost(epoch, HostSpec{Name: "late", ISCSINames: []string{init.Name}}))
	must[Set](t)(a.ModifyHostSet(epoch, "hosts", SetChange{Add: []string{"late"}}))
	if d := a.Devices(init, pos); len(d) != 1 || d[0].LUN != 5 || d[0].Volume != "large" {
		t.Fatalf("joined: %+v", d)
	}
	must[Set](t)(a.ModifyHostSet(epoch, "hosts", SetChange{Remove: []string{"late"}}))
	if d := a.Devices(init, pos); len(d) != 0 {
		t.Fatalf("left: %+v", d)
	}
}

// TestCHAP: an initiator needs its host's secret, which nothing hands out.
func TestCHAP(t *testing.T) {
	a, _ := world(t)
	p := Path{ISCSI, iqn + "1"}
	if !a.CHAP(p, "", "") {
		t.Fatal("refused without CHAP")
	}
	h := must[Host](t)(a.ModifyHost(epoch, "h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPInitiator, CHAPName: "u", CHAPSecret: "0123456789ab"}))
	_, err := a.ModifyHost(epoch, "h1", HostChange{CHAPOp: EditAdd, CHAPMode: CHAPTarget, CHAPSecret: "0123456789ab"})
	is(t, err, CHAPNotUnique)
	if h.CHAPName != "u" || a.CHAP(p, "u", "x") || !a.CHAP(p, "u", "0123456789ab") {
		t.Fatalf("%+v", h)
	}
}

// TestRestoreRefuses: state that does not fit is refused, and the array stays
// empty.
func TestRestoreRefuses(t *testing.T) {
	a, b := world(t)
	for name, spoil := range map[string]func(*Stored){
		"a volume twice":          func(s *Stored) { s.Volumes = append(s.Volumes, s.Volumes[0]) },
		"a volume in no CPG":      func(s *Stored) { s.Volumes[0].UserCPG = "x" },
		"a copy of nothing":       func(s *Stored) { s.Volumes[len(s.Volumes)-1].CopyOf = "x" },
		"a path of two hosts":     func(s *Stored) { s.Hosts[1].ISCSINames = s.Hosts[0].ISCSINames },
		"a set of nothing":        func(s *Stored) { s.VolumeSets[0].Members = []string{"x"} },
		"an export twice":         func(s *Stored) { s.VLUNs = append(s.VLUNs, s.VLUNs[0]) },
		"an export of nothing":    func(s *Stored) { s.VLUNs[0].Volume = "x" },
		"two volumes at one LUN":  func(s *Stored) { s.VLUNs = append(s.VLUNs, VLUN{Volume: "plain", LUN: 3, Host: "h1"}) },
		"a group to nowhere":      func(s *Stored) { s.Groups[0].Target = "x" },
		"a group of nothing":      func(s *Stored) { s.Groups[0].Volumes[0].Volume = "x" },
		"a task on nothing":       func(s *Stored) { s.Tasks[0].To = "x" },
		"events beyond their end": func(s *Stored) { s.Counters.Event = 1 },
		"a rule for no set":       func(s *Stored) { s.Rules[0].Set = "x" },
		"a port that isn't there": func(s *Stored) { s.VLUNs[0].Host, s.VLUNs[0].Port = "", &PortPos{7, 9, 4} },
		"a host twice":            func(s *Stored) { s.Hosts = append(s.Hosts, s.Hosts[0]) },
		"a CPG twice":             func(s *Stored) { s.CPGs = append(s.CPGs, s.CPGs[0]) },
		"a virtual copy of itself": func(s *Stored) {
			s.Volumes[0].CopyType, s.Volumes[0].UserCPG, s.Volumes[0].CopyOf = Virtual, "", s.Volumes[0].Name
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := a.State()
			spoil(s)
			n, err := New(a.cfg)
			ok(t, err)
			m, err := New(b.cfg)
			ok(t, err, Link(n, m))
			empty := n.dump()
			if err := n.Restore(s); err == nil {
				t.Fatal("restored")
			}
			if !reflect.DeepEqual(empty, n.dump()) {
				t.Fatal("not empty any more")
			}
			ok(t, n.Restore(a.State()), m.Restore(b.State()), n.CheckGroups(), m.CheckGroups())
		})
	}
}
