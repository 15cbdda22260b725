package csp_test

import (
	"fmt"
	"testing"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func TestGroups(t *testing.T) {
	r := newRig(t)
	const group = "group-11111111-2222-3333-4444-555555555555"
	r.refused(404, "not found", "GET", "/volume_groups/"+group, "")
	r.refused(400, "latency_goal", "POST", "/volume_groups", `{"name":"`+group+`","config":{"priority":"normal","ioMinGoal":"300","ioMaxLimit":"10000","bwMinGoalKb":"3000","bwMaxLimitKb":"30000","latencyGoal":"soon"}}`)
	r.refused(400, "bw_min_goal_kb", "POST", "/volume_groups", `{"name":"`+group+`","config":{"priority":"normal"}}`)
	g := r.do(200, "POST", "/volume_groups", `{"name":"`+group+`","description":"d","config":{"priority":"normal","ioMinGoal":"300","ioMaxLimit":"10000","bwMinGoalKb":"3000","bwMaxLimitKb":"30000","latencyGoal":"300ms"}}`)
	if g["id"] != group || g["description"] != "d" || len(g["volumes"].([]any)) != 0 {
		t.Errorf("group is %v", g)
	}
	r.refused(409, "already exists", "POST", "/volume_groups", `{"name":"`+group+`"}`)
	var set string
	r.arrays[0].with(func(a *array.Array) {
		if all := a.VolumeSets(); len(all) != 1 {
			t.Fatalf("sets are %v", all)
		} else if set = all[0].Name; len(set) > 27 {
			t.Errorf("set is %q", set)
		}
		if q, err := a.Rule(set); err != nil || q.IOMaxLimit != 10000 || q.LatencyGoal != 300 || q.Priority != 2 {
			t.Errorf("rule is %v %v", q, err)
		}
	})
	for i := range 2 {
		r.volume(fmt.Sprint("v", i), `{"cpg":"cpg1"}`)
		if v := r.do(200, "PUT", fmt.Sprint("/volumes/v", i), `{"volume_group_id":"`+group+`"}`); v["volume_group_id"] != group {
			t.Errorf("volume is %v", v)
		}
	}
	r.refused(404, "volume group", "PUT", "/volumes/v0", `{"volume_group_id":"other"}`)
	if all := r.all("/volume_groups?name=" + group); len(all) != 1 || len(all[0]["volumes"].([]any)) != 2 {
		t.Errorf("groups are %v", all)
	}
	r.refused(409, "2 volumes", "DELETE", "/volume_groups/"+group, "")

	const snaps = "snapshot-group-11111111-2222-3333-4444-555555555555"
	sg := r.do(200, "POST", "/snapshot_groups", `{"name":"`+snaps+`","volume_group_id":"`+group+`","config":{"read_only":"true"}}`)
	all := sg["snapshots"].([]any)
	if sg["id"] != snaps || sg["volume_group_id"] != group || len(all) != 2 {
		t.Fatalf("snapshot group is %v", sg)
	}
	one := all[1].(map[string]any)
	if one["volume_id"] != "v1" || one["ready_to_use"] != true {
		t.Errorf("snapshot is %v", one)
	}
	r.refused(409, "already exists", "POST", "/snapshot_groups", `{"name":"`+snaps+`","volume_group_id":"`+group+`"}`)
	if x := r.do(200, "GET", "/snapshots/"+one["id"].(string), ""); x["volume_id"] != "v1" {
		t.Errorf("snapshot is %v", x)
	}
	if x := r.all("/snapshots?volume_id=v1"); len(x) != 1 || x[0]["id"] != one["id"] {
		t.Errorf("snapshots of the volume are %v", x)
	}
	if x := r.all("/snapshot_groups?volume_group_id=" + group); len(x) != 1 {
		t.Errorf("snapshot groups are %v", x)
	}
	if x := r.all("/snapshot_groups?volume_group_id=other"); len(x) != 0 {
		t.Errorf("snapshot groups of another are %v", x)
	}
	r.do(204, "DELETE", "/snapshots/"+one["id"].(string), "")
	r.do(204, "DELETE", "/snapshot_groups/"+snaps, "")
	r.refused(404, "not found", "GET", "/snapshot_groups/"+snaps, "")
	for i := range 2 {
		r.do(204, "DELETE", fmt.Sprintf("/volumes/v%d?force=false", i), "")
	}
	r.do(204, "DELETE", "/volume_groups/"+group, "")
	r.arrays[0].with(func(a *array.Array) {
		if n := len(a.VolumeSets()) + len(a.Rules()) + len(a.Volumes()); n != 0 {
			t.Errorf("%d things stay", n)
		}
	})
}

func TestPartners(t *testing.T) {
	r := newRig(t, pair)
	if all := r.all("/replication_partners"); len(all) != 1 || all[0]["name"] != "array2" || all[0]["is_alive"] != true {
		t.Errorf("partners are %v", all)
	}
	r.refused(404, "not found", "GET", "/replication_partners?name=other", "")
	if all := r.all("/replication_partners?name=array2"); len(all) != 1 {
		t.Errorf("partners are %v", all)
	}
}

// The provider died between a group's set and its rule.
func TestGroupThatWasMadeHalfway(t *testing.T) {
	r := newRig(t)
	const group = `{"name":"g","config":{"priority":"high","ioMinGoal":"1","ioMaxLimit":"2","bwMinGoalKb":"3","bwMaxLimitKb":"4","latencyGoal":"5ms"}}`
	rule := r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "POST /qos", Do: fault.Drop()})
	r.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "DELETE /volumesets/{name}", Do: fault.Drop()})
	r.refused(500, "does not answer", "POST", "/volume_groups", group)
	r.in.Plan.Disarm(rule)
	r.refused(409, "already exists", "POST", "/volume_groups", `{"name":"g"}`)
	r.do(200, "POST", "/volume_groups", group)
	r.refused(409, "already exists", "POST", "/volume_groups", group)
	r.arrays[0].with(func(a *array.Array) {
		if q, err := a.Rule("g"); err != nil || q.BwMaxLimitKB != 4 {
			t.Errorf("rule is %v %v", q, err)
		}
	})
}
