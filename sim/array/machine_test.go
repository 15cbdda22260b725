package array

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// images is a consumer's store of content: it fails where an operation does not
// fit what is there.
type images map[string]int64

func (m images) do(ops []ContentOp) error {
	for _, o := range ops {
		size, there := m[o.Image]
		_, from := m[o.From]
		switch o.Do {
		case MakeImage, CopyImage:
			if there || o.SizeMiB <= 0 || o.Do == CopyImage && !from {
				return fmt.Errorf("%+v: exists %v, source %v", o, there, from)
			}
			m[o.Image] = o.SizeMiB
		case OverwriteImage:
			if !there || !from || o.Image == o.From {
				return fmt.Errorf("%+v: exists %v, source %v", o, there, from)
			}
		case GrowImage:
			if !there || o.SizeMiB <= size {
				return fmt.Errorf("%+v: exists %v with %d", o, there, size)
			}
			m[o.Image] = o.SizeMiB
		case DropImage:
			if !there {
				return fmt.Errorf("%+v: not there", o)
			}
			delete(m, o.Image)
		case ShareImage, SplitImage:
			if !there || o.Array == "" || o.Volume == "" {
				return fmt.Errorf("%+v: exists %v", o, there)
			}
		default:
			return fmt.Errorf("%+v", o)
		}
	}
	return nil
}

