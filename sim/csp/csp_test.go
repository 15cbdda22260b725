package csp_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/ledger"
)

const (
	pvc  = "pvc-3fa1c2d4-0b6e-4b8e-9a51-3c1d2e4f5a6b"
	vv   = "pvc-3fa1c2d4-0b6e-4b8e-9a51-3c1"
	node = `{"name":"node-1","uuid":"5f1b2c3d-0000-1111-2222-333344445555","iqns":["iqn.1994-05.com.redhat:n1"],"networks":["10.1.0.5/24"],"wwpns":["10000000c9a1b2c3"],"nqns":["nqn.2014-08.org.nvmexpress:uuid:n1"],"access_protocol":"%s"}`
	uuid = "5f1b2c3d-0000-1111-2222-333344445555"
)

func (r *rig) volume(name string, config string) map[string]any {
	r.t.Helper()
	return r.do(200, "POST", "/volumes", fmt.Sprintf(`{"name":%q,"size":1073741824,"description":"d","published":false,"config":%s,"volume_group_id":""}`, name, config))
}

func TestVolumeFromCreationToDeletion(t *testing.T) {
	r := newRig(t)
	r.refused(404, "not found", "GET", "/volumes?name="+pvc, "")
	v := r.volume(pvc, `{"access_protocol":"iscsi","cpg":"cpg1","multi_initiator":false,"csi.storage.k8s.io/pv/name":"`+pvc+`"}`)
	if v["id"] != pvc || v["name"] != pvc || v["size"] != 1073741824.0 || v["published"] != false || v["description"] != "d" {
		t.Errorf("volume is %v", v)
	}
	cfg := v["config"].(map[string]any)
	if cfg["cpg"] != "cpg1" || cfg["snap_cpg"] != "cpg1" || cfg["provisioning_type"] != "tpvv" || cfg["access_protocol"] != "iscsi" || cfg["csi.storage.k8s.io/pv/name"] != pvc {
		t.Errorf("config is %v", cfg)
	}
	if all := r.arrays[0].volumes(); len(all) != 1 || all[0].Name != vv {
		t.Errorf("the array has %v", all)
	}
	if all := r.all("/volumes?name=" + pvc); len(all) != 1 || all[0]["id"] != pvc {
		t.Errorf("by name: %v", all)
	}
	r.refused(409, "already exists", "POST", "/volumes", `{"name":"`+pvc+`","size":1073741824,"config":{}}`)
	v = r.do(200, "PUT", "/volumes/"+pvc, `{"id":"`+pvc+`","size":2147483648,"volume_group_id":""}`)
	if v["size"] != 2147483648.0 {
		t.Errorf("expanded to %v", v["size"])
	}
	r.refused(400, "size", "PUT", "/volumes/"+pvc, `{"id":"`+pvc+`","size":1073741824,"volume_group_id":""}`)

	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	p := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
	wwn := r.arrays[0].volumes()[0].WWN
	if p["serial_number"] != strings.ToLower(wwn) || p["lun_id"] != 0.0 || p["access_protocol"] != "iscsi" {
		t.Errorf("publish info is %v", p)
	}
	if n := p["target_names"].([]any); len(n) != 4 || !strings.HasPrefix(n[0].(string), "iqn.2000-05.com.3pardata:") {
		t.Errorf("targets are %v", n)
	}
	if ips := p["discovery_ips"].([]any); len(ips) != 4 || ips[0] != "192.0.2.10" {
		t.Errorf("addresses are %v", ips)
	}
	if all := r.arrays[0].vluns(vv); len(all) != 4 || all[0].Host != "iqn-node-1" || all[0].Type != array.MatchedSet {
		t.Errorf("exports are %v", all)
	}
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
	if n := len(r.arrays[0].vluns(vv)); n != 4 {
		t.Errorf("published twice: %d exports", n)
	}
	if v := r.do(200, "GET", "/volumes/"+pvc, ""); v["published"] != true {
		t.Errorf("published: %v", v["published"])
	}
	r.refused(400, "still published", "DELETE", "/volumes/"+pvc+"?force=false", "")

	for range 2 {
		r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", `{"host_uuid":"`+uuid+`"}`)
	}
	if all := r.arrays[0].vluns(vv); len(all) != 0 {
		t.Errorf("exports that stay: %v", all)
	}
	r.arrays[0].with(func(a *array.Array) {
		if all := a.Hosts(); len(all) != 0 {
			t.Errorf("hosts that stay: %v", all)
		}
	})
	if all := r.all("/snapshots?volume_id=" + pvc + "&mode=exists"); len(all) != 0 {
		t.Errorf("snapshots: %v", all)
	}
	r.do(204, "DELETE", "/volumes/"+pvc+"?force=false", "")
	r.refused(404, "not found", "DELETE", "/volumes/"+pvc+"?force=false", "")
	if all := r.arrays[0].volumes(); len(all) != 0 {
		t.Errorf("volumes that stay: %v", all)
	}
	if n := r.count(ledger.CSP, "POST /tokens"); n != 1 {
		t.Errorf("%d logins", n)
	}
}

