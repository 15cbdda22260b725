package wsapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/transport"
)

var users = []array.User{{Name: "3paradm", Password: "3pardata", Role: array.Super}, {Name: "look", Password: "look1", Role: array.Browse},
	{Name: "edit", Password: "edit1", Role: array.Edit}}

// rig is an array with its face, and a client that talks as python-3parclient
// does: it logs in again on 401 and 403, once, and waits 1, 3, 7, 15 s on 503.
type rig struct {
	t     *testing.T
	a     *array.Array
	s     *Server
	http  *http.Client
	key   string
	user  array.User
	slept []time.Duration
}

func newRig(t *testing.T, ac array.Config, cfg Config) *rig {
	t.Helper()
	ac.Users = users
	a, err := array.New(ac)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now
	if cfg.Now != nil {
		now = cfg.Now
	}
	if _, err := a.CreateCPG(now(), array.CPGSpec{Name: "cpg1"}); err != nil {
		t.Fatal(err)
	}
	net := transport.NewMemory()
	if cfg.Listener == nil {
		if cfg.Listener, err = net.Listen("tcp", "array:0"); err != nil {
			t.Fatal(err)
		}
	}
	cfg.Array = a
	s, err := New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{DialContext: net.DialContext, DisableKeepAlives: true}
	t.Cleanup(func() { s.Close(); tr.CloseIdleConnections() })
	return &rig{t: t, a: a, s: s, http: &http.Client{Transport: tr}, user: users[0]}
}

