package tags

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRefusals(t *testing.T) {
	c := New()
	ds, vm := Object{"Datastore", "ds-1"}, Object{"VirtualMachine", "vm-1"}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(c.AddCategory(Category{ID: "c1", Name: "zone", Cardinality: Single}))
	must(c.AddCategory(Category{ID: "c2", Name: "tier", Cardinality: Multiple, Types: []string{"Datastore"}}))
	must(c.AddTag(Tag{ID: "t1", Category: "c1", Name: "a"}))
	must(c.AddTag(Tag{ID: "t2", Category: "c1", Name: "b"}))
	must(c.AddTag(Tag{ID: "t3", Category: "c2", Name: "a"}))
	must(c.AddTag(Tag{ID: "t4", Category: "c2", Name: "b"}))
	must(c.Attach("t1", ds))
	must(c.Attach("t1", ds))
	must(c.Attach("t3", ds))
	must(c.Attach("t4", ds))
	must(c.Detach("t2", ds))
	for name, x := range map[string]struct {
		err  error
		want Kind
	}{
		"category without a name":     {c.AddCategory(Category{ID: "c3", Cardinality: Single}), Invalid},
		"category without cardinal":   {c.AddCategory(Category{ID: "c3", Name: "x"}), Invalid},
		"category name taken":         {c.AddCategory(Category{ID: "c3", Name: "zone", Cardinality: Single}), Exists},
		"category id taken":           {c.AddCategory(Category{ID: "c1", Name: "x", Cardinality: Single}), Exists},
		"no such category":            {c.UpdateCategory(Category{ID: "c9", Name: "x", Cardinality: Single}), NotFound},
		"narrower cardinality":        {c.UpdateCategory(Category{ID: "c2", Name: "tier", Cardinality: Single, Types: []string{"Datastore"}}), Invalid},
		"narrower types":              {c.UpdateCategory(Category{ID: "c1", Name: "zone", Cardinality: Single, Types: []string{"Datastore"}}), Invalid},
		"other types":                 {c.UpdateCategory(Category{ID: "c2", Name: "tier", Cardinality: Multiple, Types: []string{"VirtualMachine"}}), Invalid},
		"remove no category":          {c.RemoveCategory("c9"), NotFound},
		"tag without a name":          {c.AddTag(Tag{ID: "t9", Category: "c1"}), Invalid},
		"tag name taken":              {c.AddTag(Tag{ID: "t9", Category: "c1", Name: "a"}), Exists},
		"tag id taken":                {c.AddTag(Tag{ID: "t1", Category: "c1", Name: "z"}), Exists},
		"tag of no category":          {c.AddTag(Tag{ID: "t9", Category: "c9", Name: "z"}), NotFound},
		"rename to a taken":           {c.UpdateTag(Tag{ID: "t1", Name: "b"}), Exists},
		"second of a SINGLE category": {c.Attach("t2", ds), Invalid},
		"type that is not associable": {c.Attach("t3", vm), Invalid},
		"attach no tag":               {c.Attach("t9", ds), NotFound},
		"detach no tag":               {c.Detach("t9", ds), NotFound},
		"remove no tag":               {c.RemoveTag("t9"), NotFound},
	} {
		var e *Error
		if !errors.As(x.err, &e) || e.Kind != x.want || e.Error() == "" {
			t.Errorf("%s: %v", name, x.err)
		}
	}
	must(c.UpdateCategory(Category{ID: "c1", Name: "zone", Cardinality: Multiple}))
	must(c.Attach("t2", ds))
	if !c.Has(ds, "zone", "b") || c.Has(vm, "zone", "b") {
		t.Error("Has")
	}
	must(c.RemoveCategory("c1"))
	if got := c.On(ds); len(got) != 2 {
		t.Errorf("after its category went: %v", got)
	}
	c.Forget(ds)
	if got := c.On(ds); len(got) != 0 {
		t.Errorf("forgotten: %v", got)
	}
}

// TestMachine: both directions of an attachment agree, rules of cardinality
// and types hold, a refusal changes nothing.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := New()
		id := rapid.SampledFrom([]string{"1", "2", "3"})
		object := rapid.SampledFrom([]Object{{"Datastore", "a"}, {"Datastore", "b"}, {"VirtualMachine", "a"}})
		types := rapid.SampledFrom([][]string{nil, {"Datastore"}, {"Datastore", "VirtualMachine"}})
		state := func() string {
			s := fmt.Sprint(c.Categories(), c.Tags())
			for _, x := range c.Tags() {
				o, _ := c.Objects(x.ID)
				s += fmt.Sprint(o)
			}
			return s
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before := state()
			cat := Category{ID: id.Draw(t, "category"), Name: id.Draw(t, "name"), Cardinality: rapid.SampledFrom([]Cardinality{Single, Multiple}).Draw(t, "cardinality"), Types: types.Draw(t, "types")}
			tag := Tag{ID: id.Draw(t, "tag"), Category: id.Draw(t, "of"), Name: id.Draw(t, "tag name")}
			o := object.Draw(t, "object")
			var err error
			switch rapid.IntRange(0, 8).Draw(t, "do") {
			case 0:
				err = c.AddCategory(cat)
			case 1:
				err = c.UpdateCategory(cat)
			case 2:
				err = c.RemoveCategory(cat.ID)
			case 3:
				err = c.AddTag(tag)
			case 4:
				err = c.UpdateTag(tag)
			case 5:
				err = c.RemoveTag(tag.ID)
			case 6, 7:
				err = c.Attach(tag.ID, o)
			case 8:
				err = c.Detach(tag.ID, o)
			}
			if err != nil && state() != before {
				t.Fatalf("refused (%v) but changed", err)
			}
			for _, o := range []Object{{"Datastore", "a"}, {"Datastore", "b"}, {"VirtualMachine", "a"}} {
				n := map[string]int{}
				for _, x := range c.On(o) {
					objects, err := c.Objects(x.ID)
					if err != nil || !slices.Contains(objects, o) {
						t.Fatalf("%v has %v, which is on %v", o, x, objects)
					}
					cat, err := c.Category(x.Category)
					if err != nil || len(cat.Types) > 0 && !slices.Contains(cat.Types, o.Type) {
						t.Fatalf("%v has a tag of %v, %v", o, cat, err)
					}
					if n[cat.ID]++; n[cat.ID] > 1 && cat.Cardinality == Single {
						t.Fatalf("%v has two tags of %v", o, cat)
					}
				}
			}
			for _, x := range c.Tags() {
				objects, _ := c.Objects(x.ID)
				for _, o := range objects {
					if !slices.Contains(c.On(o), x) {
						t.Fatalf("%v is on %v, which does not have it", x, o)
					}
				}
			}
		}
	})
}
