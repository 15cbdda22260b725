package cns

import (
	"errors"
	"reflect"
	"testing"
)

func shareSpec(id string, mb int64, ds ...string) CreateSpec {
	s := spec(id, mb, ds...)
	s.Share = &ShareSpec{}
	return s
}

// TestShareLife: a file volume is made on a datastore with file service only,
// is found, grows, is let go and taken up again.
func TestShareLife(t *testing.T) {
	c := world()
	p := must[Plan](t)(c.Create(epoch, shareSpec("file:1", 100, "ds-1", "ds-vsan")))
	v := p.Volume
	if v.Datastore != "ds-vsan" || v.DiskPath != "" || v.Share.Server == "" || len(p.Placements) != 2 || p.Placements[0].Err.Kind != NotSupported {
		t.Fatalf("%+v", p)
	}
	if p := must[Plan](t)(c.Create(epoch, shareSpec("file:2", 100))); p.Volume.Datastore != "ds-vsan" {
		t.Errorf("CNS chose %s", p.Volume.Datastore)
	}
	if page, err := c.Query(Filter{Datastores: []string{"ds-vsan"}}, Cursor{}); err != nil || page.Total != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	if len(c.AllDisks())+len(c.DisksOn("ds-vsan")) != 0 {
		t.Error("a share passes for a disk")
	}
	must[Volume](t)(c.Extend("file:1", 200))
	if s, _ := c.Space("ds-vsan"); s.FreeMB != 800 || s.UncommittedMB != 300 {
		t.Errorf("%+v", s)
	}
	must[Volume](t)(c.UpdateMetadata("file:1", MetadataUpdate{Cluster: Cluster{ID: "k2"}}))
	must[Volume](t)(c.Delete("file:1", true))
	must[Volume](t)(c.Delete("file:2", true))
	if n := len(c.Shares()); n != 2 {
		t.Fatalf("%d shares", n)
	}
	again := shareSpec("file:x", 1)
	again.Share.Existing = "file:1"
	if p := must[Plan](t)(c.Create(epoch, again)); p.Volume.ID != "file:1" || p.Volume.CapacityMB != 200 || p.Volume.Name != "name-file:x" {
		t.Errorf("taken up again: %+v", p.Volume)
	}

	d := world()
	if err := d.Restore(c.State()); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(c.State(), d.State()) {
		t.Errorf("restored %+v, want %+v", d.State(), c.State())
	}
	must[Volume](t)(d.Delete("file:1", false))
	if s, _ := d.Space("ds-vsan"); s.UncommittedMB != 100 {
		t.Errorf("%+v", s)
	}
}

// TestShareRefusals: what only a disk can do, and what a share can't be.
func TestShareRefusals(t *testing.T) {
	c := world()
	must[Plan](t)(c.Create(epoch, shareSpec("file:1", 100)))
	must[Plan](t)(c.Create(epoch, spec("block", 100, "ds-1")))
	must[Plan](t)(c.Create(epoch, shareSpec("file:gone", 100)))
	must[Volume](t)(c.Delete("file:gone", true))
	create := func(change func(*CreateSpec)) func() error {
		return func() error {
			s := shareSpec("file:new", 10)
			change(&s)
			_, err := c.Create(epoch, s)
			return err
		}
	}
	allow := []NetPermission{{IPs: "*", Access: ReadWrite}}
	for name, x := range map[string]struct {
		run  func() error
		kind Kind
	}{
		"attach":             {func() error { _, err := c.Attach(AttachSpec{Volume: "file:1", VM: vm("vm-1")}); return err }, NotSupported},
		"detach":             {func() error { _, _, err := c.Detach("file:1", vm("vm-1")); return err }, NotSupported},
		"snapshot":           {func() error { _, err := c.CreateSnapshot(epoch, "file:1", "s", ""); return err }, NotSupported},
		"relocate":           {func() error { _, err := c.Relocate(RelocateSpec{Disk: "file:1", Datastore: "ds-1"}); return err }, NotSupported},
		"unregister":         {func() error { _, err := c.Unregister("file:1", false); return err }, NotSupported},
		"flags":              {func() error { _, err := c.SetFlags("file:1", FlagNames[:1], true); return err }, NotSupported},
		"as a disk":          {func() error { _, _, err := c.Disk("file:1"); return err }, NotFound},
		"shrink":             {func() error { _, err := c.Extend("file:1", 99); return err }, InvalidArgument},
		"no file service":    {create(func(s *CreateSpec) { s.Datastores = []string{"ds-1"} }), NotSupported},
		"too large":          {create(func(s *CreateSpec) { s.CapacityMB = 801 }), NoSpace},
		"no size":            {create(func(s *CreateSpec) { s.CapacityMB = 0 }), InvalidArgument},
		"id of a disk":       {create(func(s *CreateSpec) { s.ID = "new" }), InvalidArgument},
		"taken id":           {create(func(s *CreateSpec) { s.ID = "file:1" }), AlreadyExists},
		"id of a share":      {create(func(s *CreateSpec) { s.ID = "file:gone" }), AlreadyExists},
		"from a snapshot":    {create(func(s *CreateSpec) { s.Source = &Source{"block", "s"} }), NotSupported},
		"of a disk":          {create(func(s *CreateSpec) { s.DiskID = "block" }), NotSupported},
		"quota":              {create(func(s *CreateSpec) { s.Share.SoftQuotaMB = 11 }), InvalidArgument},
		"addresses":          {create(func(s *CreateSpec) { s.Share.Permissions = []NetPermission{{IPs: "10.0.0.300", Access: ReadOnly}} }), InvalidArgument},
		"addresses twice":    {create(func(s *CreateSpec) { s.Share.Permissions = append(allow, allow...) }), InvalidArgument},
		"access":             {create(func(s *CreateSpec) { s.Share.Permissions = []NetPermission{{IPs: "*", Access: "ALL"}} }), InvalidArgument},
		"a volume again":     {create(func(s *CreateSpec) { s.Share.Existing = "file:1" }), AlreadyRegistered},
		"a share that isn't": {create(func(s *CreateSpec) { s.Share.Existing = "file:x" }), NotFound},
		"ACL of a disk":      {func() error { _, err := c.ConfigureACL("block", []ACLUpdate{{Permissions: allow}}); return err }, NotSupported},
		"ACL of nothing":     {func() error { _, err := c.ConfigureACL("none", []ACLUpdate{{Permissions: allow}}); return err }, NotFound},
		"ACL without rules":  {func() error { _, err := c.ConfigureACL("file:1", []ACLUpdate{{}}); return err }, InvalidArgument},
		"no ACL":             {func() error { _, err := c.ConfigureACL("file:1", nil); return err }, InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.dump()
			var e *Error
			if err := x.run(); !errors.As(err, &e) || e.Kind != x.kind {
				t.Errorf("got %v, want %s", err, x.kind)
			}
			if !reflect.DeepEqual(before, c.dump()) {
				t.Error("refused, but changed")
			}
		})
	}
}