// raw sends a request as it is.
func (r *rig) raw(method, path, key, body string) (int, http.Header, string, error) {
	req, err := http.NewRequest(method, r.s.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, "", err
	}
	if key != "" {
		req.Header.Set("X-Hp3Par-Wsapi-Sessionkey", key)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := r.http.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, res.Header, string(b), err
}

func (r *rig) login() {
	r.t.Helper()
	code, _, body, err := r.raw("POST", "/api/v1/credentials", "", fmt.Sprintf(`{"user":%q,"password":%q}`, r.user.Name, r.user.Password))
	var out struct{ Key string }
	if err != nil || code != 201 || json.Unmarshal([]byte(body), &out) != nil || out.Key == "" {
		r.t.Fatalf("login: %d %s %v", code, body, err)
	}
	r.key = out.Key
}

// do sends a request as the client does.
func (r *rig) do(method, path, body string) (int, http.Header, string) {
	r.t.Helper()
	if r.key == "" {
		r.login()
	}
	again := false
	delay := time.Duration(0)
	for try := 0; ; try++ {
		code, h, b, err := r.raw(method, "/api/v1"+path, r.key, body)
		switch {
		case err != nil:
			r.t.Fatalf("%s %s: %v", method, path, err)
		case (code == 401 || code == 403) && !again && r.user.Role != array.Browse:
			again = true
			r.login()
		case code == 503 && try < 4:
			delay = delay*2 + time.Second
			r.slept = append(r.slept, delay)
			time.Sleep(delay)
		default:
			return code, h, b
		}
	}
}

// want sends a request and checks the status.
func (r *rig) want(status int, method, path, body string) map[string]any {
	r.t.Helper()
	code, h, b := r.do(method, path, body)
	if code != status {
		r.t.Fatalf("%s %s %s: %d %s, want %d", method, path, body, code, b, status)
	}
	out := map[string]any{"Location": h.Get("Location")}
	if b != "" {
		if err := json.Unmarshal([]byte(b), &out); err != nil {
			r.t.Fatalf("%s %s: %v in %q", method, path, err, b)
		}
	}
	return out
}

// refused sends a request and checks number and status of the refusal.
func (r *rig) refused(status, number int, method, path, body string) {
	r.t.Helper()
	code, _, b := r.do(method, path, body)
	var out struct{ Code int }
	if err := json.Unmarshal([]byte(b), &out); err != nil || code != status || out.Code != number {
		r.t.Errorf("%s %s %s: %d %s, want %d code %d", method, path, clip(body), code, b, status, number)
	}
}

func members(m map[string]any) (out []map[string]any) {
	for _, x := range m["members"].([]any) {
		out = append(out, x.(map[string]any))
	}
	return out
}

func q(s string) string { return "?query=" + url.QueryEscape(`"`+s+`"`) }

func TestVolumeFromCreationToDeletion(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	const name = "pvc-00000000-0000-0000-0000-000"
	if got := r.want(201, "POST", "/volumes", `{"name":"`+name+`","cpg":"cpg1","sizeMiB":1024,"tpvv":true,"snapCPG":"cpg1","comment":"c"}`)["Location"]; got != "/api/v1/volumes/"+name {
		t.Errorf("Location is %v", got)
	}
	v := r.want(200, "GET", "/volumes/"+name, "")
	wwn, _ := v["wwn"].(string)
	if v["sizeMiB"] != 1024.0 || v["provisioningType"] != 2.0 || v["copyType"] != 1.0 || len(wwn) != 32 || !strings.HasPrefix(wwn, "60002AC0") || v["snapCPG"] != "cpg1" {
		t.Errorf("volume is %v", v)
	}
	if l := v["links"].([]any)[0].(map[string]any); l["href"] != r.s.URL()+"/api/v1/volumes/"+name || l["rel"] != "self" {
		t.Errorf("link is %v", l)
	}
	r.want(200, "PUT", "/volumes/"+name, `{"action":3,"sizeMiB":256}`)
	r.want(201, "POST", "/volumes/"+name, `{"action":"createSnapshot","parameters":{"name":"s1","readOnly":true,"expirationHours":2,"retentionHours":1}}`)
	r.refused(409, array.HasReadOnlyChild.Wire().Code, "DELETE", "/volumes/"+name, "")
	for _, query := range []string{"copyOf EQ " + name, "copyOf==" + name} {
		if got := members(r.want(200, "GET", "/volumes"+q(query), "")); len(got) != 1 || got[0]["name"] != "s1" || got[0]["provisioningType"] != 3.0 {
			t.Errorf("%s: %v", query, got)
		}
	}
	r.refused(409, array.Retained.Wire().Code, "DELETE", "/volumes/s1", "")
	r.want(201, "POST", "/volumes/"+name, `{"action":"createSnapshot","parameters":{"name":"s2"}}`)
	if id := r.want(200, "PUT", "/volumes/s2", `{"action":4}`)["taskid"]; id != 1.0 {
		t.Errorf("promotion is task %v", id)
	}
	if got := r.want(200, "GET", "/volumes", "")["total"]; got != 3.0 {
		t.Errorf("%v volumes, want 3", got)
	}
	r.want(200, "PUT", "/volumes/"+name, `{"newName":"other"}`)
	r.want(200, "PUT", "/volumes/other", `{"policies":{"zeroDetect":true}}`)
	r.want(200, "PUT", "/volumes/other", `{"policies":{"oneHost":true}}`)
	if p := r.want(200, "GET", "/volumes/other", "")["policies"].(map[string]any); p["zeroDetect"] != true || p["oneHost"] != true || p["staleSS"] != false {
		t.Errorf("policies are %v", p)
	}
	r.refused(404, 23, "GET", "/volumes/"+name, "")
	r.want(201, "POST", "/volumes/other/objectKeyValues", `{"key":"a/b","value":"1"}`)
	r.refused(409, 181, "POST", "/volumes/other/objectKeyValues", `{"key":"a/b","value":"1"}`)
	r.want(200, "PUT", "/volumes/other/objectKeyValues/a%2Fb", `{"value":"2"}`)
	if got := r.want(200, "GET", "/volumes/other/objectKeyValues/a%2Fb", "")["value"]; got != "2" {
		t.Errorf("value is %v", got)
	}
	r.want(200, "DELETE", "/volumes/other/objectKeyValues/a%2Fb", "")
	r.refused(404, 180, "GET", "/volumes/other/objectKeyValues/a%2Fb", "")
}

func TestCascade(t *testing.T) {
	now := new(time.Time)
	var mu sync.Mutex
	*now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRig(t, array.Config{}, Config{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return *now }})
	r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true,"snapCPG":"cpg1"}`)
	r.want(201, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s"}}`)
	r.want(201, "POST", "/volumes/s", `{"action":"createSnapshot","parameters":{"name":"ss"}}`)
	r.refused(409, 32, "DELETE", "/volumes/v", "")
	r.want(201, "POST", "/volumesets", `{"name":"vs","setmembers":["v"]}`)
	r.refused(409, 34, "DELETE", "/volumes/v?cascade=true", "")
	r.want(200, "DELETE", "/volumesets/vs", "")
	r.want(201, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"kept","retentionHours":1}}`)
	r.refused(409, array.Retained.Wire().Code, "DELETE", "/volumes/v?cascade=true", "")
	r.refused(400, 12, "DELETE", "/volumes/v?cascade=perhaps", "")
	if n := r.want(200, "GET", "/volumes", "")["total"]; n != 4.0 {
		t.Errorf("%v volumes are left, want 4", n)
	}
	mu.Lock()
	*now = now.Add(2 * time.Hour)
	mu.Unlock()
	r.want(200, "DELETE", "/volumes/v?cascade=true", "")
	if n := r.want(200, "GET", "/volumes", "")["total"]; n != 0.0 {
		t.Errorf("%v volumes are left", n)
	}
}

func TestExports(t *testing.T) {
	r := newRig(t, array.Config{}, Config{})
	r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
	r.want(201, "POST", "/volumes", `{"name":"w","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
	const iqn = "iqn.1993-08.org.debian:01:abc"
	r.want(201, "POST", "/hosts", `{"name":"iqn-n1","persona":2,"iSCSINames":["`+iqn+`"],"descriptors":{"os":"linux"}}`)
	if got := members(r.want(200, "GET", "/hosts"+q("FCPaths[wwn==10000000C9000001 OR wwn==1] OR iSCSIPaths[name=="+iqn+"]"), "")); len(got) != 1 || got[0]["name"] != "iqn-n1" {
		t.Errorf("hosts are %v", got)
	}
	if n := r.want(200, "GET", "/hosts"+q("iSCSIPaths[name==iqn.x:y]"), "")["total"]; n != 0.0 {
		t.Errorf("%v hosts", n)
	}
	var iscsi array.PortPos
	for _, p := range r.a.Ports() {
		if p.Protocol == array.ISCSI {
			iscsi = p.PortPos
		}
	}
	pos := fmt.Sprintf(`{"node":%d,"slot":%d,"cardPort":%d}`, iscsi.Node, iscsi.Slot, iscsi.Card)
	matched := `{"volumeName":"v","lun":0,"hostname":"iqn-n1","portPos":` + pos + `,"autoLun":true,"maxAutoLun":0}`
	loc := r.want(201, "POST", "/vluns", matched)["Location"]
	if want := fmt.Sprintf("/api/v1/vluns/v,0,iqn-n1,%s", iscsi); loc != want {
		t.Errorf("Location is %v, want %s", loc, want)
	}
	r.refused(409, 18, "POST", "/vluns", matched)
	if got := r.want(201, "POST", "/vluns", `{"volumeName":"w","lun":0,"hostname":"iqn-n1","autoLun":true}`)["Location"]; got != "/api/v1/vluns/w,1,iqn-n1" {
		t.Errorf("Location is %v", got)
	}
	r.refused(409, 26, "DELETE", "/volumes/v", "")
	r.refused(409, 26, "DELETE", "/hosts/iqn-n1", "")
	if got := members(r.want(200, "GET", "/vluns"+q("volumeName EQ v"), "")); len(got) != 1 || got[0]["type"] != 4.0 || got[0]["active"] != false || got[0]["hostname"] != "iqn-n1" {
		t.Errorf("vluns are %v", got)
	}
	r.s.cfg.Lock.Lock()
	err := r.a.Login(array.Path{Protocol: array.ISCSI, Name: iqn}, iscsi)
	r.s.cfg.Lock.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if got := members(r.want(200, "GET", "/vluns"+q("volumeName==v"), "")); len(got) != 2 || got[1]["active"] != true || got[1]["remoteName"] != iqn {
		t.Errorf("vluns are %v", got)
	}
	if got := members(r.want(200, "GET", "/vluns"+q("hostname EQ iqn-n1"), "")); len(got) != 4 {
		t.Errorf("vluns are %v", got)
	}
	r.want(200, "DELETE", strings.TrimPrefix(loc.(string), "/api/v1"), "")
	r.refused(404, 19, "DELETE", strings.TrimPrefix(loc.(string), "/api/v1"), "")
	r.want(200, "DELETE", "/volumes/v", "")
	r.want(200, "PUT", "/hosts/iqn-n1", `{"chapOperation":1,"chapOperationMode":1,"chapName":"u","chapSecret":"secret-secret"}`)
	if h := r.want(200, "GET", "/hosts/iqn-n1", ""); h["initiatorChapEnabled"] != true || strings.Contains(fmt.Sprint(h), "secret") {
		t.Errorf("host is %v", h)
	}
	loc = r.want(201, "POST", "/vluns", `{"volumeName":"w","lun":5,"portPos":`+pos+`}`)["Location"]
	if want := fmt.Sprintf("/api/v1/vluns/w,5,,%s", iscsi); loc != want {
		t.Errorf("Location is %v, want %s", loc, want)
	}
	r.want(200, "GET", strings.TrimPrefix(loc.(string), "/api/v1"), "")
	r.want(200, "DELETE", strings.TrimPrefix(loc.(string), "/api/v1"), "")
}

