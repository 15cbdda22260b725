package vcenter_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/pbm"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/vcenter"
)

// Test2bLoginFailure: vcsim says "Login failure", which the upstream driver
// does not take for a wrong password.
func Test2bLoginFailure(t *testing.T) {
	t.Parallel()
	v := start(t, vcenter.Config{})
	_, err := loginAs(t, v, "administrator@vsphere.local", "wrong")
	if !soap.IsSoapFault(err) {
		t.Fatal(err)
	}
	f := soap.ToSoapFault(err)
	if _, ok := f.VimFault().(types.InvalidLogin); !ok || f.String != "Cannot complete login due to an incorrect user name or password." {
		t.Errorf("%T, %q", f.VimFault(), f.String)
	}
}

func TestRow16PolicyUnknown(t *testing.T) {
	t.Parallel()
	r := newPolicyRig(t)
	if _, err := r.pbm.ProfileIDByName(r.ctx, "platinum"); err == nil || err.Error() != `no pbm profile found with name: "platinum"` {
		t.Errorf("by name: %v", err)
	}
	if _, err := r.pbm.RetrieveContent(r.ctx, []pbmtypes.PbmProfileId{{UniqueId: "nope"}}); !vimfault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("content: %v", err)
	}
	if _, err := check(r.ctx, r.pbm, nil, pbmtypes.PbmProfileId{UniqueId: "nope"}); !vimfault.Is(err, &types.InvalidArgument{}) {
		t.Errorf("compatibility: %v", err)
	}
}

// TestRow17TagsTakenAway: what met a policy no longer does.
func TestRow17TagsTakenAway(t *testing.T) {
	t.Parallel()
	r := newPolicyRig(t, vcenter.Policy{Name: "gold", Tags: []vcenter.TagRule{{Category: "tier", Names: []string{"gold"}}}})
	id, err := r.pbm.ProfileIDByName(r.ctx, "gold")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, ""},
		{func() error { return r.v.Tag("nfs", "tier", "gold") }, "nfs"},
		{func() error { return r.v.DatastoreMaintenance("nfs", true) }, ""},
		{func() error { return r.v.DatastoreMaintenance("nfs", false) }, "nfs"},
		{func() error { return r.v.Untag("nfs", "tier", "gold") }, ""},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := r.compatible(id); got != step.want {
			t.Errorf("compatible %q, want %q", got, step.want)
		}
	}
}

// TestRow18EmptyPrivilegeMap: a driver that asks whether its user may keep files
// on datastores learns that it may on none, and a create is refused.
func TestRow18EmptyPrivilegeMap(t *testing.T) {
	t.Parallel()
	r := asOther(t, "CSI")
	granted := func() (n int) {
		t.Helper()
		entities := []types.ManagedObjectReference{r.datastoreRef("datastore-1"), r.datastoreRef("datastore-2")}
		res, err := object.NewAuthorizationManager(r.Client.Client).HasUserPrivilegeOnEntities(r.ctx, entities, otherUser, []string{"Datastore.FileManagement", "System.Read"})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range res {
			all := true
			for _, p := range e.PrivAvailability {
				all = all && p.IsGranted
			}
			if all {
				n++
			}
		}
		return n
	}
	if n := granted(); n != 2 {
		t.Errorf("%d datastores, want 2", n)
	}
	if err := r.v.RevokePrivilege(otherUser, "Datastore.FileManagement", ""); err != nil {
		t.Fatal(err)
	}
	if n := granted(); n != 0 {
		t.Errorf("%d datastores, want none", n)
	}
	if _, err := r.create(r.ctx, "v"); lacks(err) != "Datastore.FileManagement on Datastore" {
		t.Errorf("create: %v", err)
	}
}

// TestRow57SessionGone: the first call of every endpoint fails, and a log-in
// heals them; CNS says so in its own words (vsphere-csi-driver#2157).
func TestRow57SessionGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, vcenter.Config{})
	p, err := pbm.NewClient(r.ctx, r.Client.Client)
	if err != nil {
		t.Fatal(err)
	}
	m := r.tagger()
	r.v.KillSessions()
	for name, c := range map[string]struct {
		err  error
		text string
	}{
		"vim25": {second(methods.GetCurrentTime(r.ctx, r.Client)), "The session is not authenticated."},
		"CNS":   {r.ask("x"), "ServerFaultCode: NotAuthenticated"},
		"PBM":   {second(p.ProfileIDByName(r.ctx, "x")), "The session is not authenticated."},
	} {
		if !vimfault.Is(c.err, &types.NotAuthenticated{}) || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if _, err := m.ListCategories(r.ctx); !rest.IsStatusError(err, http.StatusUnauthorized) {
		t.Errorf("REST: %v", err)
	}
	if err := r.Login(r.ctx, r.v.URL().User); err != nil {
		t.Fatal(err)
	}
	// A service client keeps the cookie that it was made with: drivers make a
	// new one.
	again, err := cnsClient(r.ctx, r.Client)
	if err != nil {
		t.Fatal(err)
	}
	if err := (&rig{again, t, r.ctx, r.v}).ask("x"); err != nil {
		t.Errorf("CNS after a log-in: %v", err)
	}
}

