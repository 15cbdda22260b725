package node_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csilab/csilab/driver/node"
)

func TestParseTopology(t *testing.T) {
	const zone, region = "topology.csi.vmware.com/k8s-zone", "topology.csi.vmware.com/k8s-region"
	for _, c := range []struct {
		name, data string
		want       map[string]string
		err        string
	}{
		{"as the Downward API writes it", "app=\"csi\"\n" + zone + "=\"zone-a\"\n" + region + "=\"r1\"\n", map[string]string{zone: "zone-a", region: "r1"}, ""},
		{"plain, with comment", "# zone\n\n " + zone + " = zone-a", map[string]string{zone: "zone-a"}, ""},
		{"twice alike", zone + "=a\n" + zone + "=a\n", map[string]string{zone: "a"}, ""},
		{"twice", zone + "=a\n" + zone + "=b\n", nil, "line 2"},
		{"none", "app=\"csi\"\n", nil, "none with topology.csi.vmware.com/"},
		{"empty", "", nil, "no topology key"},
		{"no value", zone + "=\n", nil, `line 1: value of ` + zone + ` is ""`},
		{"not a pair", "zone-a\n", nil, `line 1 is "zone-a"`},
		{"quote", zone + "=\"a\n", nil, "quoted"},
		{"category", "topology.csi.vmware.com/=a\n", nil, "category"},
		{"characters", zone + "=\"a b\"\n", nil, `"a b"`},
		{"too long", zone + "=" + strings.Repeat("a", 64), nil, "63"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := node.ParseTopology(c.data)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
	const label = "topology.kubernetes.io/zone"
	got, err := node.ParseTopology("app=\"csi\"\n"+label+"=\"z\"\n"+region+"=\"r\"\n", label)
	if d := cmp.Diff(map[string]string{label: "z", region: "r"}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	if _, err := node.ParseTopology("app=\"csi\"\n", label); err == nil || !strings.Contains(err.Error(), label) {
		t.Errorf("label missing: %v", err)
	}
	six := ""
	for _, n := range "123456" {
		six += "topology.csi.vmware.com/c" + string(n) + "=a\n"
	}
	if _, err := node.ParseTopology(six); err == nil || !strings.Contains(err.Error(), "at most 5") {
		t.Errorf("six: %v", err)
	}
}

func FuzzParseTopology(f *testing.F) {
	for _, s := range []string{"a=b", "topology.csi.vmware.com/zone=\"z\"\n", "topology.csi.vmware.com/zone=z\ntopology.csi.vmware.com/zone=y", "#", "=", "\"=\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := node.ParseTopology(s)
		if (err == nil) == (len(got) == 0) {
			t.Fatalf("%v, %v", got, err)
		}
		for k, v := range got {
			if !strings.HasPrefix(k, node.TopologyPrefix) || v == "" {
				t.Fatalf("%q=%q", k, v)
			}
		}
	})
}

type files struct{ m sync.Map }

func (f *files) ReadFile(p string) ([]byte, error) {
	if s, ok := f.m.Load(p); ok {
		return []byte(s.(string)), nil
	}
	return nil, fs.ErrNotExist
}

func TestTopologyFileIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const file = "/etc/podinfo/labels"
		f := &files{}
		changed := make(chan struct{})
		watch := func(context.Context, string) (<-chan struct{}, error) { return changed, nil }
		read := node.TopologyFile(f, file, nil, time.Minute, watch)

		start := time.Now()
		if got, err := read(t.Context()); got != nil || !errors.Is(err, fs.ErrNotExist) || time.Since(start) != time.Minute {
			t.Fatalf("%v, %v after %s", got, err, time.Since(start))
		}
		go func() {
			time.Sleep(10*time.Second + time.Millisecond)
			f.m.Store(file, "topology.csi.vmware.com/zone=\"z\"\n")
			changed <- struct{}{}
		}()
		start = time.Now()
		got, err := read(t.Context())
		if err != nil || got["topology.csi.vmware.com/zone"] != "z" || time.Since(start) != 10*time.Second+time.Millisecond {
			t.Fatalf("%v, %v after %s", got, err, time.Since(start))
		}
	})
}
