package csp_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
)

func TestParametersThatAreWrong(t *testing.T) {
	r := newRig(t)
	for _, x := range [][2]string{
		{`{"access_protocol":"scsi"}`, "access_protocol"},
		{`{"cpg":"nope"}`, "cpg"},
		{`{"cpg":"cpg1","snap_cpg":"nope"}`, "snap_cpg"},
		{`{"virtual_domain":"d1"}`, "cpg"},
		{`{"provisioning_type":"thick"}`, "provisioning_type"},
		{`{"provisioning_type":"full"}`, "provisioning_type"},
		{`{"provisioning_type":"dedup"}`, "provisioning_type"},
		{`{"compression":"true"}`, "compression"},
		{`{"compression":"maybe"}`, "compression"},
		{`{"host_sees_vlun":"ja"}`, "host_sees_vlun"},
		{`{"access_protocol":"iscsi","iscsi_portal_ips":"10.0.0.1,x"}`, "iscsi_portal_ips"},
		{`{"access_protocol":"fc","iscsi_portal_ips":"10.0.0.1"}`, "iscsi_portal_ips"},
		{`{"access_protocol":"fc","fc_ports_list":"0:1"}`, "fc_ports_list"},
		{`{"access_protocol":"iscsi","fc_ports_list":"0:1:1"}`, "fc_ports_list"},
		{`{"import_volume_name":"nope"}`, "import_volume_name"},
		{`{"import_vol_as_clone":"nope"}`, "import_vol_as_clone"},
		{`{"import_vol_as_clone":"no such name!"}`, "import_vol_as_clone"},
		{`{"clone_of":"nope"}`, "clone_of"},
		{`{"virtual_copy_of":"nope"}`, "virtual_copy_of"},
		{`{"clone_of":"a","import_vol_as_clone":"b"}`, "clone_of"},
		{`{"qos_name":"nope"}`, "qos_name"},
		{`{"remote_copy_group":"g"}`, "replication_devices"},
		{`{"remote_copy_group":"g","one_rcg_per_pvc":true,"replication_devices":"r"}`, "remote_copy_group"},
		{`{"replication_devices":"r"}`, "remote_copy_group"},
		{`{"one_rcg_per_pvc":"true","replication_devices":"r"}`, "replication_devices"},
		{`{"remote_copy_group":"a-name-that-is-too-long-for-it","replication_devices":"r"}`, "remote_copy_group"},
		{`{"periodic_replication_interval":"14"}`, "periodic_replication_interval"},
	} {
		r.refused(400, "invalid parameter "+x[1], "POST", "/volumes", `{"name":"v","size":1073741824,"config":`+x[0]+`}`)
	}
	for _, x := range [][2]string{
		{`{"name":"","size":1}`, "name"},
		{`{"name":"v","config":{"cpg":"cpg1"}}`, "size"},
		{`{"name":"v","size":-1,"config":{"cpg":"cpg1"}}`, "size"},
		{`{"name":"v","size":1048576,"config":{"cpg":"cpg1"}}`, "256"},
		{`{"name":"v","size":"1","config":{"cpg":"cpg1"}}`, "size"},
		{`{"name":"v","size":1073741824,"config":[]}`, "config"},
		{fmt.Sprintf(`{"name":%q,"size":1073741824,"config":{"cpg":"cpg1"}}`, strings.Repeat("v", 256)), "255"},
		{fmt.Sprintf(`{"name":"v","size":1073741824,"config":{"x":%q}}`, strings.Repeat("v", 20000)), "16384"},
	} {
		r.refused(400, x[1], "POST", "/volumes", x[0])
	}
	r.refused(404, "volume group", "POST", "/volumes", `{"name":"v","size":1073741824,"volume_group_id":"nope"}`)
	r.refused(404, "snapshot nope", "POST", "/volumes", `{"name":"v","size":1073741824,"base_snapshot_id":"nope","clone":true}`)
	if all := r.arrays[0].volumes(); len(all) != 0 {
		t.Errorf("the array has %v", all)
	}
}

