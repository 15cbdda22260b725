package csp_test

import (
	"flag"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/csilab/csilab/sim/array"
)

// Whatever nodes do to volumes at once: a volume has each of its exports once
// and one LUN on a node, no LUN of a node is two volumes', what is published
// last is published, and in the end nothing is left.
func TestPublishingAtOnce(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", "25"); err != nil { // each is some hundred requests
			t.Fatal(err)
		}
		defer flag.Set("rapid.checks", f.DefValue)
	}
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, withArray(func(c *array.Config) { c.Nodes = 1 }))
		defer r.close()
		r.login()
		const volumes, nodes = 3, 2
		sees := rapid.Bool().Draw(rt, "host sees")
		each := 2 // ports
		if sees {
			each = 1
		}
		for v := range volumes {
			r.volume(fmt.Sprint("v", v), fmt.Sprintf(`{"cpg":"cpg1","host_sees_vlun":"%v"}`, sees))
		}
		type step struct{ volume, publish int } // publish: 0 no, 1 yes, 2 only the host
		steps := make([][]step, nodes)
		for n := range steps {
			steps[n] = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
				return step{rapid.IntRange(0, volumes-1).Draw(t, "volume"), rapid.IntRange(0, 2).Draw(t, "publish")}
			}), 1, 6).Draw(rt, fmt.Sprint("node ", n))
		}
		host := func(n int) {
			r.do(200, "POST", "/hosts", host(fmt.Sprint("n", n), fmt.Sprint("u", n), fmt.Sprint("iqn.a:", n)))
		}
		var wg sync.WaitGroup
		for n, all := range steps {
			wg.Go(func() {
				for _, s := range all {
					path := fmt.Sprintf("/volumes/v%d/actions/", s.volume)
					switch s.publish {
					case 0:
						r.do(204, "PUT", path+"unpublish", fmt.Sprintf(`{"host_uuid":"u%d"}`, n))
					case 1: // twice at once, as after a timeout of the caller
						var twice sync.WaitGroup
						host(n)
						for range 2 {
							twice.Go(func() {
								r.do(200, "PUT", path+"publish", fmt.Sprintf(`{"host_uuid":"u%d","access_protocol":"iscsi"}`, n))
							})
						}
						twice.Wait()
					default:
						host(n)
					}
				}
			})
		}
		wg.Wait()
		want := map[string]int{}
		for n, all := range steps {
			last := map[int]bool{}
			for _, s := range all {
				if s.publish < 2 {
					last[s.volume] = s.publish == 1
				}
			}
			for v, is := range last {
				if is {
					want[fmt.Sprintf("v%d iqn-n%d", v, n)] = each
				}
			}
		}
		got := map[string]int{}
		at := map[string]string{} // volume at a LUN of a host
		r.arrays[0].with(func(a *array.Array) {
			for _, x := range a.VLUNs() {
				got[x.Volume+" "+x.Host]++
				k := fmt.Sprint(x.Host, " ", x.LUN)
				if v := at[k]; v != "" && v != x.Volume {
					rt.Errorf("%s has %s and %s", k, v, x.Volume)
				}
				at[k] = x.Volume
			}
		})
		if fmt.Sprint(got) != fmt.Sprint(want) {
			rt.Fatalf("exports are %v, want %v", got, want)
		}
		for v := range volumes {
			for n := range nodes {
				r.do(204, "PUT", fmt.Sprintf("/volumes/v%d/actions/unpublish", v), fmt.Sprintf(`{"host_uuid":"u%d"}`, n))
			}
			r.do(204, "DELETE", fmt.Sprint("/volumes/v", v), "")
		}
		r.arrays[0].with(func(a *array.Array) {
			if n := len(a.VLUNs()) + len(a.Volumes()) + len(a.Hosts()); n != 0 {
				rt.Fatalf("%d things stay", n)
			}
		})
	})
}
