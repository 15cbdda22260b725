package csp_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/ledger"
)

func host(name, uuid string, iqns ...string) string {
	q := make([]string, len(iqns))
	for i, n := range iqns {
		q[i] = fmt.Sprintf("%q", n)
	}
	return fmt.Sprintf(`{"name":%q,"uuid":%q,"iqns":[%s],"networks":null,"wwpns":null,"access_protocol":"iscsi"}`, name, uuid, strings.Join(q, ","))
}

func TestHosts(t *testing.T) {
	r := newRig(t)
	hosts := func() (out []array.Host) {
		r.arrays[0].with(func(a *array.Array) { out = a.Hosts() })
		return out
	}
	r.do(200, "POST", "/hosts", host("worker-with-a-very-long-name-7.example.com", "u1", "iqn.a:1"))
	if all := hosts(); len(all) != 1 || all[0].Name != "iqn-worker-with-a-very-long-nam" {
		t.Fatalf("hosts are %v", all)
	}
	// Another node whose name is the same at first.
	r.do(200, "POST", "/hosts", host("worker-with-a-very-long-name-8.example.com", "u2", "iqn.a:2"))
	if all := hosts(); len(all) != 2 || len(all[1].Name) > 31 || !strings.HasPrefix(all[1].Name, "iqn-u2.") {
		t.Errorf("hosts are %v", all)
	}
	// Initiators come and go.
	r.do(200, "POST", "/hosts", host("worker-with-a-very-long-name-7.example.com", "u1", "IQN.a:3", "iqn.a:4"))
	if n := hosts()[0].ISCSINames; len(n) != 2 || n[0] != "iqn.a:3" || n[1] != "iqn.a:4" {
		t.Errorf("initiators are %v", n)
	}
	// One that another node has.
	r.refused(409, "code 73", "POST", "/hosts", host("n3", "u3", "iqn.a:2"))
	r.refused(409, "code 73", "POST", "/hosts", host("n1", "u1", "iqn.a:2", "iqn.a:4"))
	r.refused(400, "no initiators", "POST", "/hosts", host("n4", "u4"))
	r.refused(400, "uuid", "POST", "/hosts", host("n4", "", "iqn.a:9"))
	r.refused(400, "name", "POST", "/hosts", host("", "u4", "iqn.a:9"))
	for _, bad := range []string{"a:9", "iqn.", "iqn.a b", "iqn." + strings.Repeat("a", 220)} {
		r.refused(400, "iqns", "POST", "/hosts", host("n4", "u4", bad))
	}
	r.refused(400, "wwpns", "POST", "/hosts", `{"name":"n4","uuid":"u4","wwpns":["10000000c9a1b2c"]}`)
	r.refused(400, "nqns", "POST", "/hosts", `{"name":"n4","uuid":"u4","nqns":["iqn.a"]}`)
	r.refused(400, "access_protocol", "POST", "/hosts", `{"name":"n4","uuid":"u4","access_protocol":"scsi"}`)

	// One that an administrator has made is taken.
	r.arrays[0].with(func(a *array.Array) {
		if _, err := a.CreateHost(time.Now(), array.HostSpec{Name: "byhand", ISCSINames: []string{"iqn.a:5"}}); err != nil {
			t.Error(err)
		}
	})
	r.do(200, "POST", "/hosts", host("n5", "u5", "iqn.a:5"))
	r.volume("v", `{"cpg":"cpg1"}`)
	r.do(200, "PUT", "/volumes/v/actions/publish", `{"host_uuid":"u5"}`)
	if all := r.arrays[0].vluns("v"); len(all) != 4 || all[0].Host != "byhand" {
		t.Errorf("exports are %v", all)
	}
	r.refused(409, "code 26", "DELETE", "/hosts?uuid=u5", "")
	r.do(204, "PUT", "/volumes/v/actions/unpublish", `{"host_uuid":"u5"}`)
	r.do(204, "DELETE", "/hosts?uuid=u1", "")
	r.do(204, "DELETE", "/hosts/u2", "")
	r.do(204, "DELETE", "/hosts/u2", "")
	if all := hosts(); len(all) != 0 {
		t.Errorf("hosts that stay: %v", all)
	}
}

// A host is deleted with its last export. One that goes between the driver's
// two calls is made again.
func TestHostThatGoesMeanwhileIsMadeAgain(t *testing.T) {
	r := newRig(t)
	r.volume("v", `{"cpg":"cpg1"}`)
	r.do(200, "POST", "/hosts", host("n1", "u1", "iqn.a:1"))
	r.arrays[0].with(func(a *array.Array) {
		if err := a.DeleteHost(time.Now(), "iqn-n1"); err != nil {
			t.Error(err)
		}
	})
	r.do(200, "PUT", "/volumes/v/actions/publish", `{"host_uuid":"u1","access_protocol":"iscsi"}`)
	if all := r.arrays[0].vluns("v"); len(all) != 4 {
		t.Errorf("exports are %v", all)
	}
	r.start() // after which the host is found by its mark
	r.token = ""
	r.do(200, "PUT", "/volumes/v/actions/publish", `{"host_uuid":"u1","access_protocol":"iscsi"}`)
	if n := len(r.arrays[0].vluns("v")); n != 4 {
		t.Errorf("%d exports", n)
	}
	r.start()
	r.token = ""
	r.do(204, "PUT", "/volumes/v/actions/unpublish", `{"host_uuid":"u1"}`)
	r.refused(404, "host u1 not found", "PUT", "/volumes/v/actions/publish", `{"host_uuid":"u1","access_protocol":"iscsi"}`)
}

// A hundred pods at once: each volume has its exports once, the node its host
// once, and no LUN is two volumes'.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t)
	r.login()
	const n = 40
	var wg sync.WaitGroup
	luns := make([]float64, n)
	for i := range n {
		wg.Go(func() {
			v := fmt.Sprint("v", i)
			r.volume(v, `{"cpg":"cpg1"}`)
			for range 2 { // the attacher calls again
				r.do(200, "POST", "/hosts", host("n1", "u1", "iqn.a:1"))
				p := r.do(200, "PUT", "/volumes/"+v+"/actions/publish", `{"host_uuid":"u1","access_protocol":"iscsi"}`)
				luns[i] = p["lun_id"].(float64)
			}
		})
	}
	wg.Wait()
	seen := map[float64]bool{}
	for i := range n {
		if seen[luns[i]] || luns[i] >= n {
			t.Errorf("volume %d has LUN %v", i, luns[i])
		}
		seen[luns[i]] = true
		if k := len(r.arrays[0].vluns(fmt.Sprint("v", i))); k != 4 {
			t.Errorf("volume %d has %d exports", i, k)
		}
	}
	if k := r.count(ledger.WSAPI, "POST /hosts"); k != 1 {
		t.Errorf("%d hosts were made", k)
	}
	for i := range n {
		wg.Go(func() {
			r.do(204, "PUT", fmt.Sprintf("/volumes/v%d/actions/unpublish", i), `{"host_uuid":"u1"}`)
			r.do(204, "DELETE", fmt.Sprintf("/volumes/v%d", i), "")
		})
	}
	wg.Wait()
	r.arrays[0].with(func(a *array.Array) {
		if k := len(a.Hosts()) + len(a.Volumes()) + len(a.VLUNs()); k != 0 {
			t.Errorf("%d things stay", k)
		}
	})
	var max int
	r.arrays[0].with(func(a *array.Array) { max = len(a.Sessions()) })
	if max > 4 {
		t.Errorf("%d sessions", max)
	}
}