func TestFamilies(t *testing.T) {
	old := newRig(t, withArray(func(c *array.Config) { c.Family = array.ThreePAR }))
	for kind, want := range map[string]array.Provisioning{"": array.Thin, "tpvv": array.Thin, "full": array.Full, "dedup": array.Dedup} {
		v := old.volume("v"+kind, `{"provisioning_type":"`+kind+`","compression":"`+fmt.Sprint(kind == "tpvv")+`"}`)
		if got := old.arrays[0].volumes(); got[len(got)-1].Provisioning != want {
			t.Errorf("%s: %v, %v", kind, got[len(got)-1], v)
		}
	}
	old.refused(400, "provisioning_type", "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"provisioning_type":"reduce"}}`)
	now := newRig(t)
	if v := now.volume("v", `{"provisioning_type":"reduce"}`); v["config"].(map[string]any)["provisioning_type"] != "reduce" {
		t.Errorf("volume is %v", v)
	}
}

// The provider takes the CPG with most space where none is named.
func TestPorts(t *testing.T) {
	r := newRig(t)
	r.do(200, "POST", "/hosts", `{"name":"n1","uuid":"u1","iqns":["iqn.a:1"],"wwpns":["10:00:00:00:c9:a1:b2:c3"]}`)
	ports := func(v string) (out []string) {
		for _, x := range r.arrays[0].vluns(v) {
			out = append(out, x.Port.String())
		}
		return out
	}
	r.volume("v1", `{"access_protocol":"iscsi","iscsi_portal_ips":"192.0.2.10, 192.0.2.12"}`)
	p := r.do(200, "PUT", "/volumes/v1/actions/publish", `{"host_uuid":"u1"}`)
	if got := fmt.Sprint(ports("v1"), p["discovery_ips"]); got != "[0:2:1 1:2:1] [192.0.2.10 192.0.2.12]" {
		t.Errorf("ports are %s", got)
	}
	r.volume("v2", `{"access_protocol":"fc","fc_ports_list":"1:1:2"}`)
	p = r.do(200, "PUT", "/volumes/v2/actions/publish", `{"host_uuid":"u1","access_protocol":"fc"}`)
	if got := fmt.Sprint(ports("v2"), p["target_names"], p["discovery_ips"]); !strings.HasPrefix(got, "[1:1:2] [2112") || !strings.HasSuffix(got, " []") {
		t.Errorf("ports are %s", got)
	}
	r.volume("v3", `{"access_protocol":"iscsi","iscsi_portal_ips":"192.0.2.99"}`)
	r.refused(400, "iscsi_portal_ips", "PUT", "/volumes/v3/actions/publish", `{"host_uuid":"u1"}`)
	r.refused(400, "access_protocol", "PUT", "/volumes/v3/actions/publish", `{"host_uuid":"u1","access_protocol":"scsi"}`)
	r.refused(500, "no port that is ready for nvmetcp", "PUT", "/volumes/v3/actions/publish", `{"host_uuid":"u1","access_protocol":"nvmetcp"}`)
	r.arrays[0].with(func(a *array.Array) {
		if err := a.SetLink(array.PortPos{Node: 0, Slot: 2, Card: 1}, array.LinkOffline); err != nil {
			t.Error(err)
		}
	})
	r.volume("v4", `{"access_protocol":"iscsi"}`)
	r.do(200, "PUT", "/volumes/v4/actions/publish", `{"host_uuid":"u1"}`)
	if got := fmt.Sprint(ports("v4")); got != "[0:2:2 1:2:1 1:2:2]" {
		t.Errorf("ports are %s", got)
	}
}

func (a *arrayRig) volume(t *testing.T, name string) {
	t.Helper()
	a.with(func(a *array.Array) {
		if _, err := a.CreateVolume(time.Now(), array.VolumeSpec{Name: name, CPG: "cpg1", SnapCPG: "cpg1", SizeMiB: 1024}); err != nil {
			t.Error(err)
		}
	})
}

func TestImport(t *testing.T) {
	r := newRig(t)
	r.arrays[0].volume(t, "legacy")
	r.arrays[0].with(func(a *array.Array) {
		now := time.Now()
		_, err := a.CreateHost(now, array.HostSpec{Name: "old", ISCSINames: []string{"iqn.a:1"}})
		if err == nil {
			_, err = a.CreateVLUN(now, array.VLUNSpec{Volume: "legacy", Host: "old", Auto: true})
		}
		if err != nil {
			t.Error(err)
		}
	})
	wwn := r.arrays[0].volumes()[0].WWN
	v := r.do(200, "POST", "/volumes", `{"name":"`+pvc+`","size":1073741824,"config":{"access_protocol":"iscsi","import_volume_name":"legacy"}}`)
	all := r.arrays[0].volumes()
	if v["published"] != false || len(all) != 1 || all[0].Name != vv || all[0].WWN != wwn || len(r.arrays[0].vluns(vv)) != 0 {
		t.Errorf("imported %v as %v", all, v)
	}
	r.refused(400, "import_volume_name", "POST", "/volumes", `{"name":"v2","config":{"import_volume_name":"`+vv+`"}}`)

	v = r.do(200, "POST", "/volumes", `{"name":"v3","config":{"cpg":"cpg2","import_vol_as_clone":"`+vv+`"}}`)
	if v["clone"] != true || v["size"] != 1073741824.0 || v["config"].(map[string]any)["cpg"] != "cpg2" {
		t.Errorf("clone is %v", v)
	}
}

func TestCopiesOfOtherClaims(t *testing.T) {
	r := newRig(t, withCSP(func(c *csp.Config) { c.VolumeOf = claims }))
	r.volume(pvc, `{"cpg":"cpg1"}`)
	v := r.do(200, "POST", "/volumes", `{"name":"c1","size":1073741824,"config":{"clone_of":"data","csi.storage.k8s.io/pvc/namespace":"ns"}}`)
	if v["clone"] != true || v["config"].(map[string]any)["background_operation_status"] != "Running" {
		t.Errorf("clone is %v", v)
	}
	v = r.do(200, "POST", "/volumes", `{"name":"c2","size":1073741824,"config":{"virtual_copy_of":"`+pvc+`"}}`)
	all := r.arrays[0].volumes()
	if last := all[len(all)-1]; v["clone"] != true || last.CopyType != array.Virtual || last.CopyOf != vv || last.ReadOnly {
		t.Errorf("copy is %v, %v", v, last)
	}
	r.refused(400, "size", "POST", "/volumes", `{"name":"c3","size":2147483648,"config":{"virtual_copy_of":"`+pvc+`"}}`)
	r.refused(409, "a copy of it runs", "DELETE", "/volumes/"+pvc, "")
	r.do(204, "DELETE", "/volumes/c1", "")
	r.refused(409, "code 32", "DELETE", "/volumes/"+pvc, "")
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	r.do(200, "PUT", "/volumes/c2/actions/publish", `{"host_uuid":"`+uuid+`"}`)
	r.refused(400, "still published", "DELETE", "/volumes/c2", "")
	r.do(204, "DELETE", "/volumes/c2?force=true", "")
	if all := r.all("/hosts"); len(all) != 0 {
		t.Errorf("hosts that stay: %v", all)
	}
	r.do(204, "DELETE", "/volumes/"+pvc, "")
}

// The driver copies a volume over a snapshot of its own, which it leaves.
func TestSnapshotForAClone(t *testing.T) { synctest.Test(t, testSnapshotForAClone) }

func testSnapshotForAClone(t *testing.T) {
	r := newRig(t)
	defer r.close()
	r.volume(pvc, `{"cpg":"cpg1"}`)
	const snap = "snap-for-clone-2026-11-29T23:50:00+02:00"
	s := r.do(200, "POST", "/snapshots", `{"name":"`+snap+`","volume_id":"`+pvc+`","description":"","config":null}`)
	if all := r.all("/snapshots?name=" + snap + "&volume_id=" + pvc); len(all) != 1 || all[0]["id"] != snap {
		t.Errorf("snapshot is %v, %v", s, all)
	}
	r.do(200, "POST", "/volumes", `{"name":"c","size":1073741824,"base_snapshot_id":"`+snap+`","clone":true,"config":{"cpg":"cpg1"}}`)
	if all := r.all("/snapshots?volume_id=" + pvc + "&mode=exists"); len(all) != 0 {
		t.Errorf("snapshots are %v", all)
	}
	if st := r.do(200, "GET", "/volumes/c", "")["config"].(map[string]any)["background_operation_status"]; st != "Running" {
		t.Errorf("status is %v", st)
	}
	time.Sleep(3 * time.Second)
	if st := r.do(200, "GET", "/volumes/c", "")["config"].(map[string]any)["background_operation_status"]; st != "Completed" {
		t.Errorf("status is %v", st)
	}
	r.do(200, "GET", "/volumes/c", "")
	if all := r.arrays[0].volumes(); len(all) != 2 {
		t.Errorf("the array has %v", all)
	}
	r.do(204, "DELETE", "/volumes/"+pvc, "")
	r.do(204, "DELETE", "/volumes/c", "")
}

func TestQoS(t *testing.T) {
	r := newLife(t)
	r.volume("v", `{"cpg":"cpg1","qos_name":"gold"}`)
	members := func() (out []string) {
		r.arrays[0].with(func(a *array.Array) {
			if s, err := a.VolumeSet("gold"); err == nil {
				out = s.Members
			}
		})
		return out
	}
	if m := members(); len(m) != 1 || m[0] != "v" {
		t.Errorf("members are %v", m)
	}
	r.do(204, "DELETE", "/volumes/v", "")
	if m := members(); len(m) != 0 {
		t.Errorf("members are %v", m)
	}
	// A set that somebody else put it in is in the way.
	r.volume("w", `{"cpg":"cpg1"}`)
	r.arrays[0].with(func(a *array.Array) {
		if _, err := a.ModifyVolumeSet(time.Now(), "gold", array.SetChange{Add: []string{"w"}}); err != nil {
			t.Error(err)
		}
	})
	r.refused(409, "code 34", "DELETE", "/volumes/w", "")
}

func TestEdit(t *testing.T) { synctest.Test(t, testEdit) }

func testEdit(t *testing.T) {
	r := newRig(t)
	defer r.close()
	r.volume("v", `{"cpg":"cpg1","access_protocol":"iscsi"}`)
	v := r.do(200, "PUT", "/volumes/v", `{"id":"v","description":"new","volume_group_id":"","config":{"host_sees_vlun":"true","cpg":"cpg2"}}`)
	if v["description"] != "new" || v["config"].(map[string]any)["host_sees_vlun"] != "true" {
		t.Errorf("volume is %v", v)
	}
	r.refused(400, "access_protocol", "PUT", "/volumes/v", `{"config":{"access_protocol":"fc"}}`)
	r.refused(400, "virtual_copy_of", "PUT", "/volumes/v", `{"config":{"virtual_copy_of":"x"}}`)
	r.refused(500, "task 1", "POST", "/snapshots", `{"name":"s","volume_id":"v"}`)
	time.Sleep(time.Second) // the move ends
	r.do(200, "POST", "/snapshots", `{"name":"s","volume_id":"v"}`)
	r.refused(409, "snapshots or clones", "PUT", "/volumes/v", `{"config":{"cpg":"cpg1","snap_cpg":"cpg2"}}`)
	r.do(200, "PUT", "/volumes/v", `{"config":{"host_sees_vlun":"false"}}`)
}

// An administrator has renamed a volume for a PersistentVolume of his own.
func TestStaticProvisioning(t *testing.T) {
	r := newRig(t)
	r.arrays[0].volume(t, vv)
	if v := r.do(200, "GET", "/volumes/"+pvc, ""); v["id"] != pvc || v["size"] != 1073741824.0 {
		t.Errorf("volume is %v", v)
	}
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"host_uuid":"`+uuid+`"}`)
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", `{"host_uuid":"`+uuid+`"}`)
	if all := r.all("/volumes"); len(all) != 0 {
		t.Errorf("volumes are %v", all)
	}
}

func TestNoSpace(t *testing.T) {
	r := newRig(t, withArray(func(c *array.Config) { c.Family = array.ThreePAR }))
	r.arrays[0].with(func(a *array.Array) {
		if _, err := a.CreateCPG(time.Now(), array.CPGSpec{Name: "small", GrowthLimitMiB: 1024}); err != nil {
			t.Error(err)
		}
	})
	r.volume("v", `{"cpg":"small","provisioning_type":"full"}`)
	r.refused(500, csp.NoSpace, "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"cpg":"small","provisioning_type":"full"}}`)
	r.refused(500, csp.NoSpace, "POST", "/snapshots", `{"name":"s","volume_id":"v"}`)
	r.refused(409, "code 153", "PUT", "/volumes/v", `{"size":2147483648}`)
}

// A copy that failed is begun anew when the driver asks for the volume again.
func TestCopyThatFails(t *testing.T) {
	r := newLife(t)
	r.volume(pvc, `{"cpg":"cpg1"}`)
	r.do(200, "POST", "/snapshots", `{"name":"s","volume_id":"`+pvc+`","config":{"read_only":"true"}}`)
	clone := `{"name":"c","size":1073741824,"base_snapshot_id":"s","clone":true,"config":{"cpg":"cpg1","qos_name":"gold"}}`
	r.do(200, "POST", "/volumes", clone)
	r.arrays[0].with(func(a *array.Array) {
		if _, _, err := a.CancelTask(time.Now(), 1); err != nil {
			t.Error(err)
		}
	})
	if st := r.do(200, "GET", "/volumes/c", "")["config"].(map[string]any)["background_operation_status"]; st != "Failed" {
		t.Errorf("status is %v", st)
	}
	r.refused(404, "not found", "GET", "/volumes?name=c", "")
	if n := len(r.arrays[0].volumes()); n != 2 {
		t.Errorf("the array has %d volumes", n)
	}
	r.do(200, "POST", "/volumes", clone)
}