// TestRow58NoPermission: the fault names the object and the privilege.
func TestRow58NoPermission(t *testing.T) {
	t.Parallel()
	for privilege, do := range map[string]func(r *rig, id string) error{
		"Datastore.FileManagement":              func(r *rig, _ string) error { return second(r.create(r.ctx, "w")) },
		"VirtualMachine.Config.AddExistingDisk": func(r *rig, id string) error { return second(r.attach(r.ctx, id, r.node("node-1").Reference())) },
		"VirtualMachine.Config.AddRemoveDevice": func(r *rig, id string) error { return r.detach(r.ctx, id, r.node("node-1").Reference()) },
		"Cns.Searchable":                        (*rig).ask,
		"StorageProfile.View": func(r *rig, _ string) error {
			p, err := pbm.NewClient(r.ctx, r.Client.Client)
			if err != nil {
				return err
			}
			return second(p.ProfileIDByName(r.ctx, "x"))
		},
	} {
		r := asOther(t, "CSI")
		id := r.volume("v")
		if err := r.v.RevokePrivilege(otherUser, privilege, ""); err != nil {
			t.Fatal(err)
		}
		err := do(r, id)
		var np *types.NoPermission
		if _, ok := vimfault.As(err, &np); !ok || np.PrivilegeId != privilege || np.Object == nil || len(np.MissingPrivileges) != 1 {
			t.Errorf("%s: %v, %+v", privilege, err, np)
		}
		if len(r.v.Volumes()) != 1 {
			t.Errorf("%s: %d volumes", privilege, len(r.v.Volumes()))
		}
	}
}

// TestRow59PasswordRotated: sessions live on; the next log-in fails with the
// text that the driver compares, and goes on failing for a right password once
// the account is locked.
func TestRow59PasswordRotated(t *testing.T) {
	t.Parallel()
	v := start(t, withOther())
	c, err := loginAs(t, v, otherUser, otherPassword)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.SetPasswordOf(otherUser, "rotated"); err != nil {
		t.Fatal(err)
	}
	if _, err := methods.GetCurrentTime(t.Context(), c); err != nil {
		t.Errorf("live session: %v", err)
	}
	v.KillSessionsOf(otherUser)
	for range 5 {
		if err := c.Login(t.Context(), url.UserPassword(otherUser, otherPassword)); err == nil || err.Error() != "ServerFaultCode: Cannot complete login due to an incorrect user name or password." {
			t.Fatalf("old password: %v", err)
		}
	}
	if err := c.Login(t.Context(), url.UserPassword(otherUser, "rotated")); !vimfault.Is(err, &types.InvalidLogin{}) {
		t.Errorf("locked: %v", err)
	}
	if err := v.UnlockAccount(otherUser); err != nil {
		t.Fatal(err)
	}
	if err := c.Login(t.Context(), url.UserPassword(otherUser, "rotated")); err != nil {
		t.Errorf("new password: %v", err)
	}
}

// TestRow60HTTPFailures: what stands in front of the services fails.
func TestRow60HTTPFailures(t *testing.T) {
	v, c, in := lab(t)
	r := &rig{c, t, t.Context(), v}
	in.Plan.Arm(fault.Rule{Op: "CnsQueryVolume", Nth: 1, Do: fault.Error(&vcenter.HTTPError{Status: http.StatusServiceUnavailable})})
	if err := r.ask("x"); err == nil || !strings.Contains(err.Error(), "503 Service Unavailable") || soap.IsSoapFault(err) {
		t.Errorf("vsan-health is down: %v", err)
	}
	if e := entries(in, "CnsQueryVolume"); len(e) != 1 || e[0].Code != "HTTP503" {
		t.Errorf("ledger %+v", e)
	}
	in.Plan.Arm(fault.Rule{Op: "CnsQueryVolume", Nth: 1, Do: fault.Drop()})
	if err := r.ask("x"); !errors.Is(err, io.EOF) {
		t.Errorf("connection dropped: %v", err)
	}
	stuck := in.Plan.Arm(fault.Rule{Op: "CnsQueryVolume", Nth: 1, Do: fault.Hang()})
	short, cancel := context.WithTimeout(r.ctx, 20*time.Millisecond)
	defer cancel()
	hung := *r
	hung.ctx = short
	if err := hung.ask("x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hang: %v", err)
	}
	in.Plan.Disarm(stuck) // on a busy machine the call may not have come this far
	if err := r.ask("x"); err != nil {
		t.Errorf("healed: %v", err)
	}
	rc := rest.NewClient(c.Client.Client)
	in.Plan.Arm(fault.Rule{Op: "POST /rest/com/vmware/cis/session", Nth: 1, Do: fault.Error(&vcenter.HTTPError{Status: http.StatusBadGateway})})
	if err := rc.Login(r.ctx, v.URL().User); !rest.IsStatusError(err, http.StatusBadGateway) {
		t.Errorf("REST: %v", err)
	}
	// A certificate that the client does not trust, and the wrong protocol.
	if _, err := govmomi.NewClient(r.ctx, v.URL(), false); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Errorf("untrusted certificate: %v", err)
	}
	plain := v.URL()
	plain.Scheme = "http"
	if res, err := http.Post(plain.String(), "text/xml", bytes.NewReader(nil)); err == nil {
		res.Body.Close()
		if res.StatusCode != http.StatusBadRequest {
			t.Errorf("HTTP to HTTPS: %v", res.Status)
		}
	}
	v.Close()
	// Each connection that the client kept may tell in words of its own that it
	// was closed.
	c.Client.Client.CloseIdleConnections()
	if err := r.ask("x"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("vCenter is down: %v", err)
	}
}