func TestRefusals(t *testing.T) {
	r := newRig(t, array.Config{Domains: []string{"dom"}}, Config{})
	r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true,"snapCPG":"cpg1"}`)
	r.want(201, "POST", "/volumes", `{"name":"plain","cpg":"cpg1","sizeMiB":256,"tpvv":true,"id":77}`)
	r.want(201, "POST", "/cpgs", `{"name":"small","growthLimitMiB":1024,"domain":"dom","LDLayout":{"RAIDType":4,"HA":1,"setSize":6}}`)
	r.want(201, "POST", "/hosts", `{"name":"h","FCWWNs":["10000000C9000001"]}`)
	r.want(201, "POST", "/hosts", `{"name":"h2","iSCSINames":["iqn.a:b"]}`)
	var disk string
	for _, p := range r.a.Ports() {
		if p.Type == array.DiskPort {
			disk = fmt.Sprintf(`{"node":%d,"slot":%d,"cardPort":%d}`, p.Node, p.Slot, p.Card)
		}
	}
	volume := func(rest string) string { return `{"name":"x","cpg":"cpg1","sizeMiB":256` + rest + `}` }
	for _, x := range []struct {
		status, code       int
		method, path, body string
	}{
		{400, 3, "POST", "/volumes", ""},
		{400, 60, "POST", "/volumes", "{"},
		{400, 60, "POST", "/volumes", `{"name":"x"} {}`},
		{413, 4, "POST", "/volumes", `{"name":"` + strings.Repeat("x", face.MaxBody) + `"}`},
		{501, 9, "PATCH", "/volumes", ""},
		{501, 9, "DELETE", "/volumes", ""},
		{404, 11, "GET", "/nothing", ""},
		{404, 11, "GET", "/volumes/v/nothing", ""},
		{404, 11, "GET", "/volumes//", ""},
		{400, 12, "POST", "/volumes", volume(`,"unknown":1`)},
		{400, 12, "POST", "/volumes", volume(`,"Name":"y"`)},
		{400, 39, "POST", "/volumes", `[]`},
		{400, 39, "POST", "/volumes", `null`},
		{400, 39, "POST", "/volumes", volume(`,"comment":1`)},
		{400, 39, "POST", "/volumes", volume(`,"comment":null`)},
		{400, 39, "POST", "/volumes", volume(`,"tpvv":"true"`)},
		{400, 39, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":"256"}`},
		{400, 39, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":256.0}`},
		{400, 43, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":99999999999999999999}`},
		{400, 40, "POST", "/volumes", `{"cpg":"cpg1","sizeMiB":256}`},
		{400, 40, "POST", "/volumes", `{"name":"x","sizeMiB":256}`},
		{400, 40, "POST", "/volumes", `{"name":"x","cpg":"cpg1"}`},
		{400, 44, "POST", "/volumes", volume(`,"tpvv":true,"reduce":true`)},
		{400, 45, "POST", "/volumes", `{"name":"","cpg":"cpg1","sizeMiB":256}`},
		{400, 57, "POST", "/volumes", `{"name":"` + strings.Repeat("x", 32) + `","cpg":"cpg1","sizeMiB":256}`},
		{400, 69, "POST", "/volumes", `{"name":"a b","cpg":"cpg1","sizeMiB":256}`},
		{409, 22, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256}`},
		{409, 59, "POST", "/volumes", volume(`,"id":77`)},
		{404, 15, "POST", "/volumes", `{"name":"x","cpg":"nope","sizeMiB":256}`},
		{400, 12, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":0}`},
		{400, 115, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":255}`},
		{400, 28, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":16777217}`},
		{400, 12, "POST", "/volumes", volume(`,"tdvv":true`)}, // a Primera reduces
		{400, 43, "POST", "/volumes", volume(`,"usrSpcAllocWarningPct":101`)},
		{404, 23, "GET", "/volumes/nope", ""},
		{404, 23, "DELETE", "/volumes/nope", ""},
		{404, 23, "PUT", "/volumes/nope", `{"comment":"x"}`},
		{400, 152, "PUT", "/volumes/v", `{"action":3,"sizeMiB":-1}`},
		{400, 46, "PUT", "/volumes/v", `{"action":9}`},
		{400, 40, "PUT", "/volumes/v", `{}`},
		{400, 12, "PUT", "/volumes/v", `{"sizeMiB":512}`},
		{400, 44, "PUT", "/volumes/v", `{"action":3,"sizeMiB":256,"comment":"x"}`},
		{409, 185, "PUT", "/volumes/v", `{"action":5}`},
		{400, 46, "POST", "/volumes/v", `{"action":"fly","parameters":{}}`},
		{400, 40, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{}}`},
		{400, 12, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","online":true}}`},
		{409, array.NoSnapCPG.Wire().Code, "POST", "/volumes/plain", `{"action":"createSnapshot","parameters":{"name":"s"}}`},
		{409, 14, "POST", "/cpgs", `{"name":"cpg1"}`},
		{404, 15, "GET", "/cpgs/nope", ""},
		{409, 34, "DELETE", "/cpgs/cpg1", ""},
		{404, 38, "POST", "/cpgs", `{"name":"c2","domain":"nope"}`},
		{409, 16, "POST", "/hosts", `{"name":"h"}`},
		{404, 17, "GET", "/hosts/nope", ""},
		{404, 38, "POST", "/hosts", `{"name":"h3","domain":"nope"}`},
		{400, 46, "POST", "/hosts", `{"name":"h3","persona":12}`},
		{400, 46, "POST", "/hosts", `{"name":"h3","persona":0}`},
		{409, 73, "POST", "/hosts", `{"name":"h3","FCWWNs":["10000000C9000001"]}`},
		{409, 73, "POST", "/hosts", `{"name":"h3","iSCSINames":["iqn.a:b"]}`},
		{400, 98, "POST", "/hosts", `{"name":"h3","iSCSINames":["iqn.c:d","iqn.c:d"]}`},
		{400, 44, "POST", "/hosts", `{"name":"h3","FCWWNs":["10000000C9000002"],"iSCSINames":["iqn.c:d"]}`},
		{400, 78, "PUT", "/hosts/h", `{"pathOperation":1}`},
		{404, 80, "PUT", "/hosts/h", `{"pathOperation":2,"FCWWNs":["10000000C9000009"]}`},
		{400, array.CHAPLength.Wire().Code, "PUT", "/hosts/h2", `{"chapOperation":1,"chapOperationMode":1,"chapName":"u","chapSecret":"short"}`},
		{400, 40, "POST", "/vluns", `{"volumeName":"v","hostname":"h"}`},
		{404, 23, "POST", "/vluns", `{"volumeName":"nope","lun":1,"hostname":"h"}`},
		{404, 17, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"nope"}`},
		{404, 102, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"set:nope"}`},
		{404, 20, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"h","portPos":{"node":7,"slot":9,"cardPort":4}}`},
		{400, 55, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"h","portPos":{"node":70,"slot":9,"cardPort":4}}`},
		{400, 21, "POST", "/vluns", `{"volumeName":"v","lun":1,"hostname":"h","portPos":` + disk + `}`},
		{400, array.MissingExport.Wire().Code, "POST", "/vluns", `{"volumeName":"v","lun":1}`},
		{400, 28, "POST", "/vluns", `{"volumeName":"v","lun":16385,"hostname":"h"}`},
		{400, 43, "POST", "/vluns", `{"volumeName":"v","lun":-1,"hostname":"h"}`},
		{404, 19, "GET", "/vluns/v,1,h", ""},
		{400, 12, "GET", "/vluns/v", ""},
		{400, 12, "GET", "/vluns" + q("nope EQ x"), ""},
		{400, 12, "GET", "/vluns" + q("volumeName"), ""},
		{400, 12, "GET", "/hosts" + q("FCPaths[wwn==1"), ""},
		{404, 20, "GET", "/ports/7:9:4", ""},
		{400, 55, "GET", "/ports/x", ""},
		{404, 15, "POST", "/spacereporter", `{"cpg":"nope"}`},
	} {
		r.refused(x.status, x.code, x.method, x.path, x.body)
	}
	if n := len(r.a.Volumes()) + len(r.a.Hosts()) + len(r.a.VLUNs()); n != 4 {
		t.Errorf("%d objects, want 4: a refused request made one", n)
	}
}

