package vsphere_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/transport"
	"github.com/csilab/csilab/sim/vcenter"
)

// A life in virtual time: tasks take minutes, the test takes none, and
// nothing is left when it ends.
func TestBubble(t *testing.T) {
	for _, tls := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			net := transport.NewMemory()
			l, err := net.Listen("tcp", "10.0.0.1:443")
			if err != nil {
				t.Fatal(err)
			}
			vc, err := vcenter.New(ctx, vcenter.Config{Seed: 1, Nodes: []vcenter.Node{{Name: "node-1"}, {Name: "node-2"}}, Listener: l, TLS: tls,
				TaskLatency: map[string]time.Duration{"CnsCreateVolume": 10 * time.Minute, "CnsAttachVolume": time.Minute}})
			if err != nil {
				t.Fatal(err)
			}
			conf, err := vsphere.ParseConfig([]byte(vc.Conf("cluster-1")), nil)
			if err != nil {
				t.Fatal(err)
			}
			if !tls {
				conf.VCenter.Scheme = "http"
			}
			b, err := vsphere.New(ctx, vsphere.Options{Config: conf, Dial: net.DialContext, Records: record.NewMemory()})
			if err != nil {
				t.Fatal(err)
			}
			r := &rig{t: t, ctx: ctx, vc: vc, backend: b, ControllerServer: controller.New(controller.Config{Backend: b})}
			short, done := context.WithTimeout(ctx, 5*time.Minute)
			_, err = r.CreateVolume(short, createRequest("pvc-1", 1<<30))
			done()
			want(t, err, codes.DeadlineExceeded)
			vol := r.create("pvc-1")
			if _, err := r.publish(vol, vc.VMUUID("node-1")); err != nil {
				t.Fatal(err)
			}
			if err := r.unpublish(vol, vc.VMUUID("node-1")); err != nil {
				t.Fatal(err)
			}
			if err := r.delete(vol); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d < 11*time.Minute || d > 12*time.Minute {
				t.Errorf("took %s of virtual time, want 11 minutes", d)
			}
			if err := b.Close(ctx); err != nil {
				t.Error(err)
			}
			vc.Close()
		})
	}
}
