package kubeletsim_test

import (
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
)

func serveOn(s *grpc.Server, l any) { s.Serve(l.(net.Listener)) }

func TestLifeOfAPod(t *testing.T) {
	for _, c := range []struct {
		name  string
		block bool
		path  string
	}{{"filesystem", false, "/data/file"}, {"block", true, "/dev/xvda"}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.up()
				var opts []volOption
				if c.block {
					opts = append(opts, asBlock)
				}
				r.volume("v1", opts...)
				bound := time.Now()
				r.create(pod("p1", "v1", c.block))
				r.running("p1")
				if d := time.Since(bound); d > 10*time.Second {
					t.Errorf("running after %v, volumesInUse is posted each 10 s", d)
				}
				if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", c.path, 0, []byte("hello"), true); err != nil {
					t.Fatal(err)
				}
				got, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", c.path, 0, 5)
				if err != nil || string(got) != "hello" {
					t.Fatalf("read %q, %v", got, err)
				}
				ended := time.Now()
				r.deletePod("p1")
				r.until("pod gone", func() bool { return r.phase("p1") == "" })
				if d := time.Since(ended); d > time.Second {
					t.Errorf("gone after %v", d)
				}
				r.clean()
				want := []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
				if got := r.driver.order(); !slices.Equal(got, want) {
					t.Errorf("calls %v, want %v", got, want)
				}
			})
		})
	}
}
