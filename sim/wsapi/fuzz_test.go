package wsapi

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/transport"
)

func FuzzQuery(f *testing.F) {
	for _, s := range []string{`"volumeName EQ x"`, `volumeName==x`, `"FCPaths[wwn==A OR wwn==B] OR iSCSIPaths[name==iqn.c:d]"`, `"hostname EQ 'a b' AND lun EQ 1"`,
		`"FCPaths[wwn==A AND wwn==B] AND name EQ x"`, `"`, `[`, `a[]`, `name EQ`, "name==\x00", `name EQ x OR`} {
		f.Add(s)
	}
	fields := []string{"name", "volumeName", "hostname", "lun", "FCPaths[wwn]", "iSCSIPaths[name]"}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := parseQuery(s, fields...)
		if err != nil {
			if f := asFailure(err); f.status != 400 || f.code != 12 {
				t.Fatalf("%q: %v", s, f)
			}
			return
		}
		n := 0
		for _, and := range q {
			if len(and) == 0 {
				t.Fatalf("%q: an empty alternative passes all", s)
			}
			for _, x := range and {
				name := x.field
				if x.list != "" {
					name = x.list + "[" + x.field + "]"
				}
				if n++; !slices.Contains(fields, name) || x.value == "" {
					t.Fatalf("%q: term %+v", s, x)
				}
			}
		}
		if n == 0 || n > maxTerms {
			t.Fatalf("%q: %d terms", s, n)
		}
	})
}

// FuzzRequest sends three requests of any form to an array that has something of
// everything: each is answered within the API, no lock is left, no handler
// panics, and one that is refused changes nothing.
func FuzzRequest(f *testing.F) {
	for _, s := range []struct{ method, path, body string }{
		{"POST", "volumes", `{"name":"x","cpg":"cpg","sizeMiB":256,"tpvv":true,"id":3,"policies":{"zeroDetect":true},"expirationHours":2,"retentionHours":1,"usrSpcAllocWarningPct":3}`},
		{"PUT", "volumes/v", `{"newName":"w","comment":"c","snapCPG":"cpg","rmExpTime":true}`},
		{"PUT", "volumes/v", `{"action":3,"sizeMiB":256}`},
		{"PUT", "volumes/s", `{"action":4,"online":true,"priority":1,"allowRemoteCopyParent":true}`},
		{"PUT", "volumes/v", `{"action":6,"tuneOperation":1,"userCPG":"cpg","conversionOperation":4}`},
		{"POST", "volumes/v", `{"action":"createSnapshot","parameters":{"name":"s2","readOnly":true}}`},
		{"POST", "volumes/v", `{"action":"createPhysicalCopy","parameters":{"destVolume":"c","destCPG":"cpg","online":true,"saveSnapshot":true,"priority":1}}`},
		{"DELETE", "volumes/v?cascade=true", ""},
		{"GET", `volumes?query=%22copyOf%20EQ%20v%22`, ""},
		{"POST", "volumes/v/objectKeyValues", `{"key":"k","value":"v"}`},
		{"POST", "hosts", `{"name":"h3","persona":2,"FCWWNs":["10000000C9000009"],"descriptors":{"os":"x"}}`},
		{"POST", "hosts", `{"name":"h3","NQN":"nqn.2014-08.org.nvmexpress:uuid:1","transportType":2}`},
		{"PUT", "hosts/h", `{"pathOperation":1,"iSCSINames":["iqn.x:y"]}`},
		{"PUT", "hosts/h", `{"chapOperation":1,"chapOperationMode":1,"chapName":"u","chapSecret":"0123456789ab"}`},
		{"GET", `hosts?query=%22FCPaths[wwn==A]%20OR%20iSCSIPaths[name==iqn.a:b]%22`, ""},
		{"POST", "vluns", `{"volumeName":"v","lun":0,"hostname":"h","portPos":{"node":0,"slot":2,"cardPort":1},"autoLun":true,"maxAutoLun":0}`},
		{"DELETE", "vluns/v,7,set:hs", ""},
		{"GET", "vluns/v,1,,0:1:1", ""},
		{"GET", "vluns", ""},
		{"POST", "volumesets", `{"name":"vs2","setmembers":["v"]}`},
		{"PUT", "volumesets/vs", `{"action":2,"setmembers":["v"]}`},
		{"POST", "volumesets/vs", `{"action":"createSnapshot","parameters":{"name":"@vvname@.x"}}`},
		{"POST", "qos", `{"name":"vs","type":1,"ioMaxLimit":100,"bwMaxLimitOP":2}`},
		{"PUT", "tasks/1", `{"action":1}`},
		{"POST", "remotecopygroups", `{"name":"g","targets":[{"targetName":"two","mode":1}]}`},
		{"PUT", "remotecopygroups/g", `{"action":1,"volumeName":"v","targets":[{"targetName":"two","secVolumeName":"v"}]}`},
		{"POST", "cpgs", `{"name":"c","growthLimitMiB":1,"LDLayout":{"RAIDType":4,"diskPatterns":[{"diskType":3}]}}`},
		{"PUT", "cpgs/cpg", `{"newName":"c2","rmGrowthLimit":true}`},
		{"DELETE", "credentials/x", ""},
		{"GET", "ports/0:2:1", ""},
	} {
		f.Add(s.method, s.path, s.body, "volumes/v")
	}
	f.Fuzz(func(t *testing.T, method, path, body, then string) {
		w := newWorld(t)
		w.try(method, path, body)
		w.try(method, then, body)
		w.try("GET", then, "")
		w.end()
	})
}

