package csp_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
)

// wire is a request as HPE's driver writes it on its connection, of which it
// makes one for each: headers in the order of Go's client, and a body that ends
// with a line feed, as its encoder writes one.
func (r *rig) wire(method, path, body string) (int, string) {
	r.t.Helper()
	c, err := r.net.DialContext(r.t.Context(), "tcp", "csp:8080")
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	head := method + " " + path + " HTTP/1.1\r\nHost: primera3par-csp-svc:8080\r\nUser-Agent: Go-http-client/1.1\r\nConnection: close\r\n"
	if body != "" {
		body += "\n"
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	head += "Accept: application/json\r\nContent-Type: application/json\r\n"
	if r.on != "" && r.token != "" {
		head += "X-Array-Ip: " + r.on + "\r\n"
	}
	if r.token != "" {
		head += "X-Auth-Token: " + r.token + "\r\n"
	}
	if _, err := io.WriteString(c, head+"Accept-Encoding: gzip\r\n\r\n"+body); err != nil {
		r.t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || !res.Close {
		r.t.Fatalf("%s %s: %v, closes %v", method, path, err, res.Close)
	}
	return res.StatusCode, string(b)
}

// TestWhatTheDriverSends is the life of a volume as HPE's driver has been seen
// to ask for it, request by request, with a node plugin under Kubernetes and
// without.
func TestWhatTheDriverSends(t *testing.T) {
	for _, kubernetes := range []bool{true, false} {
		t.Run(fmt.Sprint("kubernetes=", kubernetes), func(t *testing.T) {
			r := newRig(t)
			r.on = "10.0.0.1"
			step := func(status int, method, path, body, want string) {
				t.Helper()
				code, b := r.wire(method, "/containers/v1"+path, body)
				if code != status || want == "" && b != "" || !strings.Contains(b, want) {
					t.Fatalf("%s %s %s: %d %s, want %d %s", method, path, body, code, b, status, want)
				}
			}
			code, b := r.wire("POST", "/containers/v1/tokens", `{"username":"3paradm","password":"3pardata","array_ip":"10.0.0.1"}`)
			_, rest, ok := strings.Cut(b, `"session_token":"`)
			if code != 200 || !ok {
				t.Fatalf("login: %d %s", code, b)
			}
			r.token, _, _ = strings.Cut(rest, `"`)

			// CreateVolume
			step(404, "GET", "/volumes?name="+pvc, "", `{"errors":[{"code":"Not Found","message":"volume `+pvc+` not found"}]}`)
			step(200, "POST", "/volumes", `{"name":"`+pvc+`","size":1073741824,"config":{"access_protocol":"iscsi","cpg":"cpg1","csi.storage.k8s.io/pv/name":"`+pvc+`","fs_type":"ext4","host_encryption":"false","multi_initiator":false},"volume_group_id":""}`,
				`{"id":"`+pvc+`","name":"`+pvc+`","size":1073741824,`)
			// ControllerPublishVolume
			step(200, "GET", "/volumes/"+pvc, "", `"published":false`)
			step(200, "POST", "/hosts", `{"name":"node-1","uuid":"`+uuid+`","iqns":["iqn.1994-05.com.redhat:n1"],"networks":["10.1.0.5/24"],"access_protocol":"iscsi"}`, `"id":"`+uuid+`"`)
			id := uuid
			if !kubernetes {
				id = `{\"name\":\"node-1\",\"uuid\":\"` + uuid + `\",\"iqns\":[\"iqn.1994-05.com.redhat:n1\"],\"networks\":[\"10.1.0.5/24\"]}`
			}
			publish := `{"host_uuid":"` + uuid + `","access_protocol":"iscsi"}`
			if n := len(publish + "\n"); n != 79 { // as seen: ContentLength=79
				t.Errorf("publish has %d bytes", n)
			}
			wwn := strings.ToLower(r.arrays[0].volumes()[0].WWN)
			step(200, "PUT", "/volumes/"+pvc+"/actions/publish", publish,
				`{"serial_number":"`+wwn+`","access_protocol":"iscsi","lun_id":0,"target_names":["iqn.2000-05.com.3pardata:20210002ac`)
			// CreateSnapshot, ListSnapshots
			step(404, "GET", "/snapshots?name=snapshot-1&volume_id="+pvc, "", `"code":"Not Found"`)
			step(200, "POST", "/snapshots", `{"name":"snapshot-1","description":"Snapshot of `+pvc+`","volume_id":"`+pvc+`"}`, `{"id":"snapshot-1","name":"snapshot-1","size":1073741824,`)
			step(200, "GET", "/snapshots", "", `[{"id":"snapshot-1"`)
			step(200, "GET", "/snapshots/snapshot-1", "", `"ready_to_use":true`)
			// CreateVolume from a volume, whose snapshot the provider tidies away
			step(404, "GET", "/volumes?name=pvc-c", "", `"code":"Not Found"`)
			step(200, "POST", "/snapshots", `{"name":"snap-for-clone-2026-11-29T23:50:00+02:00","description":"snap-for-clone-2026-11-29T23:50:00+02:00","volume_id":"`+pvc+`"}`, `{"id":"snap-for-clone-2026-11-29T23:50:00+02:00"`)
			step(200, "POST", "/volumes", `{"name":"pvc-c","size":1073741824,"base_snapshot_id":"snap-for-clone-2026-11-29T23:50:00+02:00","clone":true,"config":{"cpg":"cpg1"},"volume_group_id":""}`, `"clone":true`)
			step(204, "DELETE", "/volumes/pvc-c?force=false", "", "")
			// ControllerExpandVolume
			step(200, "GET", "/volumes/"+pvc, "", `"published":true`)
			step(200, "PUT", "/volumes/"+pvc, `{"id":"`+pvc+`","size":2147483648,"volume_group_id":""}`, `"size":2147483648`)
			// ControllerUnpublishVolume
			step(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", `{"host_uuid":"`+id+`"}`, "")
			if n := len(r.arrays[0].vluns(vv)); n != 0 {
				t.Errorf("%d exports stay", n)
			}
			// DeleteVolume, with a snapshot and without
			step(200, "GET", "/volumes/"+pvc, "", `"published":false`)
			step(200, "GET", "/snapshots?volume_id="+pvc+"&mode=exists", "", `[{"id":"snapshot-1"`)
			step(204, "DELETE", "/snapshots/snapshot-1", "", "")
			step(200, "GET", "/snapshots?volume_id="+pvc+"&mode=exists", "", `[]`)
			step(204, "DELETE", "/volumes/"+pvc+"?force=false", "", "")
			step(404, "GET", "/volumes/"+pvc, "", `"code":"Not Found"`)
			step(200, "GET", "/volumes", "", `[]`)
			if all := r.arrays[0].volumes(); len(all) != 0 {
				t.Errorf("volumes that stay: %v", all)
			}
		})
	}
}

// Off the cluster the driver has a prefix of its own, no x-array-ip and an empty
// array_ip.
func TestOffTheCluster(t *testing.T) {
	r := newRig(t)
	r.on = ""
	code, b := r.wire("POST", "/csp/containers/v1/tokens", `{"username":"3paradm","password":"3pardata","array_ip":""}`)
	_, rest, _ := strings.Cut(b, `"session_token":"`)
	r.token, _, _ = strings.Cut(rest, `"`)
	if code != 200 || r.token == "" {
		t.Fatalf("login: %d %s", code, b)
	}
	if code, b := r.wire("GET", "/csp/containers/v1/volumes", ""); code != 200 || b != "[]" {
		t.Errorf("%d %s", code, b)
	}
}

// What lies between provider and array are the requests of the known clients.
func TestWhatTheArrayIsSent(t *testing.T) {
	r := newRig(t, withArray(func(c *array.Config) { c.Nodes = 1 }), withCSP(func(c *csp.Config) { c.KeepHosts = true }))
	r.volume(pvc, `{"access_protocol":"iscsi","cpg":"cpg1"}`)
	r.do(200, "POST", "/hosts", fmt.Sprintf(node, "iscsi"))
	r.do(200, "PUT", "/volumes/"+pvc+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
	r.do(204, "PUT", "/volumes/"+pvc+"/actions/unpublish", `{"host_uuid":"`+uuid+`"}`)
	var got []string
	for _, e := range r.in.Ledger.Entries() {
		if e.Hop == "wsapi" {
			got = append(got, strings.TrimSpace(e.Op+" "+e.Request))
		}
	}
	want := []string{
		`POST /credentials`,
		`GET /volumes/{name}`, `GET /volumes/{name}`, // the two names that it could have
		`GET /api`,
		`POST /volumes {"name":"` + vv + `","cpg":"cpg1","snapCPG":"cpg1","sizeMiB":1024,"tpvv":true,"comment":"{\"kind\":\"volume\",\"id\":\"` + pvc + `\",\"desc\":\"d\",\"cfg\":{\"access_protocol\":\"iscsi\",\"cpg\":\"cpg1\"}}"}`,
		`GET /volumes/{name}`, `GET /vluns "volumeName EQ ` + vv + `"`,
		`GET /hosts/{name}`, `GET /hosts/{name}`, `GET /hosts`, `POST /hosts`, `GET /hosts/{name}`,
		`GET /volumes/{name}`, `GET /ports`, `GET /vluns "volumeName EQ ` + vv + `"`,
		`POST /vluns {"volumeName":"` + vv + `","lun":0,"hostname":"iqn-node-1","portPos":{"node":0,"slot":2,"cardPort":1},"autoLun":true,"maxAutoLun":0}`,
		`POST /vluns {"volumeName":"` + vv + `","lun":0,"hostname":"iqn-node-1","portPos":{"node":0,"slot":2,"cardPort":2},"autoLun":true,"maxAutoLun":0}`,
		`GET /volumes/{name}`, `GET /vluns "volumeName EQ ` + vv + `"`,
		`DELETE /vluns/{id}`, `DELETE /vluns/{id}`,
	}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("the array was sent\n%s\nwant\n%s", g, w)
	}
}
