package wsapi

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/array"
)

func refusals(r *rig, all []struct {
	status, code       int
	method, path, body string
}) {
	r.t.Helper()
	for _, x := range all {
		r.refused(x.status, x.code, x.method, x.path, x.body)
	}
}

func code(k array.Kind) int { return k.Wire().Code }

// TestSetOfVolumesIsExported: each volume of a set is at a LUN of its own, also
// one that joins, and what leaves is gone.
func TestSetOfVolumesIsExported(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	for _, n := range []string{"a", "b", "c", "d"} {
		r.want(201, "POST", "/volumes", `{"name":"`+n+`","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
	}
	r.want(201, "POST", "/hosts", `{"name":"h","iSCSINames":["iqn.a:b"]}`)
	r.want(201, "POST", "/hosts", `{"name":"k","iSCSINames":["iqn.a:c"]}`)
	r.want(201, "POST", "/hostsets", `{"name":"hs","setmembers":["k"]}`)
	r.want(201, "POST", "/volumesets", `{"name":"vs","setmembers":["a","b"]}`)
	r.want(201, "POST", "/volumesets", `{"name":"none"}`)
	r.want(201, "POST", "/vluns", `{"volumeName":"d","lun":8,"hostname":"h"}`)
	refusals(r, []struct {
		status, code       int
		method, path, body string
	}{
		{404, 102, "POST", "/vluns", `{"volumeName":"set:nope","lun":7,"hostname":"h"}`},
		{404, code(array.EmptySet), "POST", "/vluns", `{"volumeName":"set:none","lun":7,"hostname":"h"}`},
		{409, 18, "POST", "/vluns", `{"volumeName":"set:vs","lun":7,"hostname":"h"}`}, // d is at 8
	})
	if n := r.want(200, "GET", "/vluns", "")["total"]; n != 1.0 {
		t.Errorf("%v exports after a refused one of a set", n)
	}
	if got := r.want(201, "POST", "/vluns", `{"volumeName":"set:vs","lun":7,"hostname":"h","autoLun":true}`)["Location"]; got != "/api/v1/vluns/set:vs,7,h" {
		t.Errorf("Location is %v", got)
	}
	r.want(201, "POST", "/vluns", `{"volumeName":"set:vs","lun":0,"hostname":"set:hs"}`)
	luns := func(host string) string {
		t.Helper()
		r.s.cfg.Lock.Lock()
		defer r.s.cfg.Lock.Unlock()
		out := ""
		for _, x := range r.a.VLUNsTo(host) {
			out += fmt.Sprintf("%s@%d ", x.Volume, x.LUN)
		}
		return out
	}
	if got := luns("h") + luns("set:hs"); got != "a@7 d@8 b@9 a@0 b@1 " {
		t.Errorf("exports are %s", got)
	}
	r.want(200, "PUT", "/volumesets/vs", `{"action":1,"setmembers":["c"]}`)
	if got := luns("h") + luns("set:hs"); got != "a@7 d@8 b@9 c@10 a@0 b@1 c@2 " {
		t.Errorf("after one joined: %s", got)
	}
	r.want(200, "PUT", "/volumesets/vs", `{"action":2,"setmembers":["a"]}`)
	r.want(200, "DELETE", "/volumes/a", "")
	if got := luns("h") + luns("set:hs"); got != "d@8 b@9 c@10 b@1 c@2 " {
		t.Errorf("after one left: %s", got)
	}
	r.want(200, "PUT", "/volumesets/vs", `{"newName":"renamed"}`)
	if x := r.want(200, "GET", "/vluns/set:renamed,7,h", ""); x["volumeName"] != "set:renamed" || x["type"] != 3.0 || x["volumeWWN"] != nil {
		t.Errorf("export is %v", x)
	}
	if all := members(r.want(200, "GET", "/vluns"+q("hostname EQ h"), "")); len(all) != 2 { // d and the set
		t.Errorf("exports to h are %v", all)
	}
	refusals(r, []struct {
		status, code       int
		method, path, body string
	}{
		{409, 18, "POST", "/vluns", `{"volumeName":"set:renamed","lun":20,"hostname":"h"}`},
		{409, 18, "POST", "/vluns", `{"volumeName":"b","lun":9,"hostname":"h"}`},
		{409, 26, "PUT", "/volumesets/renamed", `{"action":2,"setmembers":["b","c"]}`},
		{409, 26, "DELETE", "/volumesets/renamed", ""},
		{409, 26, "DELETE", "/hosts/h", ""},
		{409, 26, "DELETE", "/volumes/b", ""},
		{404, 19, "DELETE", "/vluns/b,9,h", ""}, // it goes with the set
		{404, 19, "DELETE", "/vluns/set:renamed,8,h", ""},
	})
	r.want(200, "DELETE", "/vluns/set:renamed,7,h", "")
	r.want(200, "DELETE", "/vluns/set:renamed,0,set:hs", "")
	if got := luns("h") + luns("set:hs"); got != "d@8 " {
		t.Errorf("at the end: %s", got)
	}
}

func TestFlashCache(t *testing.T) {
	r := newRig(t, array.Config{Family: array.ThreePAR, CapacityMiB: 200 << 10}, Config{})
	refusals(r, []struct {
		status, code       int
		method, path, body string
	}{
		{404, code(array.NonExistentFlash), "GET", "/flashcache", ""},
		{404, code(array.NonExistentFlash), "DELETE", "/flashcache", ""},
		{404, code(array.NonExistentFlash), "PUT", "/system", `{"flashCachePolicy":1}`},
		{400, 40, "POST", "/flashcache", `{}`},
		{400, 43, "POST", "/flashcache", `{"sizeGiB":16}`},
		{400, code(array.FlashSize), "POST", "/flashcache", `{"sizeGiB":65}`},
		{400, 46, "POST", "/flashcache", `{"sizeGiB":64,"mode":0}`},
		{400, 46, "POST", "/flashcache", `{"sizeGiB":64,"RAIDType":"R5"}`},
		{400, 24, "POST", "/flashcache", `{"sizeGiB":256}`},
		{501, 9, "PUT", "/flashcache", `{"sizeGiB":256}`},
		{400, 40, "PUT", "/system", `{}`},
		{400, 46, "PUT", "/system", `{"flashCachePolicy":0}`},
	})
	r.want(201, "POST", "/flashcache", `{"sizeGiB":64,"mode":2,"RAIDType":"R0"}`)
	r.refused(409, code(array.ExistentFlash), "POST", "/flashcache", `{"sizeGiB":64}`)
	if f := r.want(200, "GET", "/flashcache", ""); f["sizeGiB"] != 64.0 || f["mode"] != 2.0 {
		t.Errorf("flash cache is %v", f)
	}
	if c := r.want(200, "GET", "/capacity", "")["allCapacity"].(map[string]any); c["freeMiB"] != 136.0*1024 {
		t.Errorf("capacity is %v", c)
	}
	r.want(200, "PUT", "/system", `{"flashCachePolicy":1}`)
	if s := r.want(200, "GET", "/system", ""); s["flashCachePolicy"] != 1.0 {
		t.Errorf("system is %v", s)
	}
	r.want(201, "POST", "/volumesets", `{"name":"vs","flashCachePolicy":1}`)
	r.want(200, "PUT", "/volumesets/vs", `{"flashCachePolicy":2}`)
	if s := r.want(200, "GET", "/volumesets/vs", ""); s["flashCachePolicy"] != 2.0 {
		t.Errorf("set is %v", s)
	}
	// Over a restart.
	kept := r.a.State()
	again, err := array.New(r.a.Config())
	if err == nil {
		err = again.Restore(kept)
	}
	if f, ferr := again.FlashCache(); err != nil || ferr != nil || f.SizeGiB != 64 || again.FlashPolicy() != array.FlashOn || again.Capacity() != r.a.Capacity() {
		t.Errorf("restored: %v %v %v", f, err, ferr)
	}
	r.want(200, "DELETE", "/flashcache", "")
	if c := r.want(200, "GET", "/capacity", "")["allCapacity"].(map[string]any); c["freeMiB"] != 200.0*1024 {
		t.Errorf("capacity is %v", c)
	}
	p := newRig(t, array.Config{}, Config{})
	p.refused(403, code(array.FlashUnsupported), "POST", "/flashcache", `{"sizeGiB":64}`)
	p.refused(403, code(array.FlashUnsupported), "GET", "/flashcache", "")
}

func TestUsersAndRoles(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	if all := members(r.want(200, "GET", "/users", "")); len(all) != 3 || fmt.Sprint(all[0]) != "map[privileges:[map[domain:all role:super]] username:3paradm]" {
		t.Errorf("users are %v", all)
	}
	if u := r.want(200, "GET", "/users/look", ""); u["username"] != "look" || u["links"] == nil || u["password"] != nil {
		t.Errorf("user is %v", u)
	}
	if all := members(r.want(200, "GET", "/roles", "")); len(all) != 4 {
		t.Errorf("roles are %v", all)
	}
	if x := r.want(200, "GET", "/roles/browse", ""); x["role"] != "browse" || len(x["rightsInfo"].([]any)) != 1 {
		t.Errorf("role is %v", x)
	}
	r.refused(404, code(array.NonExistentUser), "GET", "/users/nope", "")
	r.refused(404, code(array.NonExistentRole), "GET", "/roles/nope", "")
	r.refused(501, 9, "POST", "/users", `{"username":"x"}`)
}

func TestEventsAndReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, array.Config{}, Config{})
		defer r.s.Close()
		time.Sleep(30 * time.Minute)
		r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":512,"tpvv":true}`)
		all := members(r.want(200, "GET", "/eventlog", ""))
		if last := all[len(all)-1]; len(all) < 2 || last["class"] != 2.0 || last["category"] != 1.0 || last["severity"] != 6.0 || last["component"] != 4.0 || last["componentName"] != "v" {
			t.Errorf("events are %v", all)
		}
		if n := members(r.want(200, "GET", "/eventlog/minutes:10", "")); len(n) >= len(all) || len(n) == 0 {
			t.Errorf("of the last minutes: %v", n)
		}
		if x := r.want(200, "GET", "/systemreporter/attime/cpgspacedata/hires;name:cpg1", ""); x["total"] != 1.0 || x["sampleTimeSec"] == nil || members(x)[0]["usedSpaceMiB"] != 0.0 {
			t.Errorf("report is %v", x)
		}
		x := members(r.want(200, "GET", "/systemreporter/vstime/volumespacedata/daily", ""))
		if len(x) != 1 || x[0]["virtualSizeMiB"] != 512.0 || x[0]["sampleTime"] == nil {
			t.Errorf("report is %v", x)
		}
		x = members(r.want(200, "GET", "/systemreporter/vstime/cpgstatistics/daily", "")) // as OpenStack's driver asks
		if len(x) != 1 || x[0]["IO"].(map[string]any)["total"] != 0.0 {
			t.Errorf("report is %v", x)
		}
		if x := r.want(200, "GET", "/systemreporter/attime/portstatistics/hourly;portPos:0:1:1", ""); x["total"] != 1.0 {
			t.Errorf("report is %v", x)
		}
		refusals(r, []struct {
			status, code       int
			method, path, body string
		}{
			{404, 11, "GET", "/eventlog/hours:1", ""},
			{400, 12, "GET", "/eventlog/minutes:0", ""},
			{400, 12, "GET", "/eventlog/minutes:x", ""},
			{501, 9, "GET", "/systemreporter/vstime/cpustatistics/hires", ""},
			{501, 9, "GET", "/systemreporter/vstime/cpgstatistics/hires;diskType:1", ""},
			{501, 9, "GET", "/systemreporter/vstime/cpgstatistics/hires" + q("sampleTime GE 2026"), ""},
			{400, 12, "GET", "/systemreporter/vstime/cpgstatistics/weekly", ""},
			{400, 12, "GET", "/systemreporter/sometime/cpgstatistics/hires", ""},
			{404, 11, "GET", "/systemreporter/vstime/cpgstatistics", ""},
		})
	})
}