func TestSessions(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	r := newRig(t, array.Config{MaxSessions: 2}, Config{Now: clock})
	for _, key := range []string{"", "wrong"} {
		code, h, body, err := r.raw("GET", "/api/v1/volumes", key, "")
		if err != nil || code != 403 || body != `{"code":6,"desc":"invalid session key"}` || h.Get("Server") != "hp3par-wsapi" {
			t.Errorf("key %q: %d %s %v", key, code, body, err)
		}
	}
	if code, _, body, _ := r.raw("POST", "/api/v1/credentials", "", `{"user":"3paradm","password":"wrong"}`); code != 403 || !strings.Contains(body, `"code":5`) {
		t.Errorf("wrong password: %d %s", code, body)
	}
	r.want(200, "GET", "/system", "")
	first := r.key
	r.want(200, "GET", "/volumes", "")
	if r.key != first {
		t.Error("the client logged in again for nothing")
	}
	mu.Lock()
	now = now.Add(15 * time.Minute)
	mu.Unlock()
	r.want(200, "GET", "/volumes", "") // after 403 code 6 and a new login
	if r.key == first {
		t.Error("the key did not idle out")
	}
	r.login()
	if code, _, body, _ := r.raw("POST", "/api/v1/credentials", "", `{"user":"3paradm","password":"3pardata"}`); code != 503 || !strings.Contains(body, `"code":270`) {
		t.Errorf("third session of two: %d %s", code, body)
	}
	r.want(200, "DELETE", "/credentials/"+r.key, "")
	if code, _, _, _ := r.raw("GET", "/api/v1/volumes", r.key, ""); code != 403 {
		t.Errorf("after logout: %d", code)
	}

	r.user = users[1]
	r.key = ""
	r.want(200, "GET", "/volumes", "")
	r.refused(403, 13, "POST", "/volumes", `{"name":"x","cpg":"cpg1","sizeMiB":256}`)
	r.refused(403, 13, "DELETE", "/credentials/other", "")
}

