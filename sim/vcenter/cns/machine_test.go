package cns

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestMachine runs random commands: the indexes agree with a scan, the space
// with a sum, and a refused command changes nothing.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := world()
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "file:a", "file:b"})
		name := rapid.SampledFrom([]string{"n1", "n2"})
		cluster := rapid.SampledFrom([]string{"k1", "k2", "k3"})
		ds := rapid.SampledFrom([]string{"ds-1", "ds-2", "ds-local", "ds-dead", "ds-vsan"})
		node := rapid.SampledFrom([]string{"vm-1", "vm-2"})
		snap := rapid.SampledFrom([]string{"s1", "s2"})
		size := rapid.Int64Range(0, 600)
		permission := rapid.Custom(func(t *rapid.T) NetPermission {
			return NetPermission{IPs: rapid.SampledFrom([]string{"*", "10.0.0.0/8", "10.0.0.1-10.0.0.9", "10.0.0.9-10.0.0.1", "x"}).Draw(t, "ips"),
				Access: rapid.SampledFrom([]Access{ReadOnly, ReadWrite, NoAccess, "ALL"}).Draw(t, "access")}
		})
		file := rapid.SampledFrom([]string{"x/p.vmdk", "x/q.vmdk"})
		path := func(ds, rel string) string {
			s, ok := c.datastores[ds]
			if !ok {
				return rel
			}
			return "[" + s.Name + "] " + rel
		}
		held := func(vmID string) VM {
			v := vm(vmID)
			for _, a := range c.AttachedTo(vmID) {
				i := slices.IndexFunc(v.Controllers, func(k Controller) bool { return k.Key == a.Controller })
				if i < 0 {
					i = len(v.Controllers)
					v.Controllers = append(v.Controllers, Controller{Key: a.Controller, Bus: a.Bus})
				}
				v.Controllers[i].Used = append(v.Controllers[i].Used, a.Unit)
			}
			return v
		}
		command := func(f func(t *rapid.T) error) func(*rapid.T) {
			return func(t *rapid.T) {
				before := c.dump()
				if err := f(t); err != nil {
					var e *Error
					if !errors.As(err, &e) || e.Kind == "" || e.Error() == "" {
						t.Fatalf("not a typed error: %v", err)
					}
					if !reflect.DeepEqual(before, c.dump()) {
						t.Fatalf("refused with %v, but changed", err)
					}
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": command(func(t *rapid.T) error {
				s := spec(id.Draw(t, "id"), size.Draw(t, "size"), rapid.SliceOfN(ds, 0, 2).Draw(t, "ds")...)
				s.Name = name.Draw(t, "name")
				s.Metadata.Cluster.ID = cluster.Draw(t, "cluster")
				_, err := c.Create(epoch, s)
				return err
			}),
			"create file volume": command(func(t *rapid.T) error {
				s := spec(id.Draw(t, "id"), size.Draw(t, "size"), rapid.SliceOfN(ds, 0, 2).Draw(t, "ds")...)
				s.Share = &ShareSpec{SoftQuotaMB: rapid.Int64Range(-1, 300).Draw(t, "quota"), Permissions: rapid.SliceOfN(permission, 0, 2).Draw(t, "permissions")}
				if rapid.Bool().Draw(t, "existing") {
					s.Share.Existing = id.Draw(t, "share")
				}
				_, err := c.Create(epoch, s)
				return err
			}),
			"acl": command(func(t *rapid.T) error {
				_, err := c.ConfigureACL(id.Draw(t, "id"), rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ACLUpdate {
					return ACLUpdate{rapid.SliceOfN(permission, 0, 2).Draw(t, "permissions"), rapid.Bool().Draw(t, "delete")}
				}), 0, 3).Draw(t, "updates"))
				return err
			}),
			"restore": command(func(t *rapid.T) error {
				s := spec(id.Draw(t, "id"), 0)
				s.Source = &Source{id.Draw(t, "source"), snap.Draw(t, "snap")}
				_, err := c.Create(epoch, s)
				return err
			}),
			"register": command(func(t *rapid.T) error {
				s := spec("", 0)
				s.DiskID = id.Draw(t, "disk")
				_, err := c.Create(epoch, s)
				return err
			}),
			"link": command(func(t *rapid.T) error {
				s := spec(id.Draw(t, "id"), 0)
				s.Source, s.Linked = &Source{id.Draw(t, "source"), snap.Draw(t, "snap")}, true
				_, err := c.Create(epoch, s)
				return err
			}),
			"register again": command(func(t *rapid.T) error {
				s := spec("", 0)
				s.DiskID, s.Again = id.Draw(t, "disk"), true
				s.Metadata.Cluster.ID = cluster.Draw(t, "cluster")
				_, err := c.Create(epoch, s)
				return err
			}),
			"register a path": command(func(t *rapid.T) error {
				paths := []string{"[one] none.vmdk"}
				for _, f := range c.Files() {
					paths = append(paths, f.Path)
				}
				for _, d := range c.AllDisks() {
					paths = append(paths, d.DiskPath)
				}
				s := spec(id.Draw(t, "id"), 0)
				s.DiskPath, s.CallerID = rapid.SampledFrom(paths).Draw(t, "path"), rapid.Bool().Draw(t, "own id")
				p, err := c.Create(epoch, s)
				if err == nil && s.CallerID && p.Volume.ID != s.ID {
					t.Fatalf("registered as %s, asked for %s", p.Volume.ID, s.ID)
				}
				return err
			}),
			"unregister": command(func(t *rapid.T) error {
				_, err := c.Unregister(id.Draw(t, "id"), rapid.Bool().Draw(t, "plain"))
				return err
			}),
			"mislay": command(func(t *rapid.T) error {
				_, err := c.Mislay(id.Draw(t, "id"))
				return err
			}),
			"relocate": command(func(t *rapid.T) error {
				s := RelocateSpec{Disk: id.Draw(t, "id"), Datastore: ds.Draw(t, "ds"), Hosts: []string{rapid.SampledFrom([]string{"host-1", "host-2"}).Draw(t, "host")}}
				_, err := c.Relocate(s)
				return err
			}),
			"flags": command(func(t *rapid.T) error {
				flag := rapid.SampledFrom(append([]string{"neither"}, FlagNames...))
				_, err := c.SetFlags(id.Draw(t, "id"), rapid.SliceOfN(flag, 0, 2).Draw(t, "flags"), rapid.Bool().Draw(t, "on"))
				return err
			}),
			"crypt": command(func(t *rapid.T) error {
				what := rapid.SampledFrom([]Crypt{Encrypt, Decrypt, ShallowRecrypt, DeepRecrypt}).Draw(t, "what")
				_, err := c.Crypt(id.Draw(t, "id"), what, Key{ID: rapid.SampledFrom([]string{"", "key"}).Draw(t, "key")})
				return err
			}),
			"policy": command(func(t *rapid.T) error {
				_, err := c.SetPolicy(id.Draw(t, "id"), name.Draw(t, "policy"))
				return err
			}),
			"delete": command(func(t *rapid.T) error {
				_, err := c.Delete(id.Draw(t, "id"), rapid.Bool().Draw(t, "keep"))
				return err
			}),
			"attach": command(func(t *rapid.T) error {
				s := AttachSpec{Volume: id.Draw(t, "id"), VM: held(node.Draw(t, "vm")),
					Sharing: rapid.SampledFrom([]Sharing{"", SharingNone, SharingMultiWriter, "x"}).Draw(t, "sharing"),
					Mode:    rapid.SampledFrom([]DiskMode{"", IndependentPersistent, "x"}).Draw(t, "mode")}
				if rapid.Bool().Draw(t, "slot") {
					s.Slot = &Slot{Controller: rapid.Int32Range(998, 1005).Draw(t, "controller"), Unit: rapid.Int32Range(-1, 66).Draw(t, "unit")}
				}
				_, err := c.Attach(s)
				return err
			}),
			"detach": command(func(t *rapid.T) error {
				_, _, err := c.Detach(id.Draw(t, "id"), held(node.Draw(t, "vm")))
				return err
			}),
			"outage": func(t *rapid.T) {
				d, _, _ := c.Datastore(rapid.SampledFrom([]string{"ds-1", "ds-2", "ds-vsan"}).Draw(t, "ds"))
				d.Inaccessible = rapid.Bool().Draw(t, "dead")
				c.PutDatastore(d)
			},
			"rename": func(t *rapid.T) {
				d, _, _ := c.Datastore(ds.Draw(t, "ds"))
				d.Name = "renamed " + d.ID + rapid.SampledFrom([]string{"", "!"}).Draw(t, "name")
				c.PutDatastore(d)
			},
			"vm gone": func(t *rapid.T) { c.Sync(node.Draw(t, "vm"), nil) },
			"pin": func(t *rapid.T) {
				c.Pin(node.Draw(t, "vm"), rapid.SliceOfN(id, 0, 2).Draw(t, "disks"))
			},
			"hardware": func(t *rapid.T) {
				a := Attachment{Volume: id.Draw(t, "id"), SharedBus: rapid.Bool().Draw(t, "bus"), Sharing: rapid.SampledFrom([]Sharing{"", SharingMultiWriter}).Draw(t, "sharing")}
				c.Sync(node.Draw(t, "vm"), []Attachment{a, a})
			},
			"extend": command(func(t *rapid.T) error {
				v := id.Draw(t, "id")
				old, _ := c.Volume(v)
				_, err := c.Extend(v, size.Draw(t, "size"))
				if err == nil && rapid.Bool().Draw(t, "undo") {
					c.UndoExtend(old)
				}
				return err
			}),
			"snapshot": command(func(t *rapid.T) error {
				_, err := c.CreateSnapshot(epoch, id.Draw(t, "id"), snap.Draw(t, "snap"), "")
				return err
			}),
			"delete snapshot": command(func(t *rapid.T) error {
				_, err := c.DeleteSnapshot(id.Draw(t, "id"), snap.Draw(t, "snap"))
				return err
			}),
			"write": command(func(t *rapid.T) error {
				return c.Written(id.Draw(t, "id"), rapid.Int64Range(-1, 2000).Draw(t, "mb"))
			}),
			"metadata": command(func(t *rapid.T) error {
				u := MetadataUpdate{Cluster: Cluster{ID: cluster.Draw(t, "cluster")}}
				if rapid.Bool().Draw(t, "drop") {
					u.Clusters = []ClusterUpdate{{Cluster: Cluster{ID: cluster.Draw(t, "gone")}, Delete: true}}
				}
				_, err := c.UpdateMetadata(id.Draw(t, "id"), u)
				return err
			}),
			"create disk": command(func(t *rapid.T) error {
				s := DiskSpec{ID: id.Draw(t, "id"), Name: name.Draw(t, "name"), CapacityMB: size.Draw(t, "size"), Datastore: ds.Draw(t, "ds"),
					Path: rapid.SampledFrom([]string{"", "", "x/p.vmdk", "x/q.vmdk", "../p.vmdk", "p"}).Draw(t, "path")}
				_, err := c.CreateDisk(epoch, s)
				return err
			}),
			"copy disk": command(func(t *rapid.T) error {
				s := DiskSpec{ID: id.Draw(t, "id"), Name: name.Draw(t, "name"), From: &Source{id.Draw(t, "of"), rapid.SampledFrom([]string{"", "s1"}).Draw(t, "snap")}, Linked: rapid.Bool().Draw(t, "linked")}
				_, err := c.CreateDisk(epoch, s)
				return err
			}),
			"delete disk": command(func(t *rapid.T) error {
				_, err := c.DeleteDisk(id.Draw(t, "id"))
				return err
			}),
			"lose disk": func(t *rapid.T) { c.LoseDisk(id.Draw(t, "id")) },
			"forget":    func(t *rapid.T) { c.Forget(id.Draw(t, "id")) },
			"rename disk": command(func(t *rapid.T) error {
				_, err := c.RenameDisk(id.Draw(t, "id"), rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "name"))
				return err
			}),
			"extend disk": command(func(t *rapid.T) error {
				d := id.Draw(t, "id")
				old, _, _ := c.Disk(d)
				_, err := c.ExtendDisk(d, size.Draw(t, "size"))
				if err == nil && rapid.Bool().Draw(t, "undo") {
					c.UndoExtendDisk(old)
				}
				return err
			}),
			"attach disk": command(func(t *rapid.T) error {
				_, err := c.Attach(AttachSpec{Volume: id.Draw(t, "id"), VM: held(node.Draw(t, "vm")), Disk: true})
				return err
			}),
			"detach disk": command(func(t *rapid.T) error {
				_, err := c.DetachDisk(id.Draw(t, "id"), held(node.Draw(t, "vm")))
				return err
			}),
			"snapshot disk": command(func(t *rapid.T) error {
				_, err := c.SnapshotDisk(epoch, id.Draw(t, "id"), snap.Draw(t, "snap"), "")
				return err
			}),
			"revert": command(func(t *rapid.T) error {
				_, err := c.Revert(id.Draw(t, "id"), snap.Draw(t, "snap"))
				return err
			}),
			"values": command(func(t *rapid.T) error {
				_, err := c.UpdateValues(id.Draw(t, "id"), []Label{{name.Draw(t, "key"), "v"}, {name.Draw(t, "other"), "w"}}, nil)
				return err
			}),
			"tag": command(func(t *rapid.T) error {
				tag := Tag{"cat", rapid.SampledFrom([]string{"", "t1", "t2"}).Draw(t, "tag")}
				if rapid.Bool().Draw(t, "off") {
					return c.DetachTag(id.Draw(t, "id"), tag)
				}
				return c.AttachTag(id.Draw(t, "id"), tag)
			}),
			"create file": command(func(t *rapid.T) error {
				d := ds.Draw(t, "ds")
				_, err := c.CreateFile(epoch, File{ID: id.Draw(t, "id"), Datastore: d, CapacityMB: size.Draw(t, "size"), Path: path(d, file.Draw(t, "file"))})
				return err
			}),
			"delete file": command(func(t *rapid.T) error {
				_, err := c.DeleteFile(path(ds.Draw(t, "ds"), file.Draw(t, "file")))
				return err
			}),
			"move file": command(func(t *rapid.T) error {
				to := ds.Draw(t, "to")
				_, err := c.MoveFile(path(ds.Draw(t, "ds"), file.Draw(t, "file")), to, path(to, file.Draw(t, "as")))
				return err
			}),
			"extend file": command(func(t *rapid.T) error {
				_, err := c.ExtendFile(path(ds.Draw(t, "ds"), file.Draw(t, "file")), size.Draw(t, "size"))
				return err
			}),
			"register disk": command(func(t *rapid.T) error {
				_, err := c.RegisterDisk(path(ds.Draw(t, "ds"), file.Draw(t, "file")), "")
				return err
			}),
			"demote": command(func(t *rapid.T) error {
				_, err := c.Demote(id.Draw(t, "id"))
				return err
			}),
			"restart": func(t *rapid.T) {
				before := c.State()
				n := world()
				for _, d := range c.Datastores() {
					n.PutDatastore(d) // some have other names by now
				}
				if err := n.Restore(before); err != nil {
					t.Fatal(err)
				}
				if after := n.State(); !reflect.DeepEqual(before, after) {
					t.Fatalf("restored %+v from %+v", after, before)
				}
				c = n
			},
			"": func(t *rapid.T) { c.check(t) },
		})
	})
}