// TestMembersGivenTwice are refused wherever they are, and change nothing.
func TestMembersGivenTwice(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	refusals(r, []struct {
		status, code       int
		method, path, body string
	}{
		{400, 12, "POST", "/volumes", `{"name":"a","name":"b","cpg":"cpg1","sizeMiB":256,"tpvv":true}`},
		{400, 12, "POST", "/hosts", `{"name":"h","descriptors":{"os":"a","os":"b"}}`},
		{400, 12, "PUT", "/volumes/a", `{"action":3,"action":4,"sizeMiB":256}`},
		{400, 45, "POST", "/volumes", `{"name":"","cpg":"cpg1","sizeMiB":256,"tpvv":true}`},
		{400, 40, "POST", "/volumes", `{"cpg":"cpg1","sizeMiB":256,"tpvv":true}`},
	})
	if n := len(r.a.Volumes()) + len(r.a.Hosts()); n != 0 {
		t.Errorf("%d objects", n)
	}
}

// TestAsynchronousGroup follows its primary within seconds, between arrays that
// have such groups.
func TestAsynchronousGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lock sync.Mutex
		one := newRig(t, array.Config{Name: "one", Seed: 1, Family: array.ThreePAR}, Config{Lock: &lock})
		two := newRig(t, array.Config{Name: "two", Seed: 2, Family: array.ThreePAR}, Config{Lock: &lock})
		prim := newRig(t, array.Config{Name: "prim", Seed: 3}, Config{Lock: &lock})
		for _, r := range []*rig{one, two, prim} {
			defer r.s.Close()
		}
		lock.Lock()
		err := errors.Join(array.Link(one.a, two.a), array.Link(one.a, prim.a))
		lock.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		links := members(one.want(200, "GET", "/remotecopylinks", ""))
		if len(links) != 4 || links[3]["targetName"] != "two" || links[3]["status"] != 1.0 {
			t.Errorf("links are %v", links)
		}
		if l := one.want(200, "GET", "/remotecopylinks/two:0:3:1", ""); l["targetName"] != "two" || l["address"] == nil {
			t.Errorf("link is %v", l)
		}
		one.refused(404, code(array.NonExistentLink), "GET", "/remotecopylinks/two:0:1:1", "")
		one.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true,"snapCPG":"cpg1"}`)
		make := func(target string, mode int) string {
			return fmt.Sprintf(`{"name":"g%d","targets":[{"targetName":%q,"mode":%d,"userCPG":"cpg1","snapCPG":"cpg1"}],"localUserCPG":"cpg1","localSnapCPG":"cpg1"}`, mode, target, mode)
		}
		one.refused(501, 9, "POST", "/remotecopygroups", make("prim", 4))
		one.refused(400, 46, "POST", "/remotecopygroups", make("two", 5))
		one.want(201, "POST", "/remotecopygroups", make("two", 2))
		if g := one.want(200, "GET", "/remotecopygroups/g2", ""); g["targets"].([]any)[0].(map[string]any)["mode"] != 3.0 { // the old number of periodic
			t.Errorf("group is %v", g)
		}
		one.want(201, "POST", "/remotecopygroups", make("two", 4))
		one.want(200, "PUT", "/remotecopygroups/g4", `{"action":1,"volumeName":"v","volumeAutoCreation":true,"targets":[{"targetName":"two","secVolumeName":"v"}]}`)
		one.refused(400, 44, "PUT", "/remotecopygroups/g4", `{"targets":[{"targetName":"two","syncPeriod":300}]}`)
		one.want(200, "PUT", "/remotecopygroups/g4", `{"action":3}`)
		time.Sleep(time.Minute)
		last := func() string {
			return fmt.Sprint(one.want(200, "GET", "/remotecopygroups/g4", "")["targets"].([]any)[0].(map[string]any)["groupLastSyncTime8601"])
		}
		before := last()
		tasks := one.want(200, "GET", "/tasks", "")["total"]
		time.Sleep(30 * time.Second)
		if after := last(); after <= before {
			t.Errorf("it was up to date at %s and %s", before, after)
		}
		if n := one.want(200, "GET", "/tasks", "")["total"]; n != tasks {
			t.Errorf("%v tasks, before %v", n, tasks)
		}
		one.refused(501, 9, "POST", "/remotecopygroups/g4", `{"action":8}`)
		one.want(200, "PUT", "/remotecopygroups/g4", `{"action":4}`)
	})
}