// FuzzCommands sends requests that are right in form: routes, names and members
// of bodies are chosen by the input.
func FuzzCommands(f *testing.F) {
	for i := range 60 {
		var b []byte
		for j := range 120 {
			b = append(b, byte(i*37+j*(j+i)*11>>(j%5)))
		}
		f.Add(b)
	}
	var all []route
	for _, first := range slices.Sorted(maps.Keys(routes)) {
		all = append(all, routes[first]...)
	}
	names := []string{"v", "s", "x", "y", "h", "hs", "vs", "cpg", "@vvname@.c"}
	members := map[string][]string{}
	for name, values := range map[string]string{
		"name newName volumeName destVolume secVolumeName cpg snapCPG userCPG destCPG hostname comment key value targetName domain localUserCPG chapName": `"v" "s" "x" "y" "h" "set:hs" "set:vs" "cpg" "@vvname@.c" ""`,
		"sizeMiB lun maxAutoLun id growthLimitMiB usageWarningMiB ioMaxLimit bwMaxLimitKB latencyGoal usrSpcAllocWarningPct":                              `0 1 256 7 1000 -1 99999999`,
		"action": `1 2 3 4 5 6 7 8 9 10 11 "createSnapshot" "createPhysicalCopy"`,
		"persona pathOperation chapOperation chapOperationMode priority tuneOperation conversionOperation mode type ioMaxLimitOP transportType":                           `1 2 3 0 11`,
		"readOnly online tpvv reduce saveSnapshot autoLun overrideLowerPriority forcePathRemoval rmExpTime volumeAutoCreation enable allowRemoteCopyParent rmGrowthLimit": `true false`,
		"expirationHours retentionHours": `1 2 0`,
		"chapSecret":                     `"0123456789ab" "x"`,
		"FCWWNs":                         `["10000000C9000009"] ["10000000C9000009","10000000C900000A"] []`,
		"iSCSINames":                     `["iqn.a:b"] ["iqn.c:d"]`,
		"NQN":                            `"nqn.2014-08.org.nvmexpress:uuid:1"`,
		"setmembers":                     `["v"] ["s"] ["h"] ["v","s"] []`,
		"portPos":                        `{"node":0,"slot":2,"cardPort":1} {"node":1,"slot":3,"cardPort":1}`,
	} {
		for _, n := range strings.Fields(name) {
			members[n] = strings.Fields(values)
		}
	}
	keys := slices.Sorted(maps.Keys(members))
	// What a body mostly has: other members are refused at once.
	usual := map[string][]string{}
	for at, names := range map[string]string{
		"PUT volumes/{name}":                       "action sizeMiB newName comment snapCPG userCPG tuneOperation conversionOperation online priority rmExpTime expirationHours retentionHours",
		"POST volumes/{name}/objectKeyValues":      "key value",
		"PUT volumes/{name}/objectKeyValues/{key}": "value",
		"POST cpgs":             "name growthLimitMiB usageWarningMiB",
		"PUT cpgs/{name}":       "newName growthLimitMiB rmGrowthLimit usageWarningMiB",
		"POST hosts":            "name persona FCWWNs iSCSINames NQN transportType",
		"PUT hosts/{name}":      "newName persona pathOperation FCWWNs iSCSINames forcePathRemoval chapOperation chapOperationMode chapName chapSecret",
		"POST vluns":            "volumeName lun hostname portPos autoLun maxAutoLun overrideLowerPriority",
		"POST hostsets":         "name setmembers comment",
		"PUT hostsets/{name}":   "action setmembers newName comment",
		"POST volumesets":       "name setmembers comment",
		"PUT volumesets/{name}": "action setmembers newName comment",
		"POST qos":              "name type ioMaxLimit bwMaxLimitKB latencyGoal priority enable",
		"PUT qos/{target}":      "ioMaxLimit ioMaxLimitOP latencyGoal priority enable",
		"PUT tasks/{id}":        "action",
	} {
		usual[at] = strings.Fields(names)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		w := newWorld(t)
		pick := func(n int) int {
			if len(in) == 0 {
				return 0
			}
			b := in[0]
			in = in[1:]
			return int(b) % n
		}
		for n := 0; n < 20 && len(in) > 0; n++ {
			r := all[pick(len(all))]
			var path []string
			for _, p := range strings.Split(r.pattern, "/") {
				switch p {
				case "{id}":
					p = []string{"1", "2", "v,7,set:hs", "v,0,h", "x,1,h,0:2:1", "set:vs,7,h"}[pick(6)]
				case "{target}":
					p = "vvset:vs"
				case "{pos}":
					p = "0:2:1"
				case "{filter}":
					p = []string{"minutes:5", "hours:5"}[pick(2)]
				case "{over}":
					p = []string{"vstime", "attime"}[pick(2)]
				case "{report}":
					p = []string{"cpgspacedata", "volumespacedata", "cpgstatistics", "vlunstatistics", "cpustatistics"}[pick(5)]
				case "{sampling}":
					p = []string{"hires", "daily;name:v", "hourly;groupby:x"}[pick(3)]
				}
				if strings.HasPrefix(p, "{") {
					p = names[pick(len(names))]
				}
				path = append(path, p)
			}
			at := strings.Join(path, "/")
			if r.method == http.MethodDelete && pick(2) == 1 {
				at += "?cascade=true"
			}
			object := func() string {
				got := map[string]string{}
				from := usual[r.method+" "+r.pattern]
				if from == nil || pick(8) == 1 {
					from = keys
				}
				for range pick(6) {
					k := from[pick(len(from))]
					got[k] = members[k][pick(len(members[k]))]
				}
				var parts []string
				for _, k := range slices.Sorted(maps.Keys(got)) {
					parts = append(parts, `"`+k+`":`+got[k])
				}
				return strings.Join(parts, ",")
			}
			body := "{" + object() + "}"
			if pick(3) == 1 && body != "{}" {
				body = body[:len(body)-1] + `,"parameters":{` + object() + `}}`
			}
			switch { // what no creation goes without
			case r.method == http.MethodPost && r.pattern == "volumes" && pick(2) == 1:
				body = `{"name":"` + names[pick(4)] + `","cpg":"cpg","sizeMiB":256,"tpvv":true,"snapCPG":"cpg"}`
			case r.method == http.MethodPost && r.pattern == "volumes/{name}" && pick(2) == 1:
				body = `{"action":"createSnapshot","parameters":{"name":"` + names[pick(4)] + `","readOnly":` + []string{"true", "false"}[pick(2)] + `}}`
			case r.method == http.MethodPost && r.pattern == "volumes/{name}" && pick(2) == 1:
				body = `{"action":"createPhysicalCopy","parameters":{"destVolume":"` + names[pick(4)] + `","destCPG":"cpg","online":` + []string{"true", "false"}[pick(2)] + `}}`
			case r.method == http.MethodPost && r.pattern == "volumesets/{name}" && pick(2) == 1:
				body = `{"action":"createSnapshot","parameters":{"name":"` + names[pick(len(names))] + `"}}`
			case r.method == http.MethodPut && r.pattern == "volumes/{name}" && pick(3) == 1:
				body = `{"action":` + members["action"][pick(6)] + `,"sizeMiB":256,"tuneOperation":1,"userCPG":"cpg"}`
			case r.method == http.MethodPost && r.pattern == "vluns" && pick(2) == 1:
				body = `{"volumeName":"` + names[pick(4)] + `","hostname":"h","lun":0,"autoLun":true}`
			}
			w.try(r.method, at, body)
		}
		w.end()
	})
}