func TestEachProtocolHasAHostOfItsOwn(t *testing.T) {
	r := newRig(t, withArray(func(c *array.Config) {
		c.Ports = append(array.DefaultPorts(2), array.Port{PortPos: array.PortPos{Node: 0, Slot: 4, Card: 1}, Protocol: array.NVMe, Type: array.HostPort, Address: "192.0.2.60"})
	}))
	for i, x := range []struct{ protocol, host, target string }{{"iscsi", "iqn-node-1", "iqn.2000-05.com.3pardata:"}, {"fc", "wwn-node-1", "2"}, {"nvmetcp", "nqntcp-node-1", "nqn.2020-07.com.hpe:"}} {
		name := fmt.Sprint("v", i)
		r.volume(name, `{"access_protocol":"`+x.protocol+`","cpg":"cpg1","host_sees_vlun":"true"}`)
		r.do(200, "POST", "/hosts", fmt.Sprintf(node, x.protocol))
		p := r.do(200, "PUT", "/volumes/"+name+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"`+x.protocol+`"}`)
		if all := r.arrays[0].vluns(name); len(all) != 1 || all[0].Host != x.host || all[0].Type != array.HostSees {
			t.Errorf("%s: exports are %v", x.protocol, all)
		}
		if n := p["target_names"].([]any); len(n) == 0 || !strings.HasPrefix(n[0].(string), x.target) {
			t.Errorf("%s: targets are %v", x.protocol, n)
		}
	}
	hosts := r.all("/hosts")
	if len(hosts) != 1 || hosts[0]["uuid"] != uuid || len(hosts[0]["iqns"].([]any)) != 1 || len(hosts[0]["wwpns"].([]any)) != 1 || len(hosts[0]["nqns"].([]any)) != 1 {
		t.Errorf("hosts are %v", hosts)
	}
	// The driver without Kubernetes sends the whole node object.
	r.do(204, "PUT", "/volumes/v0/actions/unpublish", `{"host_uuid":"{\"name\":\"node-1\",\"uuid\":\"`+uuid+`\"}"}`)
	if all := r.arrays[0].vluns("v0"); len(all) != 0 {
		t.Errorf("exports that stay: %v", all)
	}
	r.do(204, "PUT", "/volumes/v0/actions/unpublish", `{"host_uuid":"unknown"}`)
	r.refused(404, "host", "PUT", "/volumes/v0/actions/publish", `{"host_uuid":"unknown"}`)
}

func TestSnapshotAndClone(t *testing.T) {
	r := newRig(t)
	r.volume(pvc, `{"cpg":"cpg1"}`)
	const snap = "snapshot-11111111-2222-3333-4444-555555555555"
	r.refused(404, "not found", "GET", "/snapshots?name="+snap+"&volume_id="+pvc, "")
	s := r.do(200, "POST", "/snapshots", `{"name":"`+snap+`","volume_id":"`+pvc+`","description":"x","config":{"read_only":"true"}}`)
	if s["id"] != snap || s["volume_id"] != pvc || s["ready_to_use"] != true || s["size"] != 1073741824.0 || s["creation_time"].(float64) == 0 {
		t.Errorf("snapshot is %v", s)
	}
	if all := r.all("/snapshots?name=" + snap + "&volume_id=" + pvc); len(all) != 1 {
		t.Errorf("by name: %v", all)
	}
	if all := r.all("/snapshots?volume_id=" + pvc + "&mode=exists"); len(all) != 1 {
		t.Errorf("of the volume: %v", all)
	}
	if all := r.all("/snapshots"); len(all) != 1 {
		t.Errorf("all: %v", all)
	}
	r.refused(409, "has snapshots", "DELETE", "/volumes/"+pvc+"?force=false", "")
	r.refused(409, "already exists", "POST", "/snapshots", `{"name":"`+snap+`","volume_id":"`+pvc+`"}`)
	v := r.do(200, "POST", "/volumes", `{"name":"clone","size":2147483648,"base_snapshot_id":"`+snap+`","clone":true,"config":{"cpg":"cpg2"}}`)
	if st := v["config"].(map[string]any)["background_operation_status"]; st != "Running" || v["size"] != 2147483648.0 || v["base_snapshot_id"] != snap {
		t.Errorf("clone is %v", v)
	}
	r.refused(409, "code 29", "DELETE", "/snapshots/"+snap, "")
	r.do(204, "DELETE", "/volumes/clone?force=false", "")
	r.do(204, "DELETE", "/snapshots/"+snap, "")
	r.do(204, "DELETE", "/volumes/"+pvc+"?force=false", "")
	if all := r.arrays[0].volumes(); len(all) != 0 {
		t.Errorf("volumes that stay: %v", all)
	}
}

// Names of csi-sanity have 128 bytes, the first 31 of which are all the same.
func TestNamesThatAreTheSameAtFirst(t *testing.T) {
	r := newRig(t)
	name := func(i int) string { return strings.Repeat("a", 120) + fmt.Sprintf("%08d", i) }
	for i := range 3 {
		r.volume(name(i), `{"cpg":"cpg1"}`)
		r.do(200, "POST", "/snapshots", fmt.Sprintf(`{"name":%q,"volume_id":%q}`, name(i), name(i)))
	}
	if n := len(r.arrays[0].volumes()); n != 6 {
		t.Errorf("the array has %d", n)
	}
	r.start() // the provider knows nothing but what lies on the array
	r.token = ""
	r.do(204, "DELETE", "/snapshots/"+name(0), "")
	r.do(204, "DELETE", "/volumes/"+name(0)+"?force=false", "")
	r.refused(409, "already exists", "POST", "/volumes", `{"name":"`+name(1)+`","size":1073741824,"config":{}}`)
	for i := 1; i < 3; i++ {
		if v := r.do(200, "GET", "/volumes/"+name(i), ""); v["id"] != name(i) {
			t.Errorf("volume is %v", v["id"])
		}
		if s := r.do(200, "GET", "/snapshots/"+name(i), ""); s["volume_id"] != name(i) {
			t.Errorf("snapshot is of %v", s["volume_id"])
		}
	}
}
