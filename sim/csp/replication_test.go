package csp_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func withPair(mode string) option {
	return func(s *setup) {
		pair(s)
		s.csp.ReplicationDevices = map[string]csp.ReplicationDevice{"r1": {TargetName: "array2", TargetCPG: "cpg1", TargetMode: mode}}
	}
}

// synced waits until the group of the first array has copied all.
func (r *rig) synced(group string) {
	r.t.Helper()
	end := time.Now().Add(5 * time.Second)
	for {
		done := false
		r.arrays[0].with(func(a *array.Array) {
			a.Tick(time.Now())
			g, err := a.Group(group)
			done = err == nil && g.State == array.GroupIsStarted
			for _, v := range g.Volumes {
				done = done && v.State == array.Synced
			}
		})
		if done {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("the group is not synced\n%s", ledger.Text(r.in.Ledger.Entries()))
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPeerPersistence(t *testing.T) {
	r := newRig(t, withPair("sync"))
	const cfg = `{"access_protocol":"iscsi","cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1"}`
	r.refused(400, "replication_devices", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"remote_copy_group":"rcg1"}}`)
	r.refused(400, "replication_devices", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"remote_copy_group":"rcg1","replication_devices":"r9"}}`)
	r.volume(pvc, cfg)
	r.volume("v2", cfg) // the group stops for it, and starts again
	r.synced("rcg1")
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	publish := `{"host_uuid":"` + uuid + `","access_protocol":"iscsi"}`
	r.do(200, "PUT", "/volumes/v2/actions/publish", publish)
	p := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	peers := p["PeerArrayDetails"].([]any)
	one := peers[0].(map[string]any)
	if len(peers) != 1 || one["lun_id"] != 1.0 || len(one["target_names"].([]any)) != 4 || len(one["discovery_ips"].([]any)) != 4 {
		t.Errorf("peers are %v", peers)
	}
	for i, a := range r.arrays {
		all := a.vluns(vv)
		if len(all) != 4 || strings.ToLower(all[0].WWN) != p["serial_number"] || all[0].Host != "iqn-node-1" {
			t.Errorf("array %d has %v", i, all)
		}
	}
	v := r.do(200, "PUT", "/volumes/"+pvc, `{"size":2147483648,"volume_group_id":""}`)
	for i, a := range r.arrays {
		if n := a.volumes()[0].SizeMiB; n != 2048 {
			t.Errorf("array %d: expanded to %d MiB, %v", i, n, v)
		}
	}
	r.synced("rcg1")

	// While the roles have changed nothing goes.
	r.arrays[0].with(func(a *array.Array) {
		if err := a.Switchover(time.Now(), "rcg1"); err != nil {
			t.Error(err)
		}
	})
	r.refused(500, "role of remote copy group rcg1", "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	r.refused(500, "role of remote copy group rcg1", "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	r.arrays[1].with(func(b *array.Array) {
		if err := b.Switchover(time.Now(), b.Groups()[0].Name); err != nil {
			t.Error(err)
		}
	})

	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	r.do(204, "PUT", "/volumes/v2/actions/unpublish", publish)
	for i, a := range r.arrays {
		if all := a.vluns(vv); len(all) != 0 {
			t.Errorf("array %d has %v", i, all)
		}
		a.with(func(a *array.Array) {
			if n := len(a.Hosts()); n != 0 {
				t.Errorf("array %d has %d hosts", i, n)
			}
		})
	}
	r.do(204, "DELETE", "/volumes/"+pvc, "")
	r.synced("rcg1")
	r.do(204, "DELETE", "/volumes/v2", "")
	for i, a := range r.arrays {
		if all := a.volumes(); len(all) != 0 {
			t.Errorf("array %d has %v", i, all)
		}
	}
}

// What the other array has is old while the group does not copy: no node may
// see it.
// A volume whose deletion took it out of its group and did not hear of it is
// deleted, on both arrays.
func TestDeleteOfAPairWithALostAnswer(t *testing.T) {
	for _, action := range []string{`"action":4`, `"action":2`} { // the group stops; the volume leaves it
		r := newRig(t, withPair("sync"), withCSP(func(c *csp.Config) { c.Backoff = []time.Duration{time.Millisecond, time.Millisecond} }))
		r.volume(pvc, `{"access_protocol":"iscsi","cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1"}`)
		r.synced("rcg1")
		rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "PUT /remotecopygroups/{name}", Phase: fault.After, Nth: 1, Do: fault.Drop(),
			Match: func(c fault.Call) bool { return strings.Contains(c.Request, action) }})
		r.do(204, "DELETE", "/volumes/"+pvc, "")
		if rule.Fired() != 1 {
			t.Errorf("%s: the fault fired %d times", action, rule.Fired())
		}
		for i, a := range r.arrays {
			if all := a.volumes(); len(all) != 0 {
				t.Errorf("%s: array %d has %v", action, i, all)
			}
		}
	}
}