// world is an array that has something of everything, and its face without a
// listener.
type world struct {
	t    *testing.T
	a    *array.Array
	s    *Server
	lock *noticedLock
	now  time.Time
	key  string
}

// detached is a face that nobody reaches but by calling its handler.
func detached(t testing.TB, s *Server) *face.Server {
	l, err := transport.NewMemory().Listen("tcp", "array:443")
	if err != nil {
		t.Fatal(err)
	}
	f, err := face.Listen(face.Config{Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	f.Serve(context.Background(), s)
	t.Cleanup(f.Close)
	return f
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, lock: &noticedLock{}, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	var err error
	if w.a, err = array.New(array.Config{Users: users, CopyMiBs: 100}); err != nil {
		t.Fatal(err)
	}
	w.s = &Server{cfg: Config{Array: w.a, Lock: w.lock, Now: func() time.Time { return w.now }}, a: w.a, family: array.Primera, log: quiet(t)}
	w.s.face = detached(t, w.s)
	_, b := w.send("POST", "credentials", `{"user":"3paradm","password":"3pardata"}`)
	var login struct{ Key string }
	if json.Unmarshal([]byte(b), &login) != nil {
		t.Fatal(b)
	}
	w.key = login.Key
	for _, x := range [][2]string{{"cpgs", `{"name":"cpg"}`}, {"volumes", `{"name":"v","cpg":"cpg","sizeMiB":256,"tpvv":true,"snapCPG":"cpg"}`},
		{"volumes/v", `{"action":"createSnapshot","parameters":{"name":"s"}}`}, {"hosts", `{"name":"h","iSCSINames":["iqn.a:b"]}`},
		{"hostsets", `{"name":"hs","setmembers":["h"]}`}, {"volumesets", `{"name":"vs","setmembers":["v"]}`},
		{"vluns", `{"volumeName":"v","lun":7,"hostname":"set:hs"}`}} {
		if code, b := w.send("POST", x[0], x[1]); code != 201 {
			t.Fatal(x, code, b)
		}
	}
	return w
}

func (w *world) send(method, path, body string) (int, string) {
	r, err := http.NewRequest(method, "http://array/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		w.t.Skip() // nothing that a client could send
	}
	r.RemoteAddr = "10.0.0.1:1"
	r.Header.Set(sessionHeader, w.key)
	rec := httptest.NewRecorder()
	w.s.ServeHTTP(rec, r)
	if w.lock.held {
		w.t.Fatalf("%s %s: the lock is held", method, path)
	}
	return rec.Code, rec.Body.String()
}

func (w *world) try(method, path, body string) {
	before, _ := json.Marshal(w.a.State())
	code, b := w.send(method, path, body)
	if code != 200 && code != 201 {
		var e struct {
			Code int    `json:"code"`
			Desc string `json:"desc"`
		}
		if err := json.Unmarshal([]byte(b), &e); err != nil || e.Code < 2 || e.Desc == "" || code < 400 {
			w.t.Fatalf("%s %q %s: %d %s", method, path, body, code, b)
		}
		if after, _ := json.Marshal(w.a.State()); string(after) != string(before) {
			w.t.Fatalf("%s %q %s is refused with %s and changed\n%s\nto\n%s", method, path, body, b, before, after)
		}
	} else if b != "" && !json.Valid([]byte(b)) {
		w.t.Fatalf("%s %q %s: %s", method, path, body, b)
	}
	w.now = w.now.Add(time.Second)
	// What time does is no part of the next request.
	_ = w.s.locked(func(time.Time) error { return nil })
}

func (w *world) end() {
	w.now = w.now.Add(10 * time.Minute)
	_ = w.s.locked(func(time.Time) error { return nil })
	b, err := array.New(w.a.Config())
	if err == nil {
		err = b.Restore(w.a.State())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// noticedLock is for one goroutine.
type noticedLock struct{ held bool }

func (l *noticedLock) Lock()   { l.held = true }
func (l *noticedLock) Unlock() { l.held = false }