func TestVersions(t *testing.T) {
	for f, build := range map[array.Family]float64{array.ThreePAR: 30301215, array.Primera: 40000128} {
		r := newRig(t, array.Config{Family: f}, Config{})
		_, _, body, err := r.raw("GET", "/api", "", "")
		var v map[string]float64
		if err != nil || json.Unmarshal([]byte(body), &v) != nil || v["build"] != build || v["major"] != 1 {
			t.Errorf("%s: %s %v", f, body, err)
		}
		if sys := r.want(200, "GET", "/system", ""); sys["serialNumber"] != r.a.Config().Serial || sys["totalNodes"] != 2.0 {
			t.Errorf("system is %v", sys)
		}
		r.want(200, "GET", "/capacity", "")
		r.want(200, "GET", "/wsapiconfiguration", "")
		r.want(200, "POST", "/spacereporter", `{"cpg":"cpg1"}`)
		if n := r.want(200, "GET", "/ports", "")["total"]; n != float64(len(r.a.Ports())) {
			t.Errorf("%v ports", n)
		}
	}
}

func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		led := &ledger.Ledger{}
		plan := &fault.Plan{}
		plan.Arm(fault.Rule{Name: "busy", Hop: ledger.WSAPI, Op: "POST /vluns", First: 2, Do: fault.Error(&array.Error{Kind: array.TooBusy})})
		plan.Arm(fault.Rule{Name: "lost", Hop: ledger.WSAPI, Op: "POST /hosts", Phase: fault.After, First: 1, Do: fault.Drop()})
		plan.Arm(fault.Rule{Name: "gateway", Hop: ledger.WSAPI, Op: "GET /cpgs", First: 1, Do: fault.Error(&Fault{Status: 502, Desc: "bad gateway"})})
		in := &fault.Interceptor{Ledger: led, Plan: plan, Classify: func(_ ledger.Hop, err error) string { return CodeOf(err) }}
		defer in.Close()
		r := newRig(t, array.Config{}, Config{In: in})
		defer r.s.Close()
		r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":256,"tpvv":true}`)
		if _, _, _, err := r.raw("POST", "/api/v1/hosts", r.key, `{"name":"h"}`); err == nil {
			t.Error("the reply was not lost")
		}
		r.refused(409, 16, "POST", "/hosts", `{"name":"h"}`)
		r.want(201, "POST", "/vluns", `{"volumeName":"v","lun":0,"hostname":"h","autoLun":true}`)
		if fmt.Sprint(r.slept) != "[1s 3s]" {
			t.Errorf("slept %v", r.slept)
		}
		if code, _, body := r.do("GET", "/cpgs", ""); code != 502 || body != `{"message":"bad gateway"}` {
			t.Errorf("%d %s", code, body)
		}
		seen := map[string]int{}
		for _, e := range led.Entries(ledger.OnHop(ledger.WSAPI)) {
			seen[e.Op+" "+string(e.Outcome)+" "+e.Code]++
			if strings.Contains(e.Request, "3pardata") || e.Outcome == ledger.Pending {
				t.Errorf("entry %v", e)
			}
			if e.Op == "POST /vluns" && (e.Volume != "v" || e.Node != "h") {
				t.Errorf("entry %+v", e)
			}
		}
		for what, n := range map[string]int{"POST /vluns refused SYSTEM_BUSY": 2, "POST /vluns ok ": 1, "POST /hosts maybe-applied ": 1, "POST /hosts failed EXISTENT_HOST": 1} {
			if seen[what] != n {
				t.Errorf("%s: %d, want %d in %v", what, seen[what], n, seen)
			}
		}
	})
}

