package authz

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

const root = "Folder:root"

func fresh(t interface{ Fatal(...any) }) *Core {
	c := New(root, []Role{
		{ID: Admin, Name: "Admin", Privileges: []string{"System.Anonymous", "System.View", "System.Read", "A", "B", "C"}},
		{ID: ReadOnly, Name: "ReadOnly", Privileges: []string{"System.Anonymous", "System.View", "System.Read"}},
		{ID: NoAccess, Name: "NoAccess"},
	})
	if err := c.Set(root, []Permission{{Principal: Administrators("lab"), Group: true, Role: Admin, Propagate: true}}); err != nil {
		t.Fatal(err)
	}
	return c
}

var (
	joe    = Who{User: Parse("joe@lab"), Groups: []Principal{Parse(`LAB\Staff`)}}
	boss   = Who{User: Parse("administrator@lab"), Groups: []Principal{Administrators("lab")}}
	vmPath = Paths{{"vm", "vmfolder", "dc", root}, {"vm", "pool", "cluster", "dc", root}}
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Principal{
		"Joe@Lab.local": {"lab.local", "joe"}, `LAB\Joe`: {"lab", "joe"}, "joe": {"", "joe"}, "a@b@c": {"c", "a@b"}, "": {},
	} {
		if got := Parse(in); got != want {
			t.Errorf("%q: %+v", in, got)
		}
	}
}

