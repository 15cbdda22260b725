package wsapi

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/array"
)

func TestSets(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	for _, n := range []string{"a", "b"} {
		r.want(201, "POST", "/volumes", `{"name":"`+n+`","cpg":"cpg1","sizeMiB":256,"tpvv":true,"snapCPG":"cpg1"}`)
		r.want(201, "POST", "/hosts", `{"name":"`+n+`"}`)
	}
	if got := r.want(201, "POST", "/volumesets", `{"name":"vs","comment":"c","setmembers":["a"]}`)["Location"]; got != "/api/v1/volumesets/vs" {
		t.Errorf("Location is %v", got)
	}
	r.want(200, "PUT", "/volumesets/vs", `{"action":1,"setmembers":["b"]}`)
	if s := r.want(200, "GET", "/volumesets/vs", ""); fmt.Sprint(s["setmembers"]) != "[a b]" || s["qosEnabled"] != false {
		t.Errorf("set is %v", s)
	}
	if got := members(r.want(200, "GET", "/volumesets"+q("setmembers EQ b"), "")); len(got) != 1 {
		t.Errorf("sets are %v", got)
	}
	r.want(201, "POST", "/volumesets/vs", `{"action":"createSnapshot","parameters":{"name":"snap-@vvname@"}}`)
	if v := r.want(200, "GET", "/volumes/snap-a", ""); v["copyOf"] != "a" {
		t.Errorf("snapshot is %v", v)
	}
	r.want(201, "POST", "/volumes", `{"name":"d","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
	r.want(200, "PUT", "/volumesets/vs", `{"action":1,"setmembers":["d"]}`)
	r.want(201, "POST", "/qos", `{"name":"vs","type":1,"ioMaxLimit":100,"latencyGoal":5,"priority":3}`)
	r.want(200, "PUT", "/qos/vvset:vs", `{"ioMaxLimitOP":2,"enable":false}`)
	if q := r.want(200, "GET", "/qos/vvset:vs", ""); q["ioMaxLimit"] != nil || q["latencyGoal"] != 5.0 || q["enabled"] != false || q["priority"] != 3.0 {
		t.Errorf("rule is %v", q)
	}
	r.want(201, "POST", "/hostsets", `{"name":"hs","setmembers":["a","b"]}`)
	if got := r.want(201, "POST", "/vluns", `{"volumeName":"a","lun":3,"hostname":"set:hs"}`)["Location"]; got != "/api/v1/vluns/a,3,set:hs" {
		t.Errorf("Location is %v", got)
	}
	for _, x := range []struct {
		status, code       int
		method, path, body string
	}{
		{404, 102, "GET", "/volumesets/nope", ""},
		{409, 101, "POST", "/volumesets", `{"name":"vs"}`},
		{404, 23, "POST", "/volumesets", `{"name":"vs2","setmembers":["nope"]}`},
		{409, 32, "DELETE", "/volumes/b", ""},
		{409, 34, "DELETE", "/volumes/d", ""},
		{409, array.MemberInSet.Wire().Code, "PUT", "/volumesets/vs", `{"action":1,"setmembers":["a"]}`},
		{404, array.MemberNotInSet.Wire().Code, "PUT", "/volumesets/vs", `{"action":2,"setmembers":["snap-a"]}`},
		{400, 40, "PUT", "/volumesets/vs", `{"setmembers":["a"]}`},
		{400, 40, "PUT", "/volumesets/vs", `{"action":1}`},
		{501, 9, "PUT", "/volumesets/vs", `{"action":3,"setmembers":["a"]}`},
		{400, 46, "PUT", "/volumesets/vs", `{"action":5,"setmembers":["a"]}`},
		{400, 46, "POST", "/volumesets", `{"name":"x","flashCachePolicy":3}`},
		{400, 12, "POST", "/hostsets", `{"name":"x","flashCachePolicy":1}`},
		{501, 9, "POST", "/volumesets/vs", `{"action":"createPhysicalCopy","parameters":{"name":"x"}}`},
		{400, array.NamePattern.Wire().Code, "POST", "/volumesets/vs", `{"action":"createSnapshot","parameters":{"name":"x"}}`},
		{409, array.SetHasQoS.Wire().Code, "DELETE", "/volumesets/vs", ""},
		{400, 114, "POST", "/qos", `{"name":"vs","type":1,"ioMaxLimit":100}`},
		{404, 117, "POST", "/qos", `{"name":"nope","type":1,"ioMaxLimit":100}`},
		{404, 100, "GET", "/qos/vvset:nope", ""},
		{404, 100, "DELETE", "/qos/sys:all_others", ""},
		{400, 43, "PUT", "/qos/vvset:vs", `{"latencyGoal":50001}`},
		{400, 46, "PUT", "/qos/vvset:vs", `{"priority":4}`},
		{409, 77, "DELETE", "/hosts/b", ""},
		{409, 26, "DELETE", "/hostsets/hs", ""},
		{409, 18, "POST", "/vluns", `{"volumeName":"b","lun":3,"hostname":"set:hs"}`},
		{400, array.MatchedHostSet.Wire().Code, "POST", "/vluns", `{"volumeName":"b","lun":4,"hostname":"set:hs","portPos":` + port(r) + `}`},
	} {
		r.refused(x.status, x.code, x.method, x.path, x.body)
	}
	r.want(200, "DELETE", "/vluns/a,3,set:hs", "")
	r.want(200, "DELETE", "/qos/vvset:vs", "")
	for _, path := range []string{"/volumesets/vs", "/hostsets/hs"} {
		r.want(200, "DELETE", path, "")
	}
}

// port is one for hosts, as a body has it.
func port(r *rig) string {
	for _, p := range r.a.Ports() {
		if p.Protocol == array.FC && p.Type == array.HostPort {
			return fmt.Sprintf(`{"node":%d,"slot":%d,"cardPort":%d}`, p.Node, p.Slot, p.Card)
		}
	}
	r.t.Fatal("no port")
	return ""
}

func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, array.Config{Family: array.ThreePAR, CopyMiBs: 100}, Config{})
		defer r.s.Close()
		r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":1024,"snapCPG":"cpg1"}`)
		r.want(201, "POST", "/volumes", `{"name":"there","cpg":"cpg1","sizeMiB":1024}`)
		r.want(201, "POST", "/volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"c","destCPG":"cpg1","online":true,"tpvv":true}}`)
		r.refused(409, 151, "DELETE", "/volumes/c", "") // what OpenStack stops the copy for
		if x := r.want(200, "GET", "/tasks/1?view=excludeDetail", ""); x["status"] != 2.0 || x["type"] != 18.0 {
			t.Errorf("task is %v", x)
		}
		time.Sleep(time.Minute)
		if x := r.want(200, "GET", "/tasks/1", ""); x["status"] != 1.0 || x["completedSteps"] != 100.0 || x["finishTime"] == "-" {
			t.Errorf("task is %v", x)
		}
		r.refused(409, array.TaskNotActive.Wire().Code, "PUT", "/tasks/1", `{"action":1}`)
		two := r.want(201, "POST", "/volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"there","saveSnapshot":true}}`)["taskid"]
		r.refused(400, 29, "DELETE", "/volumes/v", "")
		r.want(200, "PUT", "/volumes/there", `{"action":1}`)
		if x := r.want(200, "GET", fmt.Sprint("/tasks/", two), ""); x["status"] != 3.0 {
			t.Errorf("task is %v", x)
		}
		r.want(201, "POST", "/cpgs", `{"name":"cpg2"}`)
		three := r.want(200, "PUT", "/volumes/c", `{"action":6,"tuneOperation":1,"userCPG":"cpg2","conversionOperation":2}`)["taskid"]
		time.Sleep(time.Minute)
		if v := r.want(200, "GET", "/volumes/c", ""); v["userCPG"] != "cpg2" || v["provisioningType"] != 1.0 || three == nil {
			t.Errorf("volume is %v", v)
		}
		if n := r.want(200, "GET", "/tasks", "")["total"]; n != 3.0 {
			t.Errorf("%v tasks", n)
		}
		for _, x := range []struct {
			status, code       int
			method, path, body string
		}{
			{404, 145, "GET", "/tasks/99", ""},
			{400, 39, "GET", "/tasks/x", ""},
			{400, 46, "PUT", "/tasks/1", `{"action":2}`},
			{400, 40, "PUT", "/tasks/1", `{}`},
			{400, 12, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":256,"reduce":true}`},
			{400, 46, "PUT", "/volumes/v", `{"action":6,"tuneOperation":3}`},
			{501, 9, "PUT", "/volumes/v", `{"action":6,"tuneOperation":1,"userCPG":"cpg1","keepVV":"old"}`},
			{501, 9, "PUT", "/volumes/v", `{"action":6,"tuneOperation":1,"userCPG":"cpg1","conversionOperation":4}`},
		} {
			r.refused(x.status, x.code, x.method, x.path, x.body)
		}
	})
}

// Two linked arrays share a lock, each has a face.
func TestRemoteCopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lock := new(sync.Mutex)
		one := newRig(t, array.Config{Name: "one", Seed: 1}, Config{Lock: lock})
		two := newRig(t, array.Config{Name: "two", Seed: 2}, Config{Lock: lock})
		defer one.s.Close()
		defer two.s.Close()
		lock.Lock()
		err := array.Link(one.a, two.a)
		lock.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if got := members(one.want(200, "GET", "/remotecopytargets", "")); len(got) != 1 || got[0]["name"] != "two" {
			t.Errorf("targets are %v", got)
		}
		one.want(200, "GET", "/remotecopytargets/two", "")
		one.want(200, "GET", "/remotecopy", "")
		one.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true,"snapCPG":"cpg1"}`)
		const make = `{"name":"g","targets":[{"targetName":"two","mode":1,"userCPG":"cpg1","snapCPG":"cpg1"}],"localUserCPG":"cpg1","localSnapCPG":"cpg1"}`
		one.want(201, "POST", "/remotecopygroups", make)
		one.refused(409, 237, "POST", "/remotecopygroups", make)
		const admit = `"volumeName":"v","volumeAutoCreation":true,"targets":[{"targetName":"two","secVolumeName":"v"}]}`
		one.want(200, "PUT", "/remotecopygroups/g", `{"action":1,`+admit)
		one.refused(409, array.GroupExistentVolume.Wire().Code, "POST", "/remotecopygroups/g/volumes", `{`+admit)
		one.want(200, "PUT", "/remotecopygroups/g", `{"targets":[{"targetName":"two","policies":{"autoFailover":true,"pathManagement":true}}]}`)
		one.want(200, "PUT", "/remotecopygroups/g", `{"action":3}`)
		one.refused(403, 215, "PUT", "/remotecopygroups/g", `{"action":3}`)
		one.refused(403, 120, "DELETE", "/volumes/v", "")
		time.Sleep(time.Minute)
		g := one.want(200, "GET", "/remotecopygroups/g", "")
		target := g["targets"].([]any)[0].(map[string]any)
		if g["role"] != 1.0 || target["state"] != 3.0 || target["mode"] != 1.0 || target["roleReversed"] != false {
			t.Errorf("group is %v", g)
		}
		v := members(one.want(200, "GET", "/remotecopygroups/g/volumes", ""))
		if x := v[0]["remoteVolumes"].([]any)[0].(map[string]any); x["syncStatus"] != 3.0 {
			t.Errorf("volumes are %v", v)
		}
		remote := target["remoteGroupName"].(string)
		if r := two.want(200, "GET", "/remotecopygroups/"+remote, ""); r["role"] != 2.0 {
			t.Errorf("other side is %v", r)
		}
		if a, b := one.want(200, "GET", "/volumes/v", "")["wwn"], two.want(200, "GET", "/volumes/v", "")["wwn"]; a != b {
			t.Errorf("WWNs are %v and %v", a, b)
		}
		one.want(200, "PUT", "/remotecopygroups/g", `{"action":4}`)
		two.want(200, "POST", "/remotecopygroups/"+remote, `{"action":7}`)
		if r := two.want(200, "GET", "/remotecopygroups/"+remote, ""); r["role"] != 1.0 {
			t.Errorf("other side is %v", r)
		}
		two.want(200, "POST", "/remotecopygroups/"+remote, `{"action":9}`)
		time.Sleep(time.Minute)
		two.want(200, "POST", "/remotecopygroups/"+remote, `{"action":10}`)
		if g := one.want(200, "GET", "/remotecopygroups/g", ""); g["role"] != 1.0 {
			t.Errorf("group is %v", g)
		}
		for _, x := range []struct {
			status, code       int
			method, path, body string
		}{
			{404, 187, "GET", "/remotecopygroups/nope", ""},
			{404, 187, "PUT", "/remotecopygroups/nope", `{"action":3}`},
			{400, 194, "POST", "/remotecopygroups", strings.ReplaceAll(strings.Replace(make, `"g"`, `"g2"`, 1), "two", "three")},
			{400, 46, "PUT", "/remotecopygroups/g", `{"action":6}`},
			{400, 46, "POST", "/remotecopygroups/g", `{"action":5}`},
			{400, 12, "PUT", "/remotecopygroups/g", `{"action":3,"volumeName":"v"}`},
			{400, 39, "PUT", "/remotecopygroups/g", `{"action":null}`},
			{400, 60, "PUT", "/remotecopygroups/g", `{`},
			{404, 194, "GET", "/remotecopytargets/three", ""},
			{400, 12, "DELETE", "/remotecopygroups/g?keepSnap=perhaps", ""},
			{403, 215, "DELETE", "/remotecopygroups/g", ""},
		} {
			one.refused(x.status, x.code, x.method, x.path, x.body)
		}
		one.want(200, "PUT", "/remotecopygroups/g", `{"action":4}`)
		one.refused(404, 23, "DELETE", "/remotecopygroups/g/volumes/nope", "")
		one.want(201, "POST", "/volumes", `{"name":"w","cpg":"cpg1","sizeMiB":256}`)
		one.refused(404, array.GroupNotInGroup.Wire().Code, "DELETE", "/remotecopygroups/g/volumes/w", "")
		one.want(200, "DELETE", "/remotecopygroups/g/volumes/v?removeSecondaryVolume=true", "")
		two.refused(404, 23, "GET", "/volumes/v", "")
		one.want(200, "DELETE", "/remotecopygroups/g?keepSnap=false", "")
		one.want(200, "DELETE", "/volumes/v", "")
	})
}

// Each handler is reached and answers within the API, whatever role asks.
func TestEveryRouteAnswers(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	r.user = users[1]
	r.login()
	for _, rs := range routes {
		for _, x := range rs {
			path := "/api/v1/" + strings.NewReplacer("{name}", "x", "{id}", "1", "{key}", "k", "{pos}", "0:1:1", "{target}", "vvset:x", "{volume}", "v").Replace(x.pattern)
			code, _, body, err := r.raw(x.method, path, r.key, "")
			if err != nil || code >= 500 || x.method != http.MethodGet && !x.read && code != 403 {
				t.Errorf("%s %s: %d %s %v", x.method, path, code, body, err)
			}
		}
	}
}
