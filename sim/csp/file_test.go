package csp_test

import (
	"slices"
	"testing"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
)

const fileClass = `{"access_protocol":"nfs","cpg":"cpg1"}`

// share is what the file service of the first array reads of the volume.
func (r *rig) share() (s csp.Share, ok bool) {
	r.arrays[0].with(func(a *array.Array) {
		if v, err := a.Volume(vv); err == nil {
			values, _ := a.Values(vv)
			s, ok = csp.ShareOf(v.Comment, values)
		}
	})
	return s, ok
}

// A file volume is shared with the clients of the last publish, and with nobody
// after unpublish; it is no block device, and has no copies.
func TestFileVolume(t *testing.T) {
	r := newRig(t, withFiles)
	publish := func(acl string) {
		p := r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"name":"`+pvc+`","access_protocol":"nfs","access_control_list":`+acl+`}`)
		if p["export_ip"] != "192.0.2.200" || p["mount_path"] != "/file/"+vv+"/"+vv {
			t.Errorf("share is %v", p)
		}
	}
	rules := func(want ...string) {
		t.Helper()
		if s, ok := r.share(); !ok || !slices.Equal(s.Rules, want) || s.ReadOnly {
			t.Errorf("share is %v, %v, expected %q", s, ok, want)
		}
		v := r.do(200, "GET", "/volumes/"+pvc, "")
		if v["published"] != (len(want) > 0) || v["config"].(map[string]any)["file_rules"] != nil {
			t.Errorf("volume is %v", v)
		}
	}
	r.volume(pvc, fileClass)
	rules()
	publish(`"10.0.0.11, 10.0.0.12,10.0.0.11"`)
	rules("10.0.0.11", "10.0.0.12")
	publish(`["10.0.0.0/8","*.example.com"]`)
	rules("10.0.0.0/8", "*.example.com")
	r.refused(400, "still published", "DELETE", "/volumes/"+pvc, "")
	r.do(200, "PUT", "/volumes/"+pvc, `{"size":2147483648}`)
	rules("10.0.0.0/8", "*.example.com")

	r.refused(400, "file share", "POST", "/snapshots", `{"name":"s","volume_id":"`+pvc+`"}`)
	r.refused(400, "file share", "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"cpg":"cpg1","clone_of":"`+pvc+`"}}`)
	r.refused(400, "clone_of", "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"access_protocol":"nfs","clone_of":"`+pvc+`"}}`)
	r.do(200, "POST", "/volume_groups", `{"name":"g","config":{}}`)
	r.refused(400, "volume group", "PUT", "/volumes/"+pvc, `{"volume_group_id":"g"}`)
	r.refused(400, "file_rules", "PUT", "/volumes/"+pvc, `{"config":{"file_rules":"*"}}`)
	r.refused(400, "file_rules", "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"access_protocol":"nfs","file_rules":"*"}}`)
	r.refused(400, "block device", "PUT", "/volumes/"+pvc+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
	rules("10.0.0.0/8", "*.example.com")
	for range 2 {
		r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", `{"access_protocol":"nfs"}`)
	}
	rules()
	r.do(204, "DELETE", "/volumes/"+pvc, "")
	if _, ok := r.share(); ok {
		t.Error("the share is there after its volume was deleted")
	}
}

func TestFileVolumeRefused(t *testing.T) {
	r := newRig(t, withFiles)
	r.volume(pvc, fileClass)
	for acl, want := range map[string]string{`""`: "required", `null`: "required", `{"a":1}`: "required", `[1]`: "access_control_list", `"a b"`: "a b", `"10.0.0.0/99"`: "10.0.0.0/99", `"-x"`: "-x"} {
		r.refused(400, want, "PUT", "/volumes/"+pvc+"/actions/publish", `{"access_protocol":"nfs","access_control_list":`+acl+`}`)
	}
	for config, want := range map[string]string{
		`"share_squashing_option":"root_squash"`: "share_squashing_option", `"share_read_only":"perhaps"`: "share_read_only",
		`"access_control_list":"!"`: "access_control_list", `"virtual_copy_of":"x"`: "virtual_copy_of",
	} {
		r.refused(400, want, "POST", "/volumes", `{"name":"w","size":1073741824,"config":{"access_protocol":"nfs",`+config+`}}`)
	}
	r.volume("block", `{"cpg":"cpg1"}`)
	r.refused(400, "no file share", "PUT", "/volumes/block/actions/publish", `{"access_protocol":"nfs","access_control_list":"*"}`)

	none := newRig(t)
	none.refused(400, "no file service", "POST", "/volumes", `{"name":"`+pvc+`","size":1073741824,"config":`+fileClass+`}`)
	none.volume(pvc, `{"cpg":"cpg1"}`)
	none.refused(400, "no file service", "PUT", "/volumes/"+pvc+"/actions/publish", `{"access_protocol":"nfs","access_control_list":"x"}`)
}

// A share whose parameters are too long for the comment is read whole, and a
// path leads to one virtual volume.
func TestFileVolumeRead(t *testing.T) {
	r := newRig(t, withFiles)
	long := make([]byte, 900)
	for i := range long {
		long[i] = 'x'
	}
	r.volume(pvc, `{"access_protocol":"nfs","cpg":"cpg1","share_read_only":"true","more":"`+string(long)+`"}`)
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"access_protocol":"nfs","access_control_list":"10.0.0.11"}`)
	if s, ok := r.share(); !ok || !slices.Equal(s.Rules, []string{"10.0.0.11"}) || !s.ReadOnly {
		t.Errorf("share is %v, %v", s, ok)
	}
	for path, want := range map[string]string{csp.SharePath("a"): "a", "/file/a/b": "", "/file/a": "", "/a/a": "", "/file//": "", "": ""} {
		if got, ok := csp.SharedAt(path); ok != (want != "") || ok && got != want {
			t.Errorf("%s leads to %q, %v", path, got, ok)
		}
	}
}
