package vcenter_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	vimfault "github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/vapi/rest"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/vcenter"
)

func lab(t *testing.T) (*vcenter.VCenter, *client, *fault.Interceptor) {
	t.Helper()
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}, Plan: &fault.Plan{}, Classify: func(_ ledger.Hop, err error) string { return vcenter.CodeOf(err) }}
	v := start(t, vcenter.Config{In: in, TLS: true, Password: "s3cret-value"})
	c, err := cnsClient(t.Context(), login(t, v))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	return v, c, in
}

func entries(in *fault.Interceptor, op string) []ledger.Entry {
	var out []ledger.Entry
	for _, e := range in.Ledger.Entries() {
		if e.Op == op {
			out = append(out, e)
		}
	}
	return out
}

func TestLedgerOfAVolume(t *testing.T) {
	v, c, in := lab(t)
	if err := life(t.Context(), v, c); err != nil {
		t.Fatal(err)
	}
	if es := entries(in, "CnsCreateVolume"); len(es) != 1 || es[0].Volume != "pvc-1" || es[0].Outcome != ledger.OK || es[0].Component != "driver-controller" || !strings.Contains(es[0].Request, "pvc-1") {
		t.Errorf("create: %+v", es)
	}
	es := entries(in, "CnsAttachVolume")
	if len(es) != 2 || es[0].Node != "node-1" || es[1].Node != "node-2" || es[0].Volume == "" || es[0].Volume != es[1].Volume {
		t.Errorf("attach: %+v", es)
	}
	if ts := entries(in, "task:CnsAttachVolume"); len(ts) != 2 || ts[0].Outcome != ledger.OK || ts[1].Outcome != ledger.Failed || ts[0].Node != "node-1" || ts[0].Volume != es[0].Volume {
		t.Errorf("attach tasks: %+v", ts)
	}
	if ts := entries(in, "task:CnsAttachVolume"); ts[0].Cause != es[0].Seq || ts[1].Cause != es[1].Seq {
		t.Errorf("causes %d and %d, want %d and %d", ts[0].Cause, ts[1].Cause, es[0].Seq, es[1].Seq)
	}
	if fs := entries(in, "FindByUuid"); len(fs) != 2 || fs[0].Node != "node-1" {
		t.Errorf("FindByUuid: %+v", fs)
	}
	_ = rest.NewClient(c.Client.Client).Login(t.Context(), v.URL().User)
	if es := entries(in, "POST /rest/com/vmware/cis/session"); len(es) != 1 {
		t.Errorf("REST: %+v", es)
	}
	var all bytes.Buffer
	for _, e := range in.Ledger.Entries() {
		all.WriteString(e.String() + e.Request + e.Error)
	}
	if strings.Contains(all.String(), "s3cret-value") {
		t.Error("the password is in the ledger")
	}
	if len(entries(in, "Login")) != 1 {
		t.Error("the login is not in the ledger")
	}
}

func TestFaultsOnCalls(t *testing.T) {
	ctx := t.Context()
	refused := &vcenter.Fault{Fault: &types.NoPermission{PrivilegeId: "Cns.Searchable"}}

	t.Run("error before", func(t *testing.T) {
		v, c, in := lab(t)
		in.Plan.Arm(fault.Rule{Op: "CnsCreateVolume", Nth: 1, Do: fault.Error(refused)})
		if _, err := c.create(ctx, "a"); !vimfault.Is(err, &types.NoPermission{}) || !strings.Contains(err.Error(), "ServerFaultCode: NoPermission") {
			t.Errorf("got %v", err)
		}
		if n := len(v.Volumes()); n != 0 {
			t.Errorf("%d volumes", n)
		}
		if e := entries(in, "CnsCreateVolume")[0]; e.Outcome != ledger.Refused || e.Code != "NoPermission" || e.Fault == "" {
			t.Errorf("entry %+v", e)
		}
		if _, err := c.create(ctx, "a"); err != nil {
			t.Errorf("cleared: %v", err)
		}
	})
	t.Run("error after", func(t *testing.T) {
		v, c, in := lab(t)
		in.Plan.Arm(fault.Rule{Op: "CnsCreateVolume", Phase: fault.After, Nth: 1, Do: fault.Error(refused)})
		if _, err := c.create(ctx, "a"); !vimfault.Is(err, &types.NoPermission{}) {
			t.Errorf("got %v", err)
		}
		eventually(t, func() bool { return len(v.Volumes()) == 1 }, "the volume that was made")
	})
	for _, phase := range []fault.Phase{fault.Before, fault.After} {
		t.Run("drop "+string(phase), func(t *testing.T) {
			v, c, in := lab(t)
			in.Plan.Arm(fault.Rule{Op: "CnsCreateVolume", Phase: phase, Nth: 1, Do: fault.Drop()})
			_, err := c.create(ctx, "a")
			var ne net.Error
			if err == nil || !errors.Is(err, io.EOF) && !errors.As(err, &ne) && !strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "reset") {
				t.Errorf("got %v", err)
			}
			want := 0
			if phase == fault.After {
				want = 1
			}
			eventually(t, func() bool { return len(v.Volumes()) == want }, "volumes")
			// Go's client must not have sent it again.
			if n := len(entries(in, "CnsCreateVolume")); n != 1 {
				t.Errorf("%d calls", n)
			}
			if e := entries(in, "CnsCreateVolume")[0]; phase == fault.After && e.Outcome != ledger.MaybeApplied {
				t.Errorf("outcome %s", e.Outcome)
			}
		})
	}
	t.Run("hang until the caller gives up", func(t *testing.T) {
		_, c, in := lab(t)
		a := in.Plan.Arm(fault.Rule{Op: "CnsQueryVolume", Nth: 1, Do: fault.Hang()})
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := c.cns.QueryVolume(short, &cnstypes.CnsQueryFilter{}); err == nil {
			t.Error("no error")
		}
		if a.Fired() != 1 {
			t.Error("did not fire")
		}
	})
	t.Run("crash", func(t *testing.T) {
		_, c, in := lab(t)
		var mu sync.Mutex
		var crashed string
		in.OnCrash = func(component string) { mu.Lock(); crashed = component; mu.Unlock() }
		in.Plan.Arm(fault.Rule{Op: "CnsQueryVolume", Nth: 1, Do: fault.Crash("")})
		if _, err := c.cns.QueryVolume(ctx, &cnstypes.CnsQueryFilter{}); err == nil {
			t.Error("no error")
		}
		mu.Lock()
		defer mu.Unlock()
		if crashed != "driver-controller" {
			t.Errorf("crashed %q", crashed)
		}
	})
}

