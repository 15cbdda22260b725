package kube_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"

	"github.com/csilab/csilab/driver/hpe/kube"
)

func TestNodeIDs(t *testing.T) {
	whole := kube.NodeInfo{Name: "n", UUID: "u", IQNs: []string{"i"}, Networks: []string{"192.0.2.1/24"}}
	id, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id    string
		node  kube.NodeInfo
		whole bool
		ok    bool
	}{
		{"420a1f3c", kube.NodeInfo{UUID: "420a1f3c"}, false, true},
		{string(id), whole, true, true},
		{" " + string(id), whole, true, true},
		{"", kube.NodeInfo{}, false, false},
		{"{}", kube.NodeInfo{}, false, false},
		{"{", kube.NodeInfo{}, false, false},
		{`{"uuid":1}`, kube.NodeInfo{}, false, false},
	} {
		n, whole, err := kube.ParseNodeID(c.id)
		if (err == nil) != c.ok || whole != c.whole || c.ok && !reflect.DeepEqual(n, c.node) {
			t.Errorf("%q: %v, %v, %v", c.id, n, whole, err)
		}
	}
}

func FuzzNodeID(f *testing.F) {
	for _, s := range []string{"u", `{"uuid":"u","iqns":["a"]}`, "{", "", `{"uuid":""}`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		if n, _, err := kube.ParseNodeID(id); err == nil && n.UUID == "" {
			t.Errorf("%q is a node without uuid", id)
		}
	})
}

func TestMemory(t *testing.T) {
	ctx := t.Context()
	var m kube.Memory
	missing := func(err error) {
		t.Helper()
		if !errors.Is(err, kube.ErrNotFound) {
			t.Errorf("got %v, want not found", err)
		}
	}
	_, err := m.NodeInfo(ctx, "u1")
	missing(err)
	_, err = m.Claim(ctx, "1")
	missing(err)
	_, err = m.ClaimNamed(ctx, "ns", "c")
	missing(err)
	_, err = m.Secret(ctx, "ns", "s")
	missing(err)
	if err := m.PutNodeInfo(ctx, kube.NodeInfo{Name: "n"}); err == nil {
		t.Error("a node without uuid")
	}
	for _, n := range []kube.NodeInfo{{Name: "b", UUID: "u2"}, {Name: "a", UUID: "u1"}, {Name: "a", UUID: "u3"}} { // the last is a new uuid
		if err := m.PutNodeInfo(ctx, n); err != nil {
			t.Error(err)
		}
	}
	_, err = m.NodeInfo(ctx, "u1")
	missing(err)
	if ns, err := m.NodeInfos(ctx); err != nil || len(ns) != 2 || ns[0].UUID != "u3" {
		t.Errorf("%v, %v", ns, err)
	}
	for range 2 {
		if err := m.DeleteNodeInfo(ctx, "a"); err != nil {
			t.Error(err)
		}
	}
	_, err = m.NodeInfo(ctx, "u3")
	missing(err)
	m.PutClaim(kube.Claim{UID: "1", Namespace: "ns", Name: "c", Volume: "v"})
	if c, err := m.ClaimNamed(ctx, "ns", "c"); err != nil || c.Volume != "v" {
		t.Errorf("%v, %v", c, err)
	}
	m.PutSecret("ns", "s", map[string]string{"a": "b"})
	if s, err := m.Secret(ctx, "ns", "s"); err != nil || s["a"] != "b" {
		t.Errorf("%v, %v", s, err)
	}
}