// TestMachine runs random commands on two linked arrays: the indexes agree with
// a scan, the space with a sum, initiators and LUNs are unique, nothing is
// without its volume, content is there for each volume and for nothing else,
// and a refused command changes nothing.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := epoch
		var arrays [2]*Array
		for i := range arrays {
			var err error
			arrays[i], err = New(Config{Name: fmt.Sprint("array", i), Family: ThreePAR, Seed: uint64(i), Domains: []string{"dom"}, MaxSessions: 2, MaxVolumes: 9, MaxSnapshots: 5,
				CopyMiBs: 200, CapacityMiB: 8192, Users: []User{{Name: "u", Password: "p", Role: Super}}})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := Link(arrays[0], arrays[1]); err != nil {
			t.Fatal(err)
		}
		store := images{}
		for i, a := range arrays { // something to work on
			_, err1 := a.CreateCPG(now, CPGSpec{Name: "c1"})
			_, err2 := a.CreateHost(now, HostSpec{Name: "h1", ISCSINames: []string{"iqn.a"}})
			_, err3 := a.CreateHost(now, HostSpec{Name: "h2", ISCSINames: []string{"iqn.b"}})
			_, err4 := a.CreateHostSet(now, SetSpec{Name: "s1", Members: []string{"h2"}})
			err := errors.Join(err1, err2, err3, err4, a.Login(Path{ISCSI, "iqn.a"}, PortPos{0, 2, 1}))
			for _, n := range []string{"v0", "v1", "v2"}[i:] {
				v, e := a.CreateVolume(now, VolumeSpec{Name: n, CPG: "c1", SnapCPG: "c1", SizeMiB: 1024, Provisioning: Thin})
				err = errors.Join(err, e, store.do([]ContentOp{{Do: MakeImage, Image: v.Image, SizeMiB: v.SizeMiB}}))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		which := rapid.IntRange(0, 1)
		one := func(names ...string) *rapid.Generator[string] { return rapid.SampledFrom(names) }
		name := one("v0", "v1", "v2", "v0", "v1", "v2", "v3", "v4", "v5", "bad name")
		cpgName := one("c1", "c1", "c1", "c2", "none", "")
		hostName := one("h1", "h2", "h3")
		setName := one("s1", "s2")
		exported := one("v0", "v1", "v2", "v0", "v1", "v2", "v3", "set:s1", "set:s2", "set:")
		groupName := one("g1", "g2", "g1.r1", "g1.r2")
		size := rapid.SampledFrom([]int64{1024, 300, 256, 2048, 1024, 0, 1 << 30})
		prov := rapid.SampledFrom([]Provisioning{Thin, Full, 0, Reduce})
		hours := rapid.SampledFrom([]int64{0, 0, 0, 0, 0, 0, 1, 2, 99999})
		port := rapid.SampledFrom([]PortPos{{0, 2, 1}, {1, 2, 1}, {0, 1, 1}, {0, 0, 1}, {9, 9, 9}})
		path := rapid.SampledFrom([]Path{{ISCSI, "iqn.a"}, {ISCSI, "iqn.b"}, {FC, "10000000C9000001"}, {ISCSI, "IQN.A"}})
		iqns := rapid.SliceOfN(one("iqn.a", "iqn.b", "IQN.A", "iqn.c"), 0, 2)
		text := func(g *rapid.Generator[string], t *rapid.T, label string) *string {
			if rapid.Bool().Draw(t, "with "+label) {
				return nil
			}
			s := g.Draw(t, label)
			return &s
		}
		lunHost := func(t *rapid.T) string {
			if n := rapid.IntRange(0, 5).Draw(t, "to"); n == 0 {
				return ""
			} else if n == 1 {
				return setPrefix + setName.Draw(t, "set")
			}
			return hostName.Draw(t, "host")
		}
		lunPort := func(t *rapid.T) *PortPos {
			if rapid.Bool().Draw(t, "any port") {
				return nil
			}
			p := port.Draw(t, "port")
			return &p
		}
		groupOf := func(a *Array, t *rapid.T) string {
			if all := a.Groups(); len(all) > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0 {
				return all[rapid.IntRange(0, len(all)-1).Draw(t, "which")].Name
			}
			return groupName.Draw(t, "group")
		}
		dump := func() any { return []any{arrays[0].dump(), arrays[1].dump()} }
		// command runs one that may be refused; the content that it wants done is
		// done.
		command := func(f func(a *Array, t *rapid.T) ([]ContentOp, error)) func(*rapid.T) {
			return func(t *rapid.T) {
				before := dump()
				ops, err := f(arrays[which.Draw(t, "array")], t)
				if err != nil {
					var e *Error
					if !errors.As(err, &e) || e.Wire().Code == 0 || e.Error() == "" {
						t.Fatalf("not a typed error: %v", err)
					}
					if !reflect.DeepEqual(before, dump()) {
						t.Fatalf("refused with %v, but changed", err)
					}
					return
				}
				if err := store.do(ops); err != nil {
					t.Fatal(err)
				}
			}
		}
		// planned runs a command that has a plan: both say the same.
		planned := func(plan func() (Plan, error), do func() error) ([]ContentOp, error) {
			p, perr := plan()
			err := do()
			if !reflect.DeepEqual(perr, err) {
				t.Fatalf("plan says %v, the command %v", perr, err)
			}
			return p.Ops, err
		}
		t.Repeat(map[string]func(*rapid.T){
			"create cpg": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				_, err := a.CreateCPG(now, CPGSpec{Name: cpgName.Draw(t, "name"), Domain: one("", "", "dom", "x").Draw(t, "domain"), GrowthLimitMiB: size.Draw(t, "limit"), WarningMiB: size.Draw(t, "warning")})
				return nil, err
			}),
			"modify cpg": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				l := size.Draw(t, "limit")
				_, err := a.ModifyCPG(now, cpgName.Draw(t, "name"), CPGChange{NewName: text(cpgName, t, "new"), GrowthLimitMiB: &l})
				return nil, err
			}),
			"delete cpg": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.DeleteCPG(now, cpgName.Draw(t, "name"))
			}),
			"create volume": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := VolumeSpec{Name: name.Draw(t, "name"), CPG: cpgName.Draw(t, "cpg"), SnapCPG: cpgName.Draw(t, "snap"), SizeMiB: size.Draw(t, "size"),
					Provisioning: prov.Draw(t, "prov"), ExpirationHours: hours.Draw(t, "expires"), RetentionHours: hours.Draw(t, "retained"), Policies: Policies{OneHost: rapid.Bool().Draw(t, "one")}}
				if rapid.IntRange(0, 4).Draw(t, "id") == 0 {
					id := int64(rapid.IntRange(0, 12).Draw(t, "n"))
					s.ID = &id
				}
				return planned(func() (Plan, error) { return a.PlanCreateVolume(s) }, func() error { _, err := a.CreateVolume(now, s); return err })
			}),
			"delete volume": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				n := name.Draw(t, "name")
				return planned(func() (Plan, error) { return a.PlanDeleteVolume(now, n) }, func() error { _, err := a.DeleteVolume(now, n); return err })
			}),
			"grow": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				n, s := name.Draw(t, "name"), size.Draw(t, "size")
				return planned(func() (Plan, error) { return a.PlanGrow(n, s) }, func() error { _, err := a.Grow(now, n, s); return err })
			}),
			"modify volume": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				_, err := a.ModifyVolume(now, name.Draw(t, "name"), VolumeChange{NewName: text(name, t, "new"), SnapCPG: text(cpgName, t, "snap"),
					ExpirationHours: hours.Draw(t, "expires"), RetentionHours: hours.Draw(t, "retained"), RemoveExpiration: rapid.Bool().Draw(t, "rm")})
				return nil, err
			}),
			"write": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.Written(now, name.Draw(t, "name"), size.Draw(t, "user"), size.Draw(t, "snap"))
			}),
			"write to image": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				v, err := a.Volume(name.Draw(t, "name"))
				if err != nil {
					return nil, err
				}
				return nil, a.Wrote(now, v.Image, UnitMiB*rapid.Int64Range(0, 3).Draw(t, "first"), UnitMiB*rapid.Int64Range(0, 3).Draw(t, "again"))
			}),
			"value": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				n, k := name.Draw(t, "name"), one("k", "l", "").Draw(t, "key")
				if rapid.Bool().Draw(t, "delete") {
					return nil, a.DeleteValue(n, k)
				}
				return nil, a.CreateValue(n, k, "v")
			}),
			"copy": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := CopySpec{Of: name.Draw(t, "of"), Name: name.Draw(t, "name"), ReadOnly: rapid.Bool().Draw(t, "ro"), ExpirationHours: hours.Draw(t, "expires"), RetentionHours: hours.Draw(t, "retained")}
				return planned(func() (Plan, error) { return a.PlanCreateCopy(s) }, func() error { _, err := a.CreateCopy(now, s); return err })
			}),
			"copy set": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := CopySpec{Of: setName.Draw(t, "of"), Name: one("v@count@", "v", "c-@vvname@").Draw(t, "name"), ReadOnly: true}
				plans, perr := a.PlanCopySet(s)
				_, err := a.CopySet(now, s)
				if !reflect.DeepEqual(perr, err) {
					t.Fatalf("plan says %v, the command %v", perr, err)
				}
				var ops []ContentOp
				for _, p := range plans {
					ops = append(ops, p.Ops...)
				}
				return ops, err
			}),
			"clone": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := CloneSpec{Of: name.Draw(t, "of"), To: name.Draw(t, "to"), Online: rapid.Bool().Draw(t, "online"), Keep: rapid.Bool().Draw(t, "keep"), Provisioning: prov.Draw(t, "prov")}
				if s.Online {
					s.CPG = cpgName.Draw(t, "cpg")
				}
				return planned(func() (Plan, error) { return a.PlanClone(s) }, func() error { _, err := a.Clone(now, s); return err })
			}),
			"resync": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				n := name.Draw(t, "name")
				return planned(func() (Plan, error) { return a.PlanResync(n) }, func() error { _, err := a.Resync(now, n); return err })
			}),
			"stop copy": command(func(a *Array, t *rapid.T) ([]ContentOp, error) { return a.StopCopy(now, name.Draw(t, "name")) }),
			"promote": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := PromoteSpec{Copy: name.Draw(t, "name"), Online: rapid.Bool().Draw(t, "online"), ToParent: rapid.Bool().Draw(t, "parent"), RemoteCopy: rapid.Bool().Draw(t, "rc")}
				return planned(func() (Plan, error) { return a.PlanPromote(s) }, func() error { _, err := a.Promote(now, s); return err })
			}),
			"stop promote": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.StopPromote(now, name.Draw(t, "name"))
			}),
			"tune": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := TuneSpec{Volume: name.Draw(t, "name"), UserCPG: cpgName.Draw(t, "user"), Convert: rapid.SampledFrom([]Provisioning{0, Full, Thin}).Draw(t, "to")}
				if rapid.Bool().Draw(t, "snap") {
					s = TuneSpec{Volume: s.Volume, SnapCPG: s.UserCPG}
				}
				_, err := a.Tune(now, s)
				return nil, err
			}),
			"cancel": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				_, ops, err := a.CancelTask(now, int64(rapid.IntRange(0, 6).Draw(t, "id"))+max(0, a.taskSeq-5))
				return ops, err
			}),
			"tick": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 7200).Draw(t, "seconds")) * time.Second)
				for _, a := range arrays {
					if err := store.do(a.Tick(now)); err != nil {
						t.Fatal(err)
					}
				}
			},
			"create host": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := HostSpec{Name: hostName.Draw(t, "name"), Domain: one("", "", "", "dom").Draw(t, "domain"), Persona: Persona(rapid.IntRange(0, 12).Draw(t, "persona")), ISCSINames: iqns.Draw(t, "iqns")}
				if rapid.IntRange(0, 3).Draw(t, "fc") == 0 {
					s.FCWWNs = []string{"10000000c9000001"}
				}
				_, err := a.CreateHost(now, s)
				return nil, err
			}),
			"modify host": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				var ch HostChange
				switch rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					p := Persona(rapid.IntRange(0, 12).Draw(t, "persona"))
					ch = HostChange{NewName: text(hostName, t, "new"), Persona: &p}
				case 1:
					ch = HostChange{PathOp: EditOp(rapid.IntRange(1, 2).Draw(t, "op")), ISCSINames: iqns.Draw(t, "iqns"), Force: rapid.Bool().Draw(t, "force")}
				case 2:
					ch = HostChange{CHAPOp: EditOp(rapid.IntRange(1, 2).Draw(t, "op")), CHAPMode: CHAPMode(rapid.IntRange(0, 2).Draw(t, "mode")), CHAPSecret: one("", "0123456789ab", "0123456789abcd").Draw(t, "secret")}
				}
				_, err := a.ModifyHost(now, hostName.Draw(t, "name"), ch)
				return nil, err
			}),
			"delete host": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.DeleteHost(now, hostName.Draw(t, "name"))
			}),
			"log in": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.Login(path.Draw(t, "path"), port.Draw(t, "port"))
			}),
			"log out": func(t *rapid.T) {
				arrays[which.Draw(t, "array")].Logout(path.Draw(t, "path"), port.Draw(t, "port"))
			},
			"link": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return nil, a.SetLink(port.Draw(t, "port"), rapid.SampledFrom([]LinkState{LinkReady, LinkOffline, 99}).Draw(t, "state"))
			}),
			"create set": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				if rapid.Bool().Draw(t, "hosts") {
					_, err := a.CreateHostSet(now, SetSpec{Name: setName.Draw(t, "name"), Members: rapid.SliceOfN(hostName, 0, 2).Draw(t, "members")})
					return nil, err
				}
				_, err := a.CreateVolumeSet(now, SetSpec{Name: setName.Draw(t, "name"), Members: rapid.SliceOfN(name, 0, 2).Draw(t, "members")})
				return nil, err
			}),
			"modify set": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				hosts := rapid.Bool().Draw(t, "hosts")
				member := name
				if hosts {
					member = hostName
				}
				var ch SetChange
				switch m := rapid.SliceOfN(member, 0, 2).Draw(t, "members"); rapid.IntRange(0, 2).Draw(t, "what") {
				case 0:
					ch.Add = m
				case 1:
					ch.Remove = m
				case 2:
					ch.NewName = text(setName, t, "new")
				}
				var err error
				if hosts {
					_, err = a.ModifyHostSet(now, setName.Draw(t, "name"), ch)
				} else {
					_, err = a.ModifyVolumeSet(now, setName.Draw(t, "name"), ch)
				}
				return nil, err
			}),
			"delete set": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				if rapid.Bool().Draw(t, "hosts") {
					return nil, a.DeleteHostSet(now, setName.Draw(t, "name"))
				}
				return nil, a.DeleteVolumeSet(now, setName.Draw(t, "name"))
			}),
			"rule": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				n := setName.Draw(t, "set")
				if rapid.Bool().Draw(t, "delete") {
					return nil, a.DeleteRule(now, n)
				}
				_, err := a.CreateRule(now, Rule{Set: n, IOMinGoal: 5, IOMaxLimit: int64(rapid.IntRange(-1, 9).Draw(t, "limit"))})
				return nil, err
			}),
			"export": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				s := VLUNSpec{Volume: exported.Draw(t, "volume"), LUN: rapid.IntRange(-1, 3).Draw(t, "lun"), Host: lunHost(t), Port: lunPort(t),
					Auto: rapid.Bool().Draw(t, "auto"), MaxAuto: rapid.IntRange(0, 3).Draw(t, "max"), Override: rapid.Bool().Draw(t, "override")}
				want, perr := a.PlanVLUN(s)
				got, err := a.CreateVLUN(now, s)
				if want.Created = got.Created; !reflect.DeepEqual(perr, err) || !reflect.DeepEqual(want, got) {
					t.Fatalf("plan says %+v, %v, the command %+v, %v", want, perr, got, err)
				}
				return nil, err
			}),
			"unexport": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				k := VLUNKey{Volume: exported.Draw(t, "volume"), LUN: rapid.IntRange(-1, 3).Draw(t, "lun"), Host: lunHost(t), Port: lunPort(t)}
				all := a.VLUNs()
				for _, s := range a.SetVLUNs() {
					all = append(all, s.VLUN)
				}
				if len(all) > 0 && rapid.Bool().Draw(t, "known") {
					x := all[rapid.IntRange(0, len(all)-1).Draw(t, "which")]
					k = VLUNKey{x.Volume, x.LUN, x.Host, x.Port}
				}
				_, err := a.DeleteVLUN(now, k)
				return nil, err
			}),
			"flash cache": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				if rapid.Bool().Draw(t, "delete") {
					return nil, a.DeleteFlashCache(now)
				}
				_, err := a.CreateFlashCache(now, FlashCache{SizeGiB: rapid.SampledFrom([]int64{64, 72, 80, 0, 9999}).Draw(t, "size"), Mode: rapid.SampledFrom([]FlashCacheMode{0, 1, 2, 3}).Draw(t, "mode")})
				return nil, err
			}),
			"session": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				_, err := a.OpenSession(now, "u", one("p", "x").Draw(t, "password"), "c")
				return nil, err
			}),
			"create group": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				_, err := a.CreateGroup(now, GroupSpec{Name: one("g1", "g2").Draw(t, "name"), Target: one("array0", "array1").Draw(t, "target"), Mode: rapid.SampledFrom([]GroupMode{Synchronous, Periodic, Asynchronous}).Draw(t, "mode"),
					TargetUserCPG: cpgName.Draw(t, "cpg"), Period: rapid.SampledFrom([]int64{0, 0, 300}).Draw(t, "period"), AutoFailover: rapid.Bool().Draw(t, "pp")})
				return nil, err
			}),
			"admit": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return a.AdmitVolume(now, groupOf(a, t), AdmitSpec{name.Draw(t, "volume"), name.Draw(t, "remote"), rapid.Bool().Draw(t, "create")})
			}),
			"dismiss": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				return a.DismissVolume(now, groupOf(a, t), name.Draw(t, "volume"), rapid.Bool().Draw(t, "remove"))
			}),
			"group": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				g := groupOf(a, t)
				var ops []ContentOp
				var err error
				switch one("start", "start", "start", "stop", "sync", "failover", "recover", "restore", "switch", "reverse", "override", "delete").Draw(t, "what") {
				case "start":
					_, ops, err = a.StartGroup(now, g)
				case "stop":
					ops, err = a.StopGroup(now, g)
				case "sync":
					_, ops, err = a.SyncGroup(now, g)
				case "failover":
					err = a.Failover(now, g)
				case "recover":
					_, ops, err = a.Recover(now, g)
				case "restore":
					ops, err = a.RestoreGroup(now, g)
				case "switch":
					err = a.Switchover(now, g)
				case "reverse":
					err = a.Reverse(now, g)
				case "override":
					err = a.Override(now, g)
				case "delete":
					err = a.DeleteGroup(now, g)
				}
				return ops, err
			}),
			"modify group": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				pp, period := rapid.Bool().Draw(t, "pp"), rapid.SampledFrom([]int64{0, 1, 300}).Draw(t, "period")
				_, err := a.ModifyGroup(now, groupOf(a, t), GroupChange{&pp, &period, nil})
				return nil, err
			}),
			"connect": command(func(a *Array, t *rapid.T) ([]ContentOp, error) {
				target := one("array0", "array1").Draw(t, "target")
				if rapid.IntRange(0, 3).Draw(t, "lost") == 0 {
					return a.Lost(now, target)
				}
				return a.Connect(now, target, rapid.IntRange(0, 3).Draw(t, "up") > 0)
			}),
			"restart": func(t *rapid.T) {
				var again [2]*Array
				for i, a := range arrays {
					again[i], _ = New(a.cfg)
				}
				if err := Link(again[0], again[1]); err != nil {
					t.Fatal(err)
				}
				up := arrays[0].links["array1"].up
				for i, a := range arrays {
					before := a.State()
					if err := again[i].Restore(before); err != nil {
						t.Fatal(err)
					}
					if after := again[i].State(); !reflect.DeepEqual(before, after) {
						t.Fatalf("restored %+v from %+v", after, before)
					}
				}
				arrays = again
				for i, a := range arrays {
					a.links[fmt.Sprint("array", 1-i)].up = up
					if err := a.CheckGroups(); err != nil {
						t.Fatal(err)
					}
				}
			},
			"": func(t *rapid.T) {
				for _, a := range arrays {
					a.check(t)
				}
				want := map[string]bool{}
				for i, a := range arrays {
					for _, v := range a.Volumes() {
						shared := ""
						if w := a.volumes.rows[v.Name].val; w.group != nil && w.group.State == GroupIsStarted {
							for _, x := range w.group.Volumes {
								if x.Volume == v.Name {
									shared = arrays[1-i].volumes.rows[x.Remote].val.Image
								}
							}
						}
						if want[v.Image] && shared != v.Image {
							t.Fatalf("%s has the image of another: %s", v.Name, v.Image)
						}
						want[v.Image] = true
						if store[v.Image] != v.SizeMiB {
							t.Fatalf("%s has %d MiB, its image %s %d", v.Name, v.SizeMiB, v.Image, store[v.Image])
						}
					}
					for x := range a.active {
						for _, o := range x.undo {
							want[o.Image] = true
						}
					}
				}
				if len(want) != len(store) {
					t.Fatalf("images %v, wanted %v", slices.Sorted(maps.Keys(store)), slices.Sorted(maps.Keys(want)))
				}
			},
		})
	})
}

