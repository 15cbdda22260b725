package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/ledger"
)

const gates = `apiVersion: csilab.dev/v1
kind: FaultPlan
rules:
- {name: the gate, hop: vcenter, op: CnsCreateVolume, do: gate}
- {name: slow, hop: vcenter, op: CnsDeleteVolume, where: attempt == 1, do: {latency: {time: 1ms}}, mayNotFire: true}
`

func faultServer(t *testing.T) (control.Client, *fault.Interceptor) {
	in := &fault.Interceptor{Plan: &fault.Plan{Seed: 1}}
	next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"error":"next"}`, http.StatusTeapot) })
	s := httptest.NewServer(control.WithFaults("secret", control.Faults{Plan: in.Plan, Lab: faultfile.Lab{Hops: []string{"vcenter"}}}, next))
	t.Cleanup(func() { in.Close(); s.Close() })
	return control.Client{URL: s.URL, Token: "secret"}, in
}

func rules(t *testing.T, list json.RawMessage, err error) []control.FaultRule {
	t.Helper()
	var l control.List[control.FaultRule]
	if err == nil {
		err = json.Unmarshal(list, &l)
	}
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

func TestFaults(t *testing.T) {
	c, in := faultServer(t)
	ctx := t.Context()
	list, err := c.Inject(ctx, "f.yaml", []byte(gates))
	if rs := rules(t, list, err); len(rs) != 2 || rs[0].Name != "the gate" || rs[1].Where != "attempt == 1" {
		t.Errorf("%+v", rs)
	}
	done := make(chan error, 1)
	go func() {
		done <- in.Do(context.Background(), fault.Call{Hop: ledger.VCenter, Op: "CnsCreateVolume", Volume: "v", Component: "me"}, func(context.Context) error { return nil })
	}()
	var held []control.FaultRule
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		list, err := c.Faults(ctx)
		if held = rules(t, list, err); len(held[0].Held) == 1 {
			break
		}
	}
	if len(held[0].Held) != 1 || held[0].Held[0].Volume != "v" || held[0].Held[0].Component != "me" || held[0].Fired != 1 || held[0].Seen != 1 {
		t.Errorf("%+v", held)
	}
	list, err = c.Faults(ctx)
	var table strings.Builder
	if err := errors.Join(err, control.FaultTable(&table, list)); err != nil || !strings.Contains(table.String(), "held") {
		t.Errorf("%v\n%s", err, &table)
	}
	if n, err := c.Release(ctx, "the gate"); n != 1 || err != nil {
		t.Errorf("released %d, %v", n, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := c.Clear(ctx, "slow"); n != 1 || err != nil {
		t.Errorf("cleared %d, %v", n, err)
	}
	if n, err := c.Clear(ctx, ""); n != 1 || err != nil {
		t.Errorf("cleared %d, %v", n, err)
	}
	list, err = c.Faults(ctx)
	if rs := rules(t, list, err); len(rs) != 0 {
		t.Errorf("%+v", rs)
	}
}

func TestFaultsRefuse(t *testing.T) {
	c, in := faultServer(t)
	ctx := t.Context()
	if _, err := c.Inject(ctx, "f.yaml", []byte(gates)); err != nil {
		t.Fatal(err)
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	_, err := c.Inject(ctx, "f.yaml", []byte(gates))
	refused(err, `f.yaml:4:10: rules[0].name: a rule "the gate" is armed already`)
	_, err = c.Inject(ctx, "g.yaml", []byte(strings.ReplaceAll(gates, "hop: vcenter", "hop: csi")))
	refused(err, "this lab has no hop csi; it has vcenter")
	_, err = c.Inject(ctx, "g.yaml", nil)
	refused(err, "the file is empty")
	if n := len(in.Plan.Rules()); n != 2 {
		t.Errorf("%d rules", n)
	}
	_, err = c.Clear(ctx, "slo")
	refused(err, `no rule "slo"; did you mean slow?`)
	_, err = c.Release(ctx, "slow")
	refused(err, `no gate "slow"`)
	_, err = c.Get(ctx, "volumes", "")
	refused(err, "next")
	bad := c
	bad.Token = "wrong"
	for _, ask := range []func() error{
		func() error { _, err := bad.Faults(ctx); return err },
		func() error { _, err := bad.Inject(ctx, "f", []byte(gates)); return err },
		func() error { _, err := bad.Clear(ctx, ""); return err },
		func() error { _, err := bad.Release(ctx, "the gate"); return err },
	} {
		if err := ask(); !errors.Is(err, control.ErrToken) {
			t.Error(err)
		}
	}
	if n := len(in.Plan.Rules()); n != 2 {
		t.Errorf("%d rules after requests without the token", n)
	}
	req, _ := http.NewRequestWithContext(ctx, http.MethodPut, c.URL+"/v1alpha1/faults", nil)
	req.Header.Set("Authorization", "Bearer secret")
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %v, %v", res, err)
	}
	if err == nil {
		res.Body.Close()
	}
}
