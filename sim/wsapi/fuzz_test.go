package wsapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
)

func FuzzQuery(f *testing.F) {
	for _, s := range []string{`"volumeName EQ x"`, `volumeName==x`, `"FCPaths[wwn==A OR wwn==B] OR iSCSIPaths[name==iqn.c:d]"`, `"hostname EQ 'a b' AND lun EQ 1"`,
		`"FCPaths[wwn==A AND wwn==B] AND name EQ x"`, `"`, `[`, `a[]`, `name EQ`, "name==\x00", `name EQ x OR`, strings.Repeat("name==x OR ", 1100) + "name==x"} {
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

// FuzzRequest sends three requests to an array that has something of
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
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		lock := &countingLock{}
		a, err := array.New(array.Config{Users: users})
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{cfg: Config{Array: a, Lock: lock, Now: func() time.Time { return now }}, a: a, family: array.Primera, url: "http://array", log: quiet(t)}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		defer s.cancel()
		send := func(method, path, body, key string) (int, string) {
			r, err := http.NewRequest(method, "http://array/api/v1/"+path, strings.NewReader(body))
			if err != nil {
				t.Skip() // nothing that a client could send
			}
			r.RemoteAddr = "10.0.0.1:1"
			r.Header.Set(sessionHeader, key)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if lock.held {
				t.Fatalf("%s %s: the lock is held", method, path)
			}
			return w.Code, w.Body.String()
		}
		_, b := send("POST", "credentials", `{"user":"3paradm","password":"3pardata"}`, "")
		var login struct{ Key string }
		if json.Unmarshal([]byte(b), &login) != nil {
			t.Fatal(b)
		}
		for _, x := range [][3]string{{"POST", "cpgs", `{"name":"cpg"}`}, {"POST", "volumes", `{"name":"v","cpg":"cpg","sizeMiB":256,"tpvv":true,"snapCPG":"cpg"}`},
			{"POST", "volumes/v", `{"action":"createSnapshot","parameters":{"name":"s"}}`}, {"POST", "hosts", `{"name":"h","iSCSINames":["iqn.a:b"]}`},
			{"POST", "hostsets", `{"name":"hs","setmembers":["h"]}`}, {"POST", "volumesets", `{"name":"vs","setmembers":["v"]}`},
			{"POST", "vluns", `{"volumeName":"v","lun":7,"hostname":"set:hs"}`}} {
			if code, b := send(x[0], x[1], x[2], login.Key); code != 201 {
				t.Fatal(x, code, b)
			}
		}
		for _, x := range [][3]string{{method, path, body}, {method, then, body}, {"GET", then, ""}} {
			before, _ := json.Marshal(a.State())
			code, b := send(x[0], x[1], x[2], login.Key)
			if code != 200 && code != 201 {
				var e struct {
					Code int    `json:"code"`
					Desc string `json:"desc"`
				}
				if err := json.Unmarshal([]byte(b), &e); err != nil || e.Code < 2 || e.Desc == "" || code < 400 {
					t.Fatalf("%q: %d %s", x, code, b)
				}
				if after, _ := json.Marshal(a.State()); string(after) != string(before) {
					t.Fatalf("%q is refused with %s and changed\n%s\nto\n%s", x, b, before, after)
				}
			} else if b != "" && !json.Valid([]byte(b)) {
				t.Fatalf("%q: %s", x, b)
			}
			now = now.Add(time.Second)
		}
		s.locked(func(now time.Time) error { s.pass(now.Add(10 * time.Minute)); return nil })
		if err := restores(a); err != nil {
			t.Fatal(err)
		}
	})
}

// restores says whether the array's state can be read back.
func restores(a *array.Array) error {
	b, err := array.New(a.Config())
	if err != nil {
		return err
	}
	return b.Restore(a.State())
}

type countingLock struct{ held bool }

func (l *countingLock) Lock()   { l.held = true }
func (l *countingLock) Unlock() { l.held = false }