// contents notes what it was told, and fails when it shall.
type contents struct {
	mu   sync.Mutex
	ops  []array.ContentOp
	fail error
}

func (c *contents) Apply(_ context.Context, ops []array.ContentOp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return c.fail
	}
	c.ops = append(c.ops, ops...)
	return nil
}

func (c *contents) set(err error) { c.mu.Lock(); c.fail = err; c.mu.Unlock() }

func TestContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &contents{}
		r := newRig(t, array.Config{}, Config{Contents: c})
		defer r.s.Close()
		r.want(201, "POST", "/volumes", `{"name":"v","cpg":"cpg1","sizeMiB":1024,"tpvv":true,"snapCPG":"cpg1"}`)
		c.set(errors.New("disk full"))
		r.refused(500, 1, "POST", "/volumes", `{"name":"w","cpg":"cpg1","sizeMiB":256}`)
		r.refused(500, 1, "DELETE", "/volumes/v", "")
		r.refused(404, 23, "GET", "/volumes/w", "")
		c.set(nil)
		r.want(201, "POST", "/volumes/v", `{"action":"createSnapshot","parameters":{"name":"s","expirationHours":1}}`)
		task := r.want(201, "POST", "/volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"c","destCPG":"cpg1","online":true,"tpvv":true}}`)
		if task["taskid"] != 1.0 {
			t.Errorf("copy is %v", task)
		}
		c.set(errors.New("disk full"))
		time.Sleep(61 * time.Minute) // the snapshot expires, its image can't be dropped
		r.refused(404, 23, "GET", "/volumes/s", "")
		c.set(nil)
		time.Sleep(2 * time.Second)
		c.mu.Lock()
		defer c.mu.Unlock()
		var did []string
		for _, o := range c.ops {
			did = append(did, string(o.Do))
		}
		if got := strings.Join(did, " "); !strings.HasPrefix(got, "make copy") || did[len(did)-1] != "drop" {
			t.Errorf("content: %s", got)
		}
	})
}

