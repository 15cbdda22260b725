package vcenter_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/property"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vapi/tags"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

func TestWrongPassword(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true, User: "k8s@vsphere.local", Password: "right/one@"})
	for name, info := range map[string]*url.Userinfo{
		"password": url.UserPassword("k8s@vsphere.local", "wrong"),
		"user":     url.UserPassword("k8s", "right/one@"),
		"empty":    url.UserPassword("k8s@vsphere.local", ""),
	} {
		u := v.URL()
		u.User = info
		_, err := govmomi.NewClient(t.Context(), u, true)
		if err == nil {
			t.Fatalf("%s: let in", name)
		}
		if !soap.IsSoapFault(err) || soap.ToSoapFault(err).String != "Cannot complete login due to an incorrect user name or password." {
			t.Errorf("%s: %v", name, err)
		}
		if !fault.Is(err, &types.InvalidLogin{}) {
			t.Errorf("%s: fault of %v is not InvalidLogin", name, err)
		}
	}
	c := login(t, v)
	// Upstream reads the session to find out whether it is still logged in.
	s, err := session.NewManager(c.Client).UserSession(t.Context())
	if err != nil || s == nil || s.UserName != `VSPHERE.LOCAL\k8s` {
		t.Errorf("session %+v, %v", s, err)
	}
	v.SetPassword("rotated")
	if _, err := govmomi.NewClient(t.Context(), v.URL(), true); err == nil {
		t.Error("the old password is still good")
	}
	if _, err := methods.GetCurrentTime(t.Context(), c); err != nil {
		t.Errorf("a session does not outlive a change of password: %v", err)
	}
}

func TestKilledSession(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true})
	c := login(t, v)
	ctx := t.Context()
	vm, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, nil, v.VMUUID("node-1"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	pending := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		first := true
		pending <- property.Wait(ctx, property.DefaultCollector(c.Client), vm.Reference(), []string{"runtime.powerState"}, func([]types.PropertyChange) bool {
			if first {
				close(waiting)
			}
			first = false
			return false
		})
	}()
	<-waiting
	time.Sleep(20 * time.Millisecond) // not needed for the result: lets the second call get to the server
	begin := time.Now()
	if n := v.KillSessions(); n != 1 {
		t.Errorf("%d sessions killed, want 1", n)
	}
	select {
	case err := <-pending:
		if !fault.Is(err, &types.NotAuthenticated{}) || !strings.Contains(err.Error(), "The session is not authenticated.") {
			t.Errorf("pending wait: %v", err)
		}
		if d := time.Since(begin); d > time.Second {
			t.Errorf("it took %v", d)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the pending wait did not end")
	}
	if _, err := methods.GetCurrentTime(ctx, c); !fault.Is(err, &types.NotAuthenticated{}) {
		t.Errorf("later call: %v", err)
	}
	if s, err := session.NewManager(c.Client).UserSession(ctx); err != nil || s != nil {
		t.Errorf("session %v, %v", s, err)
	}
	if err := c.Login(ctx, v.URL().User); err != nil {
		t.Errorf("log in again: %v", err)
	}
	if _, err := methods.GetCurrentTime(ctx, c); err != nil {
		t.Error(err)
	}
}