func TestInheritance(t *testing.T) {
	set := func(entity string, who string, group bool, role int32, propagate bool) Permission {
		return Permission{Entity: entity, Principal: Parse(who), Group: group, Role: role, Propagate: propagate}
	}
	for name, c := range map[string]struct {
		perms []Permission
		want  []int32
	}{
		"nothing":                        {nil, nil},
		"from the root":                  {[]Permission{set(root, "joe@lab", false, ReadOnly, true)}, []int32{ReadOnly}},
		"not propagated":                 {[]Permission{set(root, "joe@lab", false, ReadOnly, false)}, nil},
		"nearer wins":                    {[]Permission{set(root, "joe@lab", false, Admin, true), set("dc", "joe@lab", false, ReadOnly, true)}, []int32{ReadOnly}},
		"NoAccess hides":                 {[]Permission{set(root, "joe@lab", false, Admin, true), set("vm", "joe@lab", false, NoAccess, true)}, []int32{NoAccess}},
		"a user's before its group's":    {[]Permission{set("dc", "staff@lab", true, Admin, true), set("dc", "joe@lab", false, ReadOnly, true)}, []int32{ReadOnly}},
		"a group's nearer than a user's": {[]Permission{set(root, "joe@lab", false, ReadOnly, true), set("dc", "staff@lab", true, Admin, true)}, []int32{Admin}},
		"another's":                      {[]Permission{set(root, "jim@lab", false, Admin, true), set(root, "others@lab", true, Admin, true)}, nil},
		"folder and pool add up":         {[]Permission{set("vmfolder", "joe@lab", false, ReadOnly, true), set("cluster", "joe@lab", false, Admin, true)}, []int32{ReadOnly, Admin}},
		"on the entity itself":           {[]Permission{set("vm", "joe@lab", false, ReadOnly, false), set("cluster", "joe@lab", false, Admin, true)}, []int32{ReadOnly}},
	} {
		core := fresh(t)
		for _, p := range c.perms {
			if err := core.Set(p.Entity, []Permission{p}); err != nil {
				t.Fatal(err)
			}
		}
		if got := core.Effective(joe, vmPath); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	c := fresh(t)
	id, err := c.AddRole("mine", []string{"A"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Set("dc", []Permission{{Principal: joe.User, Role: id, Propagate: true}}); err != nil {
		t.Fatal(err)
	}
	if !c.Has([]int32{id}, "System.Read") || !c.Has([]int32{id}, "A") || c.Has([]int32{id}, "B") {
		t.Error("privileges of a role")
	}
	kind := func(err error) Kind {
		var e *Error
		if !errors.As(err, &e) || e.Error() == "" {
			return -1
		}
		return e.Kind
	}
	for name, x := range map[string]struct {
		err  error
		want Kind
	}{
		"name taken":        {second(c.AddRole("mine", nil)), Exists},
		"no name":           {second(c.AddRole(" ", nil)), Invalid},
		"no such privilege": {second(c.AddRole("x", []string{"Z"})), Invalid},
		"rename to a taken": {c.UpdateRole(id, "Admin", nil), Exists},
		"update the system": {c.UpdateRole(Admin, "x", nil), System},
		"update nothing":    {c.UpdateRole(77, "x", nil), NotFound},
		"remove the system": {c.RemoveRole(ReadOnly, false), System},
		"remove in use":     {c.RemoveRole(id, true), InUse},
		"unknown role":      {c.Set("dc", []Permission{{Principal: joe.User, Role: 77}}), NotFound},
		"nobody":            {c.Set("dc", []Permission{{Role: id}}), Invalid},
		"nothing to remove": {c.Remove("vm", joe.User, false), NotFound},
		"last admin":        {c.Remove(root, Administrators("lab"), true), LastAdmin},
		"last admin reset":  {c.Reset(root, nil), LastAdmin},
		"last admin merged": {c.MergeRole(Admin, ReadOnly), LastAdmin},
		"merge from none":   {c.MergeRole(77, ReadOnly), NotFound},
		"merge to none":     {c.MergeRole(id, 77), NotFound},
	} {
		if got := kind(x.err); got != x.want {
			t.Errorf("%s: %v", name, x.err)
		}
	}
	if err := c.RemoveRole(id, false); err != nil || len(c.Of("dc")) != 0 {
		t.Errorf("remove with its permissions: %v, %v", err, c.Of("dc"))
	}
}

func second(_ int32, err error) error { return err }

// TestMachine does anything in any order: somebody stays administrator, a
// refusal changes nothing, and what is cached as "everything" is true.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := fresh(t)
		entities := []string{root, "dc", "vmfolder", "cluster", "pool", "vm"}
		entity := rapid.SampledFrom(entities)
		who := rapid.SampledFrom([]Principal{joe.User, joe.Groups[0], boss.User, boss.Groups[0]})
		role := func() int32 {
			var ids []int32
			for _, r := range c.Roles() {
				ids = append(ids, r.ID)
			}
			return rapid.SampledFrom(append(ids, 77)).Draw(t, "role")
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before, gen := fmt.Sprint(c.All(), c.Roles()), c.Generation()
			var err error
			p := Permission{Principal: who.Draw(t, "who"), Group: rapid.Bool().Draw(t, "group"), Propagate: rapid.Bool().Draw(t, "propagate")}
			switch rapid.IntRange(0, 6).Draw(t, "do") {
			case 0:
				_, err = c.AddRole(rapid.SampledFrom([]string{"r1", "r2", ""}).Draw(t, "name"), rapid.SliceOf(rapid.SampledFrom([]string{"A", "B", "Z"})).Draw(t, "privileges"))
			case 1:
				err = c.UpdateRole(role(), rapid.SampledFrom([]string{"r1", "r3"}).Draw(t, "name"), nil)
			case 2:
				err = c.RemoveRole(role(), rapid.Bool().Draw(t, "failIfUsed"))
			case 3, 4:
				p.Role = role()
				err = c.Set(entity.Draw(t, "entity"), []Permission{p})
			case 5:
				err = c.Remove(entity.Draw(t, "entity"), p.Principal, p.Group)
			case 6:
				err = c.MergeRole(role(), role())
			}
			if after := fmt.Sprint(c.All(), c.Roles()); err != nil && after != before {
				t.Fatalf("refused (%v) but changed:\n%s\n%s", err, before, after)
			} else if after != before && c.Generation() == gen {
				t.Fatal("a change without a new generation")
			}
			if !c.administered() {
				t.Fatal("no administrator")
			}
			for _, p := range c.All() {
				if c.roles[p.Role] == nil {
					t.Fatalf("permission of a role that is gone: %+v", p)
				}
			}
			for _, w := range []Who{joe, boss} {
				if !c.Everything(w) {
					continue
				}
				for _, e := range [][]string{{root}, {"dc", root}, {"vm", "pool", "cluster", "dc", root}} {
					if roles := c.Effective(w, Paths{e}); !slices.Contains(roles, Admin) {
						t.Fatalf("%v may do everything but has %v on %s", w, roles, e[0])
					}
				}
			}
		}
	})
}