// A session's requests are carried out one after the other, those of two
// sessions side by side.
func TestSessionsAreSerialised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		plan.Arm(fault.Rule{Name: "slow", Hop: ledger.WSAPI, Op: "GET /system", Do: fault.Delay(time.Second)})
		in := &fault.Interceptor{Plan: plan}
		defer in.Close()
		r := newRig(t, array.Config{}, Config{In: in})
		defer r.s.Close()
		r.login()
		one := r.key
		r.login()
		took := func(keys ...string) time.Duration {
			start := time.Now()
			var wg sync.WaitGroup
			for _, k := range keys {
				wg.Go(func() {
					if code, _, _, err := r.raw("GET", "/api/v1/system", k, ""); code != 200 {
						t.Errorf("%d %v", code, err)
					}
				})
			}
			wg.Wait()
			return time.Since(start).Truncate(time.Second)
		}
		if d := took(one, one, one); d != 3*time.Second {
			t.Errorf("three of one session took %s", d)
		}
		if d := took(one, r.key); d != time.Second {
			t.Errorf("two of two sessions took %s", d)
		}
		if r.s.lanes.Len() != 0 {
			t.Errorf("%d lanes are left", r.s.lanes.Len())
		}
	})
}

// Close ends calls that hang at a rule, and those that wait for their turn
// behind them.
func TestCloseEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		hang := plan.Arm(fault.Rule{Name: "hang", Hop: ledger.WSAPI, Op: "GET /system", Do: fault.Hang()})
		in := &fault.Interceptor{Plan: plan}
		r := newRig(t, array.Config{}, Config{In: in})
		r.login()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if code, _, _, err := r.raw("GET", "/api/v1/system", r.key, ""); err == nil {
					t.Errorf("answered with %d", code)
				}
			})
		}
		synctest.Wait()
		if n := hang.Fired(); n != 1 {
			t.Errorf("%d hang, want 1: the others wait", n)
		}
		r.s.Close()
		wg.Wait()
		if _, _, _, err := r.raw("GET", "/api", "", ""); err == nil {
			t.Error("a closed face answers")
		}
	})
}