func TestTagsAndRESTSessions(t *testing.T) {
	v := start(t, vcenter.Config{TLS: true, Nodes: []vcenter.Node{
		{Name: "a", Zone: "zone-a", Region: "region-1"}, {Name: "b", Zone: "zone-b", Region: "region-1"},
	}, Datastores: []vcenter.Datastore{{Name: "shared"}, {Name: "only-a", Zones: []string{"zone-a"}}}})
	c := login(t, v)
	ctx := t.Context()
	rc := rest.NewClient(c.Client)
	if err := rc.Login(ctx, v.URL().User); err != nil {
		t.Fatal(err)
	}
	if err := rest.NewClient(c.Client).Login(ctx, url.UserPassword("x", "y")); err == nil {
		t.Error("REST lets anybody in")
	}
	m := tags.NewManager(rc)
	got := map[string]string{}
	for _, node := range []string{"a", "b"} {
		r, err := object.NewSearchIndex(c.Client).FindByUuid(ctx, nil, v.VMUUID(node), true, nil)
		if err != nil {
			t.Fatal(err)
		}
		host, err := object.NewVirtualMachine(c.Client, r.Reference()).HostSystem(ctx)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := host.ResourcePool(ctx)
		if err != nil {
			t.Fatal(err)
		}
		owner, err := pool.Owner(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ts, err := m.GetAttachedTags(ctx, owner)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range ts {
			cat, err := m.GetCategory(ctx, tag.CategoryID)
			if err != nil {
				t.Fatal(err)
			}
			got[node+"/"+cat.Name] = tag.Name
		}
	}
	want := map[string]string{"a/k8s-zone": "zone-a", "b/k8s-zone": "zone-b", "a/k8s-region": "region-1", "b/k8s-region": "region-1"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("tags %v, want %v", got, want)
	}
	v.KillSessions()
	if _, err := m.GetCategories(ctx); err == nil {
		t.Error("a killed REST session goes on")
	}
	if err := rc.Login(ctx, v.URL().User); err != nil {
		t.Errorf("log in again: %v", err)
	}
}

func TestCloseEndsWhatWaits(t *testing.T) {
	v := start(t, vcenter.Config{})
	c := login(t, v)
	done := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		first := true
		done <- property.Wait(context.Background(), property.DefaultCollector(c.Client), c.ServiceContent.RootFolder, []string{"name"}, func([]types.PropertyChange) bool {
			if first {
				close(waiting)
			}
			first = false
			return false
		})
	}()
	<-waiting
	v.Close()
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("still waiting")
	}
	v.Close()
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  vcenter.Config
		want string
	}{
		"version":  {vcenter.Config{Version: "eight"}, `Version is "eight"`},
		"slots":    {vcenter.Config{Version: "7.0.3", DenseSlots: true}, `DenseSlots is set with Version 7.0.3`},
		"twice":    {vcenter.Config{Nodes: []vcenter.Node{{Name: "a"}, {Name: "a"}}}, `node name "a" is given twice`},
		"name":     {vcenter.Config{Nodes: []vcenter.Node{{Name: "a/b"}}}, `node name "a/b"`},
		"type":     {vcenter.Config{Datastores: []vcenter.Datastore{{Name: "d", Type: "floppy"}}}, `Type is "floppy"`},
		"zone":     {vcenter.Config{Nodes: []vcenter.Node{{Name: "a", Zone: "z"}}, Datastores: []vcenter.Datastore{{Name: "d", Zones: []string{"y"}}}}, `zone "y"`},
		"capacity": {vcenter.Config{Datastores: []vcenter.Datastore{{Name: "d", CapacityBytes: -1}}}, `CapacityBytes is -1`},
		"nameless": {vcenter.Config{Policies: []vcenter.Policy{{ID: "x"}}}, `a policy has no name`},
		"sessions": {vcenter.Config{MaxSessions: -1}, `MaxSessions is -1`},
		"user":     {vcenter.Config{User: "nobody"}, `Name must be user@domain`},
		"role":     {vcenter.Config{Users: []vcenter.User{{Name: "a@b", Role: "floppy"}}}, `no role "floppy"`},
		"policy":   {vcenter.Config{Policies: []vcenter.Policy{{Name: "p", Datastores: []string{"nope"}}}}, `no datastore "nope"`},
		"region":   {vcenter.Config{Nodes: []vcenter.Node{{Name: "a", Zone: "z", Region: "1"}, {Name: "b", Zone: "z", Region: "2"}}}, `zone "z" is in region`},
		"no store": {vcenter.Config{Nodes: []vcenter.Node{{Name: "a", Zone: "z"}, {Name: "b", Zone: "y"}}, Datastores: []vcenter.Datastore{{Name: "d", Zones: []string{"y"}}}}, `no datastore is accessible from zone "z"`},
	} {
		v, err := vcenter.New(context.Background(), c.cfg)
		if err == nil {
			v.Close()
			t.Errorf("%s: accepted", name)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %s", name, err, c.want)
		}
	}
}
