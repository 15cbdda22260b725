package csp_test

import (
	"encoding/json"
	"net/http"
	"testing"
)

// FuzzRequests sends requests of any kind with a good token: each is answered,
// by the contract where it is one of the contract, and never with a panic.
func FuzzRequests(f *testing.F) {
	for _, x := range [][3]string{
		{"POST", "tokens", `{"username":"3paradm","password":"3pardata","array_ip":""}`},
		{"POST", "hosts", `{"name":"n","uuid":"u","iqns":["iqn.a:b"],"wwpns":["10000000c9a1b2c3"],"chap_user":"c","chap_password":"123456789012"}`},
		{"POST", "volumes", `{"name":"v","size":1073741824,"config":{"cpg":"cpg1","host_sees_vlun":true,"x":null,"y":[1]}}`},
		{"POST", "volumes", `{"name":"\u0000é😀","size":1073741824,"config":{"clone_of":"w"}}`},
		{"PUT", "volumes/w", `{"size":2147483648,"volume_group_id":"","config":{"cpg":"cpg2"}}`},
		{"PUT", "volumes/w/actions/publish", `{"host_uuid":"{\"uuid\":\"u\"}"}`},
		{"PUT", "volumes/w/actions/publish", `{"access_protocol":"nfs","access_control_list":[{"a":1}]}`},
		{"PUT", "volumes/w/actions/unpublish", `{"host_uuid":"u"}`},
		{"POST", "snapshots", `{"name":"s","volume_id":"w","config":{"read_only":"true","expiration_hours":"1"}}`},
		{"POST", "volume_groups", `{"name":"g","config":{"priority":"low","ioMinGoal":"1","ioMaxLimit":"2","bwMinGoalKb":"1","bwMaxLimitKb":"2","latencyGoal":"5us"}}`},
		{"POST", "snapshot_groups", `{"name":"g","volume_group_id":"g"}`},
		{"GET", "snapshots?name=a+b%zz&volume_id=w", ``},
		{"DELETE", "volumes/w?force=true", ``},
		{"GET", "%2e%2e/volumes", ``},
	} {
		f.Add(x[0], x[1], x[2])
	}
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if _, err := http.NewRequest(method, "http://csp/containers/v1/"+path, nil); err != nil || len(body) > 4096 {
			t.Skip()
		}
		r := newRig(t, withFiles)
		defer r.close()
		r.volume("w", `{"cpg":"cpg1"}`)
		r.do(200, "POST", "/hosts", `{"name":"n0","uuid":"u","iqns":["iqn.a:0"]}`)
		r.faulty = true // a request of the fuzzer need not be by the contract
		code, b, err := r.raw(method, "/"+path, body)
		if err != nil {
			return // no request at all to Go's server
		}
		if code == 500 {
			var out struct{ Errors []struct{ Message string } }
			if json.Unmarshal([]byte(b), &out) != nil || len(out.Errors) != 1 || out.Errors[0].Message == "internal error" {
				t.Errorf("%s %s %s: %s", method, path, body, b)
			}
		}
	})
}