// TestBodyThatDoesNotCome: a request that stops in the midst ends, and nobody
// else waits for it.
func TestBodyThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, array.Config{}, Config{})
		conn, err := r.http.Transport.(*http.Transport).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.s.URL(), "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		if _, err := io.WriteString(conn, "POST /api/v1/credentials HTTP/1.1\r\nHost: array\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		r.login()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 408 || !strings.Contains(string(b), `"code":7`) || time.Since(began) != face.BodyTime {
			t.Errorf("after %v: %d %s, %v", time.Since(began), res.StatusCode, b, err)
		}
	})
}

func TestTLS(t *testing.T) {
	a, err := array.New(array.Config{Users: users})
	if err != nil {
		t.Fatal(err)
	}
	for _, tls := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		s, err := New(ctx, Config{Array: a, TLS: tls})
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: insecure()}
		res, err := (&http.Client{Transport: tr}).Post(s.URL()+"/api/v1/credentials", "application/json", bytes.NewReader([]byte(`{"user":"edit","password":"edit1"}`)))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 201 || !strings.HasPrefix(res.Header.Get("Location"), "/api/v1/credentials/") {
			t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		tr.CloseIdleConnections()
		cancel() // ends it as Close does
		s.Close()
	}
	for _, cfg := range []Config{{}, {Array: a, TickEvery: -1}, {Array: a, Build: -1}} {
		if s, err := New(context.Background(), cfg); err == nil {
			s.Close()
			t.Errorf("%+v: taken", cfg)
		}
	}
}