// What an array does not have besides what the request is about is no 404.
func TestMissingGroupIsNotAMissingVolume(t *testing.T) {
	r := newRig(t, withPair("sync"))
	r.volume(pvc, `{"access_protocol":"iscsi","cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1"}`)
	r.synced("rcg1")
	r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "PUT /remotecopygroups/{name}", Do: fault.Error(&array.Error{Kind: array.GroupNotInGroup})})
	r.refused(500, "9056", "DELETE", "/volumes/"+pvc, "")
}

func TestPeerThatDoesNotFollowIsNotPublished(t *testing.T) {
	r := newRig(t, withPair("sync"))
	r.volume(pvc, `{"access_protocol":"fc","cpg":"cpg1","one_rcg_per_pvc":"true","replication_devices":"r1"}`)
	r.arrays[0].with(func(a *array.Array) {
		if _, err := a.StopGroup(time.Now(), a.Groups()[0].Name); err != nil {
			t.Error(err)
		}
	})
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "fc"))
	publish := `{"host_uuid":"` + uuid + `","access_protocol":"fc"}`
	p := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	if _, some := p["PeerArrayDetails"]; some || len(r.arrays[1].vluns(vv)) != 0 {
		t.Errorf("published as %v", p)
	}
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	r.do(204, "DELETE", "/volumes/"+pvc, "")
	r.arrays[0].with(func(a *array.Array) {
		if all := a.Groups(); len(all) != 0 {
			t.Errorf("groups that stay: %v", all)
		}
	})
}

// TestBatch: volumes that are asked for within the window join their group
// together, which stops once, and one that can't is alone in it.
func TestBatch(t *testing.T) {
	r := newRig(t, withPair("sync"), withCSP(func(c *csp.Config) { c.BatchWindow = 300 * time.Millisecond }))
	const cfg = `{"cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1","allow_batch_replicated_volume_creation":"true"}`
	r.volume("v0", cfg)
	r.synced("rcg1")
	// The other array has a volume of the name of one.
	r.arrays[1].with(func(a *array.Array) {
		if _, err := a.CreateVolume(time.Now(), array.VolumeSpec{Name: "v3", CPG: "cpg1", SizeMiB: 256, Provisioning: array.Thin}); err != nil {
			t.Error(err)
		}
	})
	stops := func() int {
		return len(r.in.Ledger.Entries(ledger.OnHop(ledger.WSAPI, "PUT /remotecopygroups/{name}"), func(e ledger.Entry) bool { return strings.Contains(e.Request, `"action":4`) }))
	}
	before := stops()
	var all sync.WaitGroup
	for i := 1; i <= 4; i++ {
		all.Go(func() {
			code, body, err := r.raw("POST", "/volumes", fmt.Sprintf(`{"name":"v%d","size":1073741824,"config":%s}`, i, cfg))
			if want := map[bool]int{false: 200, true: 500}[i == 3]; err != nil || code != want && !(i == 3 && code >= 400) {
				t.Errorf("v%d: %d %s %v", i, code, body, err)
			}
		})
	}
	all.Wait()
	if n := stops() - before; n != 1 {
		t.Errorf("the group stopped %d times", n)
	}
	r.synced("rcg1")
	r.arrays[0].with(func(a *array.Array) {
		if g, _ := a.Group("rcg1"); len(g.Volumes) != 4 {
			t.Errorf("group has %v", g.Volumes)
		}
	})
}

