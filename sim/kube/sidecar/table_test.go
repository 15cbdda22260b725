package sidecar_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/sim/kube/sidecar"
)

// Every RPC of the Controller service is in the table or has a reason why not,
// and every row is complete.
func TestTableIsComplete(t *testing.T) {
	rows := map[string]int{}
	for _, c := range sidecar.Real().Table() {
		rows[c.RPC]++
		if c.Timeout <= 0 || c.Workers <= 0 || c.Then == "" || c.Source == "" || c.Retry.Start > c.Retry.Max {
			t.Errorf("%s %s: incomplete: %+v", c.Sidecar, c.RPC, c)
		}
		if c.Retry != (sidecar.Backoff{}) && len(c.Uncertain) == 0 {
			t.Errorf("%s %s: is retried, but no code leaves it open", c.Sidecar, c.RPC)
		}
		for _, code := range c.Infeasible {
			if slices.Contains(c.Uncertain, code) {
				t.Errorf("%s %s: %v is infeasible and uncertain", c.Sidecar, c.RPC, code)
			}
		}
	}
	for _, m := range csi.Controller_ServiceDesc.Methods {
		_, unused := sidecar.Unused[m.MethodName]
		if unused == (rows[m.MethodName] > 0) {
			t.Errorf("%s: %d rows, unused %v", m.MethodName, rows[m.MethodName], unused)
		}
	}
	methods := fmt.Sprint(csi.Controller_ServiceDesc.Methods, csi.Identity_ServiceDesc.Methods)
	for rpc := range rows {
		if !strings.Contains(methods, "{"+rpc+" ") {
			t.Errorf("%s is no RPC of CSI", rpc)
		}
	}
}

// The numbers of the deployment, as its manifest and the sources have them.
func TestRealNumbers(t *testing.T) {
	for _, c := range []struct {
		sidecar, rpc string
		timeout      time.Duration
		workers      int
		pending      string
	}{
		{sidecar.Provisioner, "CreateVolume", 300 * time.Second, 100, "Canceled DeadlineExceeded Aborted Unavailable"},
		{sidecar.Provisioner, "DeleteVolume", 300 * time.Second, 100, "Canceled DeadlineExceeded ResourceExhausted Aborted Unavailable"},
		{sidecar.Attacher, "ControllerPublishVolume", 300 * time.Second, 10, "Canceled DeadlineExceeded ResourceExhausted Aborted Unavailable"},
		{sidecar.Attacher, "ControllerUnpublishVolume", 300 * time.Second, 10, "Canceled DeadlineExceeded ResourceExhausted Aborted Unavailable"},
		{sidecar.Attacher, "GetPluginInfo", time.Second, 1, ""},
		{sidecar.Resizer, "ControllerExpandVolume", 300 * time.Second, 10, "Canceled DeadlineExceeded ResourceExhausted Aborted Unavailable"},
		{sidecar.Snapshotter, "CreateSnapshot", 300 * time.Second, 10, "Canceled DeadlineExceeded ResourceExhausted Aborted Unavailable"},
	} {
		row := sidecar.Real().Calls(c.sidecar)[c.rpc]
		var pending []string
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			if slices.Contains(row.Uncertain, code) {
				pending = append(pending, code.String())
			}
			if err := status.Error(code, ""); row.Final(err) == slices.Contains(row.Uncertain, code) {
				t.Errorf("%s %v: Final is %v", c.rpc, code, row.Final(err))
			}
		}
		if row.Timeout != c.timeout || row.Workers != c.workers || strings.Join(pending, " ") != c.pending {
			t.Errorf("%s %s: %v, %d workers, pending %v", c.sidecar, c.rpc, row.Timeout, row.Workers, pending)
		}
		if c.pending != "" && row.Retry != (sidecar.Backoff{Start: time.Second, Max: 5 * time.Minute}) {
			t.Errorf("%s %s: %v", c.sidecar, c.rpc, row.Retry)
		}
		if row.Final(errors.New("not gRPC")) || row.Final(nil) {
			t.Errorf("%s: final without a status", c.rpc)
		}
	}
	if f := sidecar.Fast().Provisioner; f.RetryMax > time.Second || f.Timeout > time.Minute {
		t.Errorf("not fast: %+v", f)
	}
}

func TestSecretReference(t *testing.T) {
	k := sidecar.Prefixed("Provisioner", "provisioner")
	tokens := map[string]string{"pvc.name": "data", "pvc.namespace": "ns", "pvc.annotations['a/b']": "An"}
	for _, c := range []struct{ name, ns, want string }{
		{"${pvc.name}-x", "${pvc.namespace}", "ns/data-x"},
		{"${pvc.annotations['a/b']}", "ns", `"${pvc.annotations['a/b']}" resolved to "An" which is not a valid secret name`},
		{"x", "a.b", `"a.b" resolved to "a.b" which is not a valid namespace name`},
		{"x", "", "Provisioner secrets specified in parameters but value of either namespace or name is empty"},
		{"${x}", "ns", `error resolving value "${x}": invalid tokens: ["x"]`},
	} {
		ref, err := k.Reference(map[string]string{k.Name: c.name, k.Namespace: c.ns}, tokens, tokens)
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = ref.Namespace + "/" + ref.Name
		}
		if got != c.want {
			t.Errorf("%q %q: got %s, want %s", c.name, c.ns, got, c.want)
		}
	}
	if ref, err := k.Reference(nil, nil, nil); ref != nil || err != nil {
		t.Errorf("%v %v", ref, err)
	}
}