// TestACL: rules are added and taken away by the same text; without any left
// nobody is let in.
func TestACL(t *testing.T) {
	c := world()
	s := shareSpec("file:1", 100)
	s.Share.Permissions = []NetPermission{{IPs: "10.0.0.0/8", Access: ReadWrite, AllowRoot: true}}
	must[Plan](t)(c.Create(epoch, s))
	one := NetPermission{IPs: "10.1.2.3", Access: ReadOnly}
	for _, x := range []struct {
		update ACLUpdate
		want   []NetPermission
	}{
		{ACLUpdate{Permissions: []NetPermission{one}}, []NetPermission{s.Share.Permissions[0], one}},
		{ACLUpdate{Permissions: []NetPermission{{IPs: "10.1.2.3", Access: ReadWrite}}}, []NetPermission{s.Share.Permissions[0], {IPs: "10.1.2.3", Access: ReadWrite}}},
		{ACLUpdate{Permissions: []NetPermission{{IPs: "10.1.2.3"}, {IPs: "10.0.0.0/16"}}, Delete: true}, s.Share.Permissions},
		{ACLUpdate{Permissions: s.Share.Permissions, Delete: true}, []NetPermission{{IPs: "*", Access: NoAccess}}},
		{ACLUpdate{Permissions: []NetPermission{one}}, []NetPermission{{IPs: "*", Access: NoAccess}, one}},
	} {
		if v := must[Volume](t)(c.ConfigureACL("file:1", []ACLUpdate{x.update})); !reflect.DeepEqual(v.Share.Permissions, x.want) {
			t.Errorf("%+v: %+v, want %+v", x.update, v.Share.Permissions, x.want)
		}
	}
	for ips, ok := range map[string]bool{"*": true, "fe80::1": true, "10.0.0.1-10.0.0.1": true, "10.0.0.2-10.0.0.1": false, "10.0.0.1-fe80::1": false, "": false, "10.0.0.0/33": false, "all": false} {
		if validIPs(ips) != ok {
			t.Errorf("%q: %v", ips, !ok)
		}
	}
}

// TestRestoreUnderAnotherName: paths of a state begin with what the datastore
// is called now.
func TestRestoreUnderAnotherName(t *testing.T) {
	c := world()
	d, _, _ := c.Datastore("ds-1")
	must[Plan](t)(c.Create(epoch, spec("a", 10, "ds-1")))
	d.Name = "renamed"
	c.PutDatastore(d)
	if v := must[Volume](t)(c.Volume("a")); v.DiskPath != "[renamed] fcd/a.vmdk" {
		t.Errorf("at %s", v.DiskPath)
	}
	if _, ok := c.DiskAt("[renamed] fcd/a.vmdk"); !ok {
		t.Error("not found by its path")
	}
	n := world()
	if err := n.Restore(c.State()); err != nil {
		t.Fatal(err)
	}
	if v := must[Volume](t)(n.Volume("a")); v.DiskPath != "[one] fcd/a.vmdk" {
		t.Errorf("restored at %s", v.DiskPath)
	}
}