func TestPeriodicReplication(t *testing.T) {
	r := newRig(t, withPair("periodic"))
	r.refused(400, "periodic_replication_interval", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"one_rcg_per_pvc":"true","replication_devices":"r1","periodic_replication_interval":"14"}}`)
	r.volume(pvc, `{"cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1","periodic_replication_interval":"300"}`)
	r.arrays[0].with(func(a *array.Array) {
		if g, err := a.Group("rcg1"); err != nil || g.Period != 300 || g.Mode != array.Periodic || g.State != array.GroupIsStarted {
			t.Errorf("group is %v %v", g, err)
		}
	})
}

// TestActivePeerPersistence: nodes use both arrays, and while the one that made a
// volume is lost it is published by the other, and nothing else is done.
func TestActivePeerPersistence(t *testing.T) {
	r := newRig(t, withPair("sync"))
	const cfg = `{"access_protocol":"iscsi","cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1","replication_policy":"active"}`
	r.refused(400, "replication_policy", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"replication_devices":"r1","remote_copy_group":"rcg1","replication_policy":"passive"}}`)
	r.refused(400, "replication_devices", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"replication_policy":"active"}}`)
	r.volume(pvc, cfg)
	r.synced("rcg1")
	there := ""
	r.arrays[1].with(func(a *array.Array) { there = a.Groups()[0].Name })
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	publish := `{"host_uuid":"` + uuid + `","access_protocol":"iscsi"}`
	p := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	if len(p["PeerArrayDetails"].([]any)) != 1 {
		t.Errorf("published as %v", p)
	}
	// The roles of arrays that are both active are nothing to nodes.
	r.arrays[0].with(func(a *array.Array) {
		if err := a.Switchover(time.Now(), "rcg1"); err != nil {
			t.Error(err)
		}
	})
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	r.arrays[1].with(func(a *array.Array) {
		if err := a.Switchover(time.Now(), there); err != nil {
			t.Error(err)
		}
	})
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)

	lost := func(yes bool) {
		r.arrays[0].api.SetReachable(!yes)
		r.arrays[1].with(func(a *array.Array) {
			var err error
			if yes {
				_, err = a.Lost(time.Now(), "array1")
			} else {
				_, err = a.Connect(time.Now(), "array1", true)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	lost(true)
	r.s.ForgetTokens() // as after a restart: the other array knows the user
	r.login()
	r.do(200, "GET", "/volumes/"+pvc, "")
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	q := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	if q["serial_number"] != p["serial_number"] || q["PeerArrayDetails"] != nil || fmt.Sprint(q["target_names"]) == fmt.Sprint(p["target_names"]) || len(r.arrays[1].vluns(vv)) != 4 {
		t.Errorf("published as %v", q)
	}
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish)
	r.refused(500, "", "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	r.refused(500, "", "POST", "/volumes", `{"name":"v","size":1073741824,"config":{"cpg":"cpg1"}}`)
	r.refused(500, "", "DELETE", "/volumes/"+pvc, "")
	r.refused(500, "", "PUT", "/volumes/other/actions/publish", publish)
	lost(false)
	r.arrays[1].with(func(a *array.Array) {
		if _, _, err := a.Recover(time.Now(), there); err != nil {
			t.Error(err)
		}
	})
	r.synced("rcg1")
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", publish)
	for i, a := range r.arrays {
		if all := a.vluns(vv); len(all) != 0 {
			t.Errorf("array %d has %v", i, all)
		}
	}
}
