package csp_test

import (
	"context"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
)

// A host that another version of the provider made, under another name and
// without a word of whose it is, is known by its initiators: from the request,
// from the cluster, or from what a client told before.
func TestUnpublishByInitiators(t *testing.T) {
	for name, c := range map[string]struct {
		hostUUID string
		tell     bool
		cluster  bool
		stays    bool
	}{
		"request": {hostUUID: `"{\"name\":\"n1\",\"uuid\":\"u1\",\"iqns\":[\"IQN.a:1\"]}"`},
		"cluster": {hostUUID: `"u1"`, cluster: true},
		"told":    {hostUUID: `"u1"`, tell: true},
		"nobody":  {hostUUID: `"u1"`, stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, withCSP(func(cfg *csp.Config) {
				if c.cluster {
					cfg.NodeOf = func(_ context.Context, uuid string) (csp.Node, bool) {
						return csp.Node{Name: "n1", UUID: uuid, IQNs: []string{"iqn.a:1"}}, true
					}
				}
			}))
			r.volume("v", `{"cpg":"cpg1"}`)
			if c.tell {
				r.do(200, "POST", "/hosts", host("n1", "u1", "iqn.a:1"))
				r.arrays[0].with(func(a *array.Array) {
					if err := a.DeleteHost(time.Now(), "iqn-n1"); err != nil {
						t.Error(err)
					}
				})
			}
			vv := r.arrays[0].volumes()[0].Name
			r.arrays[0].with(func(a *array.Array) {
				for _, h := range []array.HostSpec{{Name: "n1", ISCSINames: []string{"iqn.a:1"}}, {Name: "other", ISCSINames: []string{"iqn.a:2"}}} {
					if _, err := a.CreateHost(time.Now(), h); err != nil {
						t.Error(err)
					}
					if _, err := a.CreateVLUN(time.Now(), array.VLUNSpec{Volume: vv, Host: h.Name, Auto: true}); err != nil {
						t.Error(err)
					}
				}
			})
			r.do(204, "PUT", "/volumes/v/actions/unpublish", `{"host_uuid":`+c.hostUUID+`}`)
			left := map[string]bool{}
			for _, x := range r.arrays[0].vluns("v") {
				left[x.Host] = true
			}
			if !left["other"] || left["n1"] != c.stays {
				t.Errorf("exports are left to %v", left)
			}
		})
	}
}