func TestFaultsOnTasks(t *testing.T) {
	ctx := t.Context()
	in2 := func(rule fault.Rule) (*vcenter.VCenter, *client, error) {
		v, c, in := lab(t)
		rule.Op = "task:CnsCreateVolume"
		rule.Nth = 1
		in.Plan.Arm(rule)
		wait := 10 * time.Second
		if rule.Do.String() == "drop" {
			wait = 400 * time.Millisecond // the task never ends
		}
		short, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		_, err := c.create(short, "a")
		if u := in.Plan.Unfired(); len(u) > 0 {
			t.Errorf("%s did not fire", u[0].Name)
		}
		return v, c, err
	}
	inUse := &types.ResourceInUse{Type: "volume", Name: "volume"}
	v, c, err := in2(fault.Rule{Do: fault.Error(&vcenter.Fault{Fault: inUse})})
	if !vimfault.Is(err, inUse) || !strings.Contains(err.Error(), "The resource 'volume' is in use.") || len(v.Volumes()) != 0 {
		t.Errorf("task error: %v, %d volumes", err, len(v.Volumes()))
	}
	if _, err := c.create(ctx, "b"); err != nil {
		t.Errorf("cleared: %v", err)
	}
	v, _, err = in2(fault.Rule{Do: fault.Error(&vcenter.Fault{Fault: inUse, Result: true})})
	if err == nil || !strings.HasPrefix(err.Error(), "*types.ResourceInUse") || len(v.Volumes()) != 0 {
		t.Errorf("result: %v, %d volumes", err, len(v.Volumes()))
	}
	v, _, err = in2(fault.Rule{Phase: fault.After, Do: fault.Error(&vcenter.Fault{Fault: inUse})})
	if !vimfault.Is(err, inUse) || len(v.Volumes()) != 1 {
		t.Errorf("task error after: %v, %d volumes", err, len(v.Volumes()))
	}
	v, _, err = in2(fault.Rule{Phase: fault.After, Do: fault.Drop()})
	if !ended(err) || len(v.Volumes()) != 1 {
		t.Errorf("lost end: %v, %d volumes", err, len(v.Volumes()))
	}
	v, _, err = in2(fault.Rule{Do: fault.Drop()})
	if !ended(err) || len(v.Volumes()) != 0 {
		t.Errorf("lost before: %v, %d volumes", err, len(v.Volumes()))
	}
	v, _, err = in2(fault.Rule{Do: fault.Crash("driver-controller")})
	if err != nil || len(v.Volumes()) != 1 {
		t.Errorf("crash of the driver: %v, %d volumes", err, len(v.Volumes()))
	}
}

func TestComponentOfAClient(t *testing.T) {
	v, c, in := lab(t)
	c.Client.Client.Client.UserAgent = "csilab/driver-controller-2 (test)"
	if _, err := c.cns.QueryVolume(t.Context(), &cnstypes.CnsQueryFilter{}); err != nil {
		t.Fatal(err)
	}
	// The CNS client has a transport of its own, made from the first.
	if cc, err := cns.NewClient(t.Context(), c.Client.Client); err == nil {
		_, _ = cc.QueryVolume(t.Context(), &cnstypes.CnsQueryFilter{})
	}
	if _, err := object.NewSearchIndex(c.Client.Client).FindByUuid(t.Context(), nil, v.VMUUID("node-1"), true, nil); err != nil {
		t.Fatal(err)
	}
	if es := entries(in, "FindByUuid"); es[len(es)-1].Component != "driver-controller-2" {
		t.Errorf("component %q", es[len(es)-1].Component)
	}
}

// ended says whether a wait ended with its context: govmomi reports either the
// context's error or that the server was told to stop waiting.
func ended(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || vimfault.Is(err, &types.RequestCanceled{})
}

// eventually polls for what a task does after its caller has gone.
func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 5 s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
