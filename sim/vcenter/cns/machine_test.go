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
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"})
		name := rapid.SampledFrom([]string{"n1", "n2"})
		cluster := rapid.SampledFrom([]string{"k1", "k2", "k3"})
		ds := rapid.SampledFrom([]string{"ds-1", "ds-2", "ds-local", "ds-dead"})
		node := rapid.SampledFrom([]string{"vm-1", "vm-2"})
		snap := rapid.SampledFrom([]string{"s1", "s2"})
		size := rapid.Int64Range(0, 600)
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
			"unregister": command(func(t *rapid.T) error {
				_, err := c.Unregister(id.Draw(t, "id"))
				return err
			}),
			"relocate": command(func(t *rapid.T) error {
				s := RelocateSpec{Disk: id.Draw(t, "id"), Datastore: ds.Draw(t, "ds"), Host: rapid.SampledFrom([]string{"", "host-1"}).Draw(t, "host")}
				_, err := c.Relocate(s)
				return err
			}),
			"flags": command(func(t *rapid.T) error {
				flag := rapid.SampledFrom(append([]string{"neither"}, FlagNames...))
				_, err := c.SetFlags(id.Draw(t, "id"), rapid.SliceOfN(flag, 0, 2).Draw(t, "flags"), rapid.Bool().Draw(t, "on"))
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
			"vm gone": func(t *rapid.T) { c.Sync(node.Draw(t, "vm"), nil) },
			"hardware": func(t *rapid.T) {
				a := Attachment{Volume: id.Draw(t, "id"), Sharing: rapid.SampledFrom([]Sharing{"", SharingMultiWriter}).Draw(t, "sharing")}
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
			"metadata": command(func(t *rapid.T) error {
				u := MetadataUpdate{Cluster: Cluster{ID: cluster.Draw(t, "cluster")}}
				if rapid.Bool().Draw(t, "drop") {
					u.Clusters = []ClusterUpdate{{Cluster: Cluster{ID: cluster.Draw(t, "gone")}, Delete: true}}
				}
				_, err := c.UpdateMetadata(id.Draw(t, "id"), u)
				return err
			}),
			"": func(t *rapid.T) { c.check(t) },
		})
	})
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
	index := func(what string, got map[string]set, over iter.Seq[*volume], keys func(*volume) []string) {
		want := map[string]set{}
		for v := range over {
			for _, k := range keys(v) {
				add(want, k, v)
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("index by %s is %v, want %v", what, got, want)
		}
	}
	index("name", c.byName, maps.Values(c.volumes), func(v *volume) []string { return []string{v.Name} })
	index("datastore", c.byDatastore, maps.Values(c.volumes), func(v *volume) []string { return []string{v.Datastore} })
	index("cluster", c.byCluster, maps.Values(c.volumes), func(v *volume) []string { return v.Metadata.clusterIDs() })
	index("source of a clone", c.clones, all, func(v *volume) []string {
		if v.LinkedTo == nil {
			return nil
		}
		if src, ok := c.disk(v.LinkedTo.Volume); !ok || src.find(v.LinkedTo.Snapshot) < 0 {
			t.Fatalf("%s is a clone of what is not there: %+v", v.ID, *v.LinkedTo)
		}
		return []string{v.LinkedTo.Volume}
	})
	index("vm", c.byVM, all, func(v *volume) []string {
		var vms []string
		for _, a := range c.attachments[v.ID] {
			vms = append(vms, a.VM)
		}
		return vms
	})
	for id, all := range c.attachments {
		if _, ok := c.disk(id); !ok || len(all) == 0 {
			t.Fatalf("%s is attached %d times but gone", id, len(all))
		}
		for i, a := range all {
			if a.Volume != id || len(all) > 1 && a.Sharing != SharingMultiWriter || i > 0 && all[i-1].VM >= a.VM {
				t.Fatalf("%s is held by %+v", id, all)
			}
		}
	}
	used := map[string]int64{}
	for id, v := range c.volumes {
		used[v.Datastore] += v.CapacityMB
		if c.order[v.pos] != v || v.ID != id {
			t.Fatalf("%s is not where the order has it", id)
		}
		if _, twice := c.disks[id]; twice {
			t.Fatalf("%s is a volume and a disk", id)
		}
		parent := ""
		for _, s := range v.Snapshots {
			if s.Parent != parent {
				t.Fatalf("snapshot chain of %s is broken: %+v", id, v.Snapshots)
			}
			parent = s.ID
		}
	}
	for _, d := range c.disks {
		used[d.Datastore] += d.CapacityMB
	}
	for id, s := range c.datastores {
		if s.usedMB != used[id] || s.freeMB() < 0 {
			t.Fatalf("%s: account says %d, sum is %d, free %d", id, s.usedMB, used[id], s.freeMB())
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