// check compares every index with a scan, and states what always holds.
func (a *Array) check(t *rapid.T) {
	equal := func(what string, got, want any) {
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
	byID, byWWN, byImage := map[int64]*volume{}, map[string]*volume{}, map[string]*volume{}
	children, setsOf, hostSetsOf := many[*volume, *volume]{}, many[*volume, *volumeSet]{}, many[*host, *hostSet]{}
	user, snap, volumes, snapsFor := map[*cpg]int64{}, map[*cpg]int64{}, map[*cpg]int{}, map[*cpg]int{}
	var used int64
	snapshots := 0
	for v := range a.volumes.all() {
		if a.volumes.rows[v.Name].val != v {
			t.Fatalf("%s is not found by its name", v.Name)
		}
		if byID[v.ID] != nil || byWWN[v.WWN] != nil {
			t.Fatalf("%s: id or WWN twice", v.Name)
		}
		byID[v.ID], byWWN[v.WWN], byImage[v.Image] = v, v, v
		if v.parent != nil {
			if a.byID[v.parent.ID] != v.parent {
				t.Fatalf("%s is a copy of what is gone", v.Name)
			}
			children.add(v.parent, v)
		}
		if v.CopyType == Virtual {
			snapshots++
			if v.parent == nil || v.user != nil || v.SizeMiB > v.base().SizeMiB {
				t.Fatalf("virtual copy %+v", v.Volume)
			}
		}
		for c, mib := range map[**cpg]int64{&v.user: v.userMiB()} {
			if *c != nil {
				user[*c] += mib
				volumes[*c]++
				used += mib
			}
		}
		if v.snap != nil {
			snap[v.snap] += v.snapMiB()
			snapsFor[v.snap]++
			used += v.snapMiB()
		}
		if v.SizeMiB%UnitMiB != 0 || v.SizeMiB < MinSizeMiB || v.SizeMiB > MaxSizeMiB || v.WrittenMiB > v.SizeMiB {
			t.Fatalf("%s has %d MiB, written %d", v.Name, v.SizeMiB, v.WrittenMiB)
		}
		if v.group != nil && !slices.ContainsFunc(v.group.Volumes, func(x GroupVolume) bool { return x.Volume == v.Name }) {
			t.Fatalf("%s thinks it is in group %s", v.Name, v.group.Name)
		}
		if v.busy != nil {
			if _, ok := a.active[v.busy]; !ok || v.busy.from != v && v.busy.to != v {
				t.Fatalf("%s is busy with a task that isn't: %+v", v.Name, v.busy.Task)
			}
		}
		if !v.Expires.IsZero() && !slices.ContainsFunc(a.expiring.queue, func(d due) bool { return d.v == v && d.at.Equal(v.Expires) }) {
			t.Fatalf("%s does not expire", v.Name)
		}
	}
	for s := range a.volumeSets.all() {
		for _, v := range s.members {
			setsOf.add(v, s)
			if a.byID[v.ID] != v {
				t.Fatalf("set %s has a volume that is gone", s.Name)
			}
		}
	}
	for s := range a.hostSets.all() {
		for _, h := range s.members {
			hostSetsOf.add(h, s)
		}
	}
	equal("volumes by id", a.byID, byID)
	equal("volumes by WWN", a.byWWN, byWWN)
	equal("volumes by image", a.byImage, byImage)
	equal("copies", a.children, children)
	equal("sets of volumes", a.setsOf, setsOf)
	equal("sets of hosts", a.hostSetsOf, hostSetsOf)
	equal("number of snapshots", a.snapshots, snapshots)
	equal("space", a.usedMiB, used+a.flash.mib(a.cfg.Nodes))
	for c := range a.cpgs.all() {
		equal("space of "+c.Name, []any{c.UserMiB, c.SnapshotMiB, c.Volumes, c.SnapshotsFor}, []any{user[c], snap[c], volumes[c], snapsFor[c]})
		if f, _ := a.FreeSpace(c.Name); f.FreeMiB < 0 || f.TotalMiB < f.FreeMiB {
			t.Fatalf("space of %s: %+v", c.Name, f)
		}
	}
	paths := map[Path]*host{}
	for h := range a.hosts.all() {
		for _, p := range h.all() {
			if paths[p] != nil {
				t.Fatalf("%v belongs to %s and %s", p, paths[p].Name, h.Name)
			}
			paths[p] = h
		}
	}
	equal("paths", a.paths, paths)
	exports, to, toSet, toPort := many[*volume, *vlun]{}, many[*host, *vlun]{}, many[*hostSet, *vlun]{}, many[PortPos, *vlun]{}
	type use struct {
		table *lunTable
		vol   *volume
	}
	count := map[use]int{}
	parts, ofSets := map[*vlun]bool{}, many[*volumeSet, *setVLUN]{}
	for s := range a.setVLUNs.all() {
		ofSets.add(s.vols, s)
		if a.volumeSets.rows[s.vols.Name].val != s.vols || len(s.parts) != len(s.vols.members) || len(s.parts) == 0 {
			t.Fatalf("an export of a set does not fit it: %+v", s.out())
		}
		for _, x := range s.parts {
			parts[x] = true
			if x.via != s || x.host != s.host || x.set != s.set || !slices.Contains(s.vols.members, x.vol) {
				t.Fatalf("part %+v of %+v", x.VLUN, s.out())
			}
		}
	}
	equal("exports of sets", a.exportsOf, ofSets)
	for x := range a.vluns.all() {
		if parts[x] != (x.via != nil) {
			t.Fatalf("an export by way of a set that has it not: %+v", x.VLUN)
		}
		if a.byID[x.vol.ID] != x.vol {
			t.Fatalf("an export of what is gone: %+v", x.VLUN)
		}
		exports.add(x.vol, x)
		var tables []*lunTable
		switch x.Type {
		case ToHostSet:
			toSet.add(x.set, x)
		case PortPresents:
			toPort.add(*x.Port, x)
			tables = append(tables, &a.ports[*x.Port].luns)
		default:
			to.add(x.host, x)
		}
		for _, h := range x.hosts() {
			tables = append(tables, &h.luns)
			if a.hosts.rows[h.Name].val != h {
				t.Fatalf("an export to a host that is gone: %+v", x.VLUN)
			}
		}
		for _, l := range tables {
			count[use{l, x.vol}]++
			if l.at[x.LUN] != x.vol || l.of[x.vol].lun != x.LUN {
				t.Fatalf("LUN %d of %+v is not that of the volume", x.LUN, x.VLUN)
			}
		}
	}
	equal("exports", a.exports, exports)
	equal("exports to hosts", a.exportsTo, to)
	equal("exports to sets", a.exportsSet, toSet)
	equal("exports by ports", a.exportsPort, toPort)
	tables := []*lunTable{}
	for h := range a.hosts.all() {
		tables = append(tables, &h.luns)
	}
	for _, p := range a.ports {
		tables = append(tables, &p.luns)
	}
	for _, l := range tables {
		if len(l.at) != len(l.of) {
			t.Fatalf("LUNs %v of %v", l.at, l.of)
		}
		for v, u := range l.of {
			if count[use{l, v}] != u.count || l.at[u.lun] != v || l.word(u.lun/64)>>(u.lun%64)&1 == 0 {
				t.Fatalf("%s is at LUN %d %d times, exported %d times", v.Name, u.lun, u.count, count[use{l, v}])
			}
		}
	}
	for h := range a.hosts.all() {
		for _, p := range h.all() {
			for pos := range a.ports {
				seen := map[int]bool{}
				vols := map[string]bool{}
				for lun := range 20 {
					one, there := a.Device(p, pos, lun)
					i := slices.IndexFunc(a.Devices(p, pos), func(d Device) bool { return d.LUN == lun })
					if there != (i >= 0) || there && one != a.Devices(p, pos)[i] {
						t.Fatalf("%v finds %v at LUN %d of %v, of %v", p, one, lun, pos, a.Devices(p, pos))
					}
				}
				for _, d := range a.Devices(p, pos) {
					if seen[d.LUN] || vols[d.Volume] {
						t.Fatalf("%v finds LUN %d or %s twice at %v", p, d.LUN, d.Volume, pos)
					}
					seen[d.LUN], vols[d.Volume] = true, true
				}
			}
		}
	}
	for x := range a.active {
		if x.Status != TaskActive {
			t.Fatalf("an active task that isn't: %+v", x.Task)
		}
	}
	if len(a.finished)+len(a.active) != a.tasks.len() {
		t.Fatalf("%d tasks ended, %d are active, %d in all", len(a.finished), len(a.active), a.tasks.len())
	}
	if err := a.CheckGroups(); err != nil {
		t.Fatal(err)
	}
	following := map[*group]struct{}{}
	for g := range a.groups.all() {
		if g.Mode != Synchronous && g.State == GroupIsStarted && g.Role == Primary {
			following[g] = struct{}{}
		}
		for _, x := range g.Volumes {
			if v, ok := a.volumes.get(x.Volume); !ok || v.group != g {
				t.Fatalf("group %s has %s, which does not know it", g.Name, x.Volume)
			}
		}
		for _, c := range []string{g.UserCPG, g.SnapCPG} {
			if c != "" && !a.cpgs.has(c) {
				t.Fatalf("group %s makes volumes in %s, which is gone", g.Name, c)
			}
		}
		if g.busy != nil && g.busy.group != g {
			t.Fatalf("group %s is busy with another's task", g.Name)
		}
	}
	equal("groups that follow", a.following, following)
	if len(a.sessions) > a.cfg.MaxSessions {
		t.Fatalf("%d sessions", len(a.sessions))
	}
}

func filled(b *testing.B, n int) *Array {
	a, err := New(Config{Seed: 1, CapacityMiB: 1 << 50})
	ok(b, err)
	must[CPG](b)(a.CreateCPG(epoch, CPGSpec{Name: "cpg"}))
	must[Host](b)(a.CreateHost(epoch, HostSpec{Name: "h", ISCSINames: []string{iqn + "1"}}))
	for i := range n {
		name := fmt.Sprint("old-", i)
		must[Volume](b)(a.CreateVolume(epoch, vol(name, 1024)))
		must[VLUN](b)(a.CreateVLUN(epoch, VLUNSpec{Volume: name, Host: "h", Auto: true}))
	}
	return a
}

// BenchmarkCopy is a snapshot's life with an expiration, among others.
func BenchmarkCopy(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			a := filled(b, 1)
			for i := range n {
				must[Volume](b)(a.CreateCopy(epoch, CopySpec{Of: "old-0", Name: fmt.Sprint("s-", i), ReadOnly: true, ExpirationHours: int64(1 + i%1000)}))
			}
			for b.Loop() {
				_, err1 := a.CreateCopy(epoch, CopySpec{Of: "old-0", Name: "new", ReadOnly: true, ExpirationHours: 5})
				_, err2 := a.DeleteVolume(epoch, "new")
				if err1 != nil || err2 != nil {
					b.Fatal(err1, err2)
				}
			}
			b.ReportMetric(2*float64(b.N)/b.Elapsed().Seconds(), "commands/s")
		})
	}
}