func index[K comparable](t *rapid.T, what string, got map[K]set, over iter.Seq[*volume], keys func(*volume) []K) {
	want := map[K]set{}
	for v := range over {
		for _, k := range keys(v) {
			add(want, k, v)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("index by %s is %v, want %v", what, got, want)
	}
}

// check compares every index with a scan.
func (c *Core) check(t *rapid.T) {
	all := func(yield func(*volume) bool) {
		for _, m := range []map[string]*volume{c.volumes, c.disks} {
			for _, v := range m {
				if !yield(v) {
					return
				}
			}
		}
	}
	index(t, "tag", c.byTag, all, func(v *volume) []Tag { return v.Tags })
	index(t, "datastore of disks", c.disksOn, maps.Values(c.disks), func(v *volume) []string { return []string{v.Datastore} })
	index(t, "name", c.byName, maps.Values(c.volumes), func(v *volume) []string { return []string{v.Name} })
	index(t, "datastore", c.byDatastore, maps.Values(c.volumes), func(v *volume) []string { return []string{v.Datastore} })
	index(t, "cluster", c.byCluster, maps.Values(c.volumes), func(v *volume) []string { return v.Metadata.clusterIDs() })
	index(t, "source of a clone", c.clones, all, func(v *volume) []string {
		if v.LinkedTo == nil {
			return nil
		}
		if src, ok := c.disk(v.LinkedTo.Volume); !ok || src.find(v.LinkedTo.Snapshot) < 0 {
			t.Fatalf("%s is a clone of what is not there: %+v", v.ID, *v.LinkedTo)
		}
		return []string{v.LinkedTo.Volume}
	})
	index(t, "vm", c.byVM, all, func(v *volume) []string {
		var vms []string
		for _, a := range c.attachments[v.ID] {
			vms = append(vms, a.VM)
		}
		return vms
	})
	pins := map[string][]string{}
	for vm, ids := range c.pinsOf {
		if len(ids) == 0 {
			t.Fatalf("an empty entry of %s", vm)
		}
		for _, id := range ids {
			pins[id] = append(pins[id], vm)
			if _, ok := c.disk(id); !ok {
				t.Fatalf("%s is pinned but gone", id)
			}
		}
	}
	for id := range pins {
		slices.Sort(pins[id])
	}
	sorted := map[string][]string{}
	for id, vms := range c.pins {
		sorted[id] = slices.Sorted(slices.Values(vms))
	}
	if !reflect.DeepEqual(sorted, pins) {
		t.Fatalf("pins are %v, want %v", sorted, pins)
	}
	for id, all := range c.attachments {
		if _, ok := c.disk(id); !ok || len(all) == 0 {
			t.Fatalf("%s is attached %d times but gone", id, len(all))
		}
		for i, a := range all {
			if a.Volume != id || len(all) > 1 && a.share() == "" || i > 0 && all[i-1].VM >= a.VM {
				t.Fatalf("%s is held by %+v", id, all)
			}
		}
	}
	used, provisioned := map[string]int64{}, map[string]int64{}
	count := func(d Disk) {
		used[d.Datastore] += c.datastores[d.Datastore].takesMB(d)
		provisioned[d.Datastore] += d.CapacityMB
	}
	for v := range all {
		if v.Lost {
			if _, held := c.attachments[v.ID]; held || len(v.Snapshots)+len(v.Tags) > 0 {
				t.Fatalf("%s lost its disk and has %+v", v.ID, v)
			}
			continue
		}
		count(v.Disk)
		if v.Share != nil {
			seen := map[string]bool{}
			for _, p := range v.Share.Permissions {
				if seen[p.IPs] || !validIPs(p.IPs) {
					t.Fatalf("permissions of %s: %+v", v.ID, v.Share.Permissions)
				}
				seen[p.IPs] = true
			}
			if _, disk := c.disk(v.ID); disk || v.DiskPath != "" || len(v.Snapshots)+len(v.Tags) > 0 || v.Share.Server == "" {
				t.Fatalf("a file volume with a disk: %+v", v)
			}
			continue
		}
		if at, ok := c.at(v.DiskPath); !ok || at != v {
			t.Fatalf("%s is not found at %s: %+v", v.ID, v.DiskPath, at)
		}
		if _, twice := c.files[v.DiskPath]; twice {
			t.Fatalf("%s: a disk and a file", v.DiskPath)
		}
		parent := ""
		for _, s := range v.Snapshots {
			if s.Parent != parent || s.Change > v.Taken {
				t.Fatalf("snapshot chain of %s is broken: %+v", v.ID, v.Snapshots)
			}
			parent = s.ID
		}
	}
	for path, v := range c.byPath {
		if now, ok := c.disk(v.ID); !ok || now != v || v.DiskPath != path {
			t.Fatalf("%s leads to %+v", path, v)
		}
	}
	for path, f := range c.files {
		count(f.disk())
		if f.Path != path || c.fileIDs[f.ID] != f || len(c.files) != len(c.fileIDs) {
			t.Fatalf("files %v, by id %v", c.files, c.fileIDs)
		}
	}
	for id, v := range c.shares {
		count(v.Disk)
		if _, twice := c.volumes[id]; twice || v.Share == nil || !reflect.DeepEqual(v.Metadata, Metadata{}) {
			t.Fatalf("share %s: %+v", id, v)
		}
	}
	for id, v := range c.volumes {
		if c.order[v.pos] != v || v.ID != id {
			t.Fatalf("%s is not where the order has it", id)
		}
		if _, twice := c.disks[id]; twice {
			t.Fatalf("%s is a volume and a disk", id)
		}
	}
	for id, s := range c.datastores {
		if s.usedMB != used[id] || s.provisionedMB != provisioned[id] {
			t.Fatalf("%s: account says %d of %d, sum is %d of %d", id, s.usedMB, s.provisionedMB, used[id], provisioned[id])
		}
		if sp, _ := c.Space(id); sp.FreeMB < 0 || sp.FreeMB > sp.CapacityMB || sp.UncommittedMB < 0 || sp.UncommittedMB > s.provisionedMB {
			t.Fatalf("%s: %+v", id, sp)
		}
	}
	if n := len(c.Volumes()); n != len(c.volumes) || n+c.dead != len(c.order) {
		t.Fatalf("%d volumes, %d in order with %d gone", len(c.volumes), len(c.order), c.dead)
	}
	if !slices.IsSortedFunc(c.Volumes(), func(a, b Volume) int {
		return int(c.volumes[a.ID].seq) - int(c.volumes[b.ID].seq)
	}) {
		t.Fatal("not oldest first")
	}
}

// TestOrderStaysSmall: what is deleted leaves nothing behind.
func TestOrderStaysSmall(t *testing.T) {
	c := world()
	for i := range 10_000 {
		id := fmt.Sprint(i)
		must[Plan](t)(c.Create(epoch, spec(id, 1, "ds-1")))
		must[Volume](t)(c.Delete(id, false))
	}
	if len(c.order) > 200 || len(c.volumes)+len(c.byName)+len(c.byCluster)+len(c.byDatastore) != 0 {
		t.Errorf("order %d, volumes %d, names %d", len(c.order), len(c.volumes), len(c.byName))
	}
}

func filled(b *testing.B, n int) *Core {
	c := New(0)
	c.PutDatastore(Datastore{ID: "ds-1", Name: "one", CapacityMB: 1 << 40})
	for i := range n {
		if _, err := c.Create(epoch, spec(fmt.Sprint("old-", i), 1, "ds-1")); err != nil {
			b.Fatal(err)
		}
	}
	return c
}

func BenchmarkCreateDelete(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := filled(b, n)
			s := spec("new", 1, "ds-1")
			b.ResetTimer()
			for range b.N {
				if _, err := c.Create(epoch, s); err != nil {
					b.Fatal(err)
				}
				if _, err := c.Delete("new", false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkQueryByID(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := filled(b, n)
			f := Filter{IDs: []string{"old-50"}}
			b.ResetTimer()
			for range b.N {
				if p, err := c.Query(f, Cursor{Limit: 100}); err != nil || p.Total != 1 {
					b.Fatal(p, err)
				}
			}
		})
	}
}
