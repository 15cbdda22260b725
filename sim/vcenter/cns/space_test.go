package cns

import (
	"errors"
	"testing"
)

// TestSpace: thin disks take what is written and may be promised more than
// there is; thick ones take their size at once.
func TestSpace(t *testing.T) {
	c := New(0)
	c.PutDatastore(Datastore{ID: "thin", Name: "thin", CapacityMB: 1000})
	c.PutDatastore(Datastore{ID: "thick", Name: "thick", CapacityMB: 1000, Thick: true})
	want := func(ds string, free, uncommitted int64) {
		t.Helper()
		if s, _ := c.Space(ds); s.FreeMB != free || s.UncommittedMB != uncommitted {
			t.Errorf("%s: %+v, want %d free and %d uncommitted", ds, s, free, uncommitted)
		}
	}
	full := func(err error) {
		t.Helper()
		var e *Error
		if !errors.As(err, &e) || e.Kind != NoSpace {
			t.Errorf("got %v, want NoSpace", err)
		}
	}
	for _, id := range []string{"a", "b"} {
		must[Plan](t)(c.Create(epoch, spec(id, 800, "thin")))
	}
	want("thin", 1000, 1600)
	must[Plan](t)(c.Create(epoch, spec("c", 800, "thick")))
	want("thick", 200, 0)
	_, err := c.Create(epoch, spec("d", 201, "thick"))
	full(err)
	_, err = c.Extend("c", 1001)
	full(err)
	must[Volume](t)(c.Extend("c", 900))
	want("thick", 100, 0)

	must[Snapshot](t)(c.CreateSnapshot(epoch, "a", "s", ""))
	must[Snapshot](t)(c.CreateSnapshot(epoch, "c", "s", ""))
	want("thin", 1000, 1600)
	want("thick", 100, 0)
	if err := c.Written("a", 100); err != nil {
		t.Fatal(err)
	}
	want("thin", 900, 1500)
	clone := spec("e", 0, "thin")
	clone.Source = &Source{"a", "s"}
	must[Plan](t)(c.Create(epoch, clone))
	want("thin", 800, 2200)
	_, err = c.Create(epoch, spec("f", 801, "thin"))
	full(err)
	// Nothing is left when they are full, and nothing less than that.
	if err := errors.Join(c.Written("b", 800), c.Written("e", 200)); err != nil {
		t.Fatal(err)
	}
	want("thin", 0, 1300)
	must[Volume](t)(c.Delete("e", false))
	must[Volume](t)(c.Delete("b", true))
	want("thin", 100, 700)
	if err := c.Written("b", 0); err != nil { // a disk beside CNS counts too
		t.Fatal(err)
	}
	want("thin", 900, 1500)
	if err := c.Written("none", 0); err == nil {
		t.Error("content of a disk that isn't")
	}
}

// TestRanking: of the datastores that can take a volume the emptiest does, and
// each that was named has a placement.
func TestRanking(t *testing.T) {
	c := world()
	c.PutDatastore(Datastore{ID: "ds-gold", Name: "gold", CapacityMB: 5000, Thick: true})
	c.PutDatastore(Datastore{ID: "ds-equal", Name: "equal", CapacityMB: 5000, Thick: true})
	named := []string{"ds-1", "ds-gold", "ds-dead", "ds-equal", "ds-maint", "ds-held", "ds-41"}
	for name, x := range map[string]struct {
		mb           int64
		named        []string
		incompatible map[string]string
		on           string
		kinds        []Kind
	}{
		"most free, the first of equals": {10, named, nil, "ds-gold", []Kind{RankedLower, "", Inaccessible, RankedLower, Maintenance, OnHold, NotSupported}},
		"policy":                         {10, []string{"ds-1", "ds-gold"}, map[string]string{"ds-gold": "not gold"}, "ds-1", []Kind{"", Incompatible}},
		"space":                          {901, []string{"ds-1", "ds-2"}, nil, "ds-2", []Kind{NoSpace, ""}},
		"CNS chooses, by policy":         {10, nil, map[string]string{"ds-equal": "no", "ds-2": "no"}, "ds-gold", []Kind{""}},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec("v", x.mb, x.named...)
			s.Incompatible = x.incompatible
			p := must[Plan](t)(c.PlanCreate(s))
			if p.Volume.Datastore != x.on || len(p.Placements) != len(x.kinds) {
				t.Fatalf("on %s: %+v", p.Volume.Datastore, p.Placements)
			}
			for i, k := range x.kinds {
				got := p.Placements[i]
				if k == "" && got.Err != nil || k != "" && (got.Err == nil || got.Err.Kind != k) || x.named != nil && got.Datastore != x.named[i] {
					t.Errorf("placement %d: %+v, want %q", i, got, k)
				}
			}
		})
	}
	// A restored volume stays with its source, whatever is emptier.
	must[Plan](t)(c.Create(epoch, spec("src", 10, "ds-1")))
	must[Snapshot](t)(c.CreateSnapshot(epoch, "src", "s", ""))
	s := spec("copy", 0, "ds-gold", "ds-1")
	s.Source = &Source{"src", "s"}
	p := must[Plan](t)(c.Create(epoch, s))
	if p.Volume.Datastore != "ds-1" || len(p.Placements) != 2 || p.Placements[0].Err.Kind != Incompatible {
		t.Errorf("restored to %+v", p)
	}
	// What was registered was not placed.
	must[Volume](t)(c.Delete("copy", true))
	s = spec("", 0)
	s.DiskID = "copy"
	if p := must[Plan](t)(c.Create(epoch, s)); len(p.Placements) != 0 {
		t.Errorf("registered with placements %+v", p.Placements)
	}
}
