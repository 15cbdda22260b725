package csp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/wsapi"
)

// client tries what the driver does, until it has been done: it asks by name
// before it makes something, and logs in anew on a 401.
type client struct {
	*rig
	tries, limit int // a step is given up after so many; 0: 8
}

// once sends a request; a connection that broke is status 0.
func (c *client) once(method, path, body string) (int, string) {
	if c.token == "" {
		code, b, err := c.raw("POST", "/tokens", fmt.Sprintf(`{"username":%q,"password":%q,"array_ip":%q}`, user, password, c.on))
		var out struct {
			Token string `json:"session_token"`
		}
		if err != nil || code != 200 || json.Unmarshal([]byte(b), &out) != nil {
			return code, b
		}
		c.token = out.Token
	}
	code, b, err := c.raw(method, path, body)
	if err != nil {
		code = 0
	}
	if code == http.StatusUnauthorized {
		c.token = ""
	}
	return code, b
}

// until repeats a step until it is done.
func (c *client) until(what string, step func() (done bool, last string)) {
	c.t.Helper()
	var last string
	for range max(c.limit, 8) {
		var done bool
		done, last = step()
		if done {
			return
		}
		c.tries++
	}
	c.t.Fatalf("%s: does not converge: %s\n%s", what, last, ledger.Text(c.in.Ledger.Entries()))
}

func (c *client) make(kind, name, query, body string) {
	c.t.Helper()
	c.until("creating "+name, func() (bool, string) {
		code, b := c.once("GET", "/"+kind+"?name="+name+query, "")
		if code == 404 {
			code, b = c.once("POST", "/"+kind, body)
		}
		return code == 200, b
	})
}

func (c *client) drop(path string) {
	c.t.Helper()
	c.until("deleting "+path, func() (bool, string) {
		code, b := c.once("DELETE", path, "")
		return code == 204 || code == 404, b
	})
}

func (c *client) put(status int, path, body string) {
	c.t.Helper()
	c.until("putting "+path, func() (bool, string) {
		code, b := c.once("PUT", path, body)
		return code == status, b
	})
}

// life is that of some volumes: what the driver does with them, each step until
// it is done.
func life(c *client) {
	t := c.t
	config := `{"access_protocol":"iscsi","cpg":"cpg1","qos_name":"gold"}`
	long := fmt.Sprintf(`{"access_protocol":"iscsi","cpg":"cpg1","x":%q}`, strings.Repeat("y", 600))
	const other = vv + "-other"
	c.make("volumes", pvc, "", `{"name":"`+pvc+`","size":1073741824,"config":`+config+`}`)
	c.make("volumes", other, "", `{"name":"`+other+`","size":1073741824,"config":`+long+`}`)
	c.make("snapshots", "snap", "&volume_id="+pvc, `{"name":"snap","volume_id":"`+pvc+`"}`)
	c.make("volumes", "clone", "", `{"name":"clone","size":1073741824,"base_snapshot_id":"snap","clone":true,"config":`+config+`}`)
	for _, v := range []string{pvc, other} {
		c.until("publishing "+v, func() (bool, string) {
			if code, b := c.once("POST", "/hosts", fmt.Sprintf(node, "iscsi")); code != 200 {
				return false, b
			}
			code, b := c.once("PUT", "/volumes/"+v+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
			return code == 200, b
		})
	}
	for v, n := range map[string]int{vv: 4, other[:20]: 4} {
		got := 0
		for _, x := range c.arrays[0].volumes() {
			if strings.HasPrefix(x.Name, v) && (v == vv) == (x.Name == vv) {
				got += len(c.arrays[0].vluns(x.Name))
			}
		}
		if got != n {
			t.Errorf("%s has %d exports, want %d", v, got, n)
		}
	}
	if all := c.arrays[0].volumes(); len(all) != 4 {
		t.Errorf("the array has %d volumes: %v", len(all), all)
	}
	var out struct{ Config map[string]string }
	c.until("reading", func() (bool, string) {
		code, b := c.once("GET", "/volumes/"+other, "")
		return code == 200 && json.Unmarshal([]byte(b), &out) == nil, b
	})
	if len(out.Config["x"]) != 600 {
		t.Errorf("config is %v", out.Config)
	}
	c.until("editing", func() (bool, string) {
		code, b := c.once("PUT", "/volumes/"+other, `{"id":"`+other+`","description":"new","volume_group_id":"","config":{"host_sees_vlun":"true"}}`)
		return code == 200 && strings.Contains(b, `"description":"new"`) && strings.Contains(b, `"host_sees_vlun":"true"`) && strings.Contains(b, "yyyyyy"), b
	})
	for _, v := range []string{pvc, other} {
		c.put(204, "/volumes/"+v+"/actions/unpublish", `{"host_uuid":"`+uuid+`"}`)
	}
	for _, p := range []string{"/volumes/clone", "/snapshots/snap", "/volumes/" + other, "/volumes/" + pvc} {
		c.drop(p)
	}
	c.arrays[0].with(func(a *array.Array) {
		if all := a.Volumes(); len(all) != 0 {
			t.Errorf("volumes that stay: %v", all)
		}
		if all := a.Hosts(); len(all) != 0 {
			t.Errorf("hosts that stay: %v", all)
		}
		if s, err := a.VolumeSet("gold"); err != nil || len(s.Members) != 0 {
			t.Errorf("set is %v %v", s, err)
		}
	})
}

// pairs is the life of two replicated volumes.
func pairs(c *client) {
	t := c.t
	cfg := `{"access_protocol":"iscsi","cpg":"cpg1","remote_copy_group":"rcg1","replication_devices":"r1"}`
	names := []string{pvc, "v2"}
	for _, v := range names {
		c.make("volumes", v, "", `{"name":"`+v+`","size":1073741824,"config":`+cfg+`}`)
	}
	c.make("volumes", "alone", "", `{"name":"alone","size":1073741824,"config":{"cpg":"cpg1","one_rcg_per_pvc":"true","replication_devices":"r1"}}`)
	c.synced("rcg1")
	for _, v := range names {
		c.until("publishing "+v, func() (bool, string) {
			if code, b := c.once("POST", "/hosts", fmt.Sprintf(node, "iscsi")); code != 200 {
				return false, b
			}
			code, b := c.once("PUT", "/volumes/"+v+"/actions/publish", `{"host_uuid":"`+uuid+`","access_protocol":"iscsi"}`)
			if code == 200 && !strings.Contains(b, "PeerArrayDetails") {
				t.Errorf("published without its peer: %s", b)
			}
			return code == 200, b
		})
	}
	c.until("expanding", func() (bool, string) {
		code, b := c.once("PUT", "/volumes/v2", `{"id":"v2","size":2147483648,"volume_group_id":""}`)
		return code == 200, b
	})
	c.synced("rcg1")
	for _, a := range c.arrays {
		if n := len(a.vluns(vv)) + len(a.vluns("v2")); n != 4 {
			t.Errorf("%d exports", n)
		}
		for _, v := range a.volumes() {
			if id, ok := csp.IDOf(v.Name, v.Comment); !ok || v.Name == vv && id != pvc {
				t.Errorf("%s is %s", v.Name, id)
			}
		}
	}
	for _, v := range names {
		c.put(204, "/volumes/"+v+"/actions/unpublish", `{"host_uuid":"`+uuid+`"}`)
	}
	c.drop("/volumes/alone")
	c.drop("/volumes/v2")
	c.synced("rcg1")
	c.drop("/volumes/" + pvc)
	for i, a := range c.arrays {
		a.with(func(a *array.Array) {
			if n := len(a.Volumes()) + len(a.Hosts()); n != 0 {
				t.Errorf("array %d: %d things stay", i+1, n)
			}
			if all := a.Groups(); len(all) != 1 {
				t.Errorf("array %d: groups are %v", i+1, all)
			}
		})
	}
}

func newPairs(t *testing.T, o ...option) *client {
	return &client{rig: newRig(t, append([]option{withPair("sync")}, append(o, func(s *setup) { s.arrays[0].Nodes, s.arrays[1].Nodes = 1, 1 })...)...)}
}

func newLife(t *testing.T, o ...option) *client {
	r := newRig(t, o...)
	r.arrays[0].with(func(a *array.Array) {
		now := time.Now()
		_, err := a.CreateVolumeSet(now, array.SetSpec{Name: "gold"})
		if err == nil {
			_, err = a.CreateRule(now, array.Rule{Set: "gold", IOMaxLimit: 100, Enabled: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return &client{rig: r}
}

// positions of a sweep over n calls for one of eight kinds of failure: all with
// CSILAB_SWEEP, else so many that every fourth has one of the kinds.
func positions(n, kind int) (out []int) {
	step, first := 32, 1+4*kind
	if os.Getenv("CSILAB_SWEEP") != "" {
		step, first = 1, 1
	}
	for i := first; i <= n; i += step {
		out = append(out, i)
	}
	return out
}

// Whatever call to the array is lost, before it is done or after, whatever is
// refused, and whenever the provider dies: what the driver tries again comes to
// the same end, and nothing is left.
func TestEachCallToTheArrayFailsOnce(t *testing.T) { sweep(t, newLife, life) }

func TestEachCallToThePairFailsOnce(t *testing.T) { sweep(t, newPairs, pairs) }

func sweep(t *testing.T, begin func(*testing.T, ...option) *client, life func(*client)) {
	clean := begin(t)
	life(clean)
	if clean.tries != 0 {
		t.Fatalf("%d tries without a fault", clean.tries)
	}
	n := clean.count(ledger.WSAPI)
	t.Logf("%d calls to the array", n)
	for kind, x := range []struct {
		name string
		rule fault.Rule
	}{
		{"lost before", fault.Rule{Do: fault.Drop()}},
		{"lost after", fault.Rule{Phase: fault.After, Do: fault.Drop()}},
		{"busy", fault.Rule{Do: fault.Error(&array.Error{Kind: array.TooBusy})}},
		{"session gone", fault.Rule{Do: fault.Error(&array.Error{Kind: array.SessionKey})}},
		{"broken", fault.Rule{Phase: fault.After, Do: fault.Error(&wsapi.Fault{Status: 500, Code: 1, Desc: "internal server error"})}},
		{"no space", fault.Rule{Do: fault.Error(&array.Error{Kind: array.NoSpace})}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			for _, i := range positions(n, kind) {
				c := begin(t)
				rule := x.rule
				rule.Hop, rule.Nth = ledger.WSAPI, i
				c.in.Plan.Arm(rule)
				life(c)
				if t.Failed() {
					t.Fatalf("call %d of %d: %s", i, n, ledger.Text(c.in.Ledger.Entries()))
				}
				c.close()
			}
		})
	}
}

// The provider dies before or after each call to the array, and is started
// anew.
func TestProviderDiesAtEachCall(t *testing.T) { deaths(t, newLife, life) }

func TestProviderDiesAtEachCallToThePair(t *testing.T) { deaths(t, newPairs, pairs) }

func deaths(t *testing.T, begin func(*testing.T, ...option) *client, life func(*client)) {
	clean := begin(t)
	life(clean)
	n := clean.count(ledger.WSAPI)
	for kind, phase := range []fault.Phase{fault.Before, fault.After} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			for _, i := range positions(n, 6+kind) {
				c := begin(t, withCSP(func(cfg *csp.Config) { cfg.OpTime = time.Minute }))
				died := make(chan struct{})
				c.in.OnCrash = func(string) { close(died) }
				c.in.Plan.Arm(fault.Rule{Hop: ledger.WSAPI, Nth: i, Phase: phase, Do: fault.Crash("csp")})
				c.restart = func() bool {
					select {
					case <-died:
						died = nil
						c.start()
						return true
					default:
						return false
					}
				}
				life(c)
				if t.Failed() {
					t.Fatalf("call %d of %d: %s", i, n, ledger.Text(c.in.Ledger.Entries()))
				}
				c.close()
			}
		})
	}
}

// Many calls to the array fail, in all ways, and the provider dies now and then,
// while the volumes live: what is tried again until it is done is done once.
func TestManyCallsFail(t *testing.T) {
	for name, x := range map[string]struct {
		begin func(*testing.T, ...option) *client
		life  func(*client)
	}{"one array": {newLife, life}, "a pair": {newPairs, pairs}} {
		seeds := 2
		if os.Getenv("CSILAB_SWEEP") != "" {
			seeds = 100
		}
		for seed := range seeds {
			t.Run(fmt.Sprint(name, "/", seed), func(t *testing.T) {
				t.Parallel()
				// A provider that dies leaves its session on the array for a quarter of an
				// hour: 24 are used up soon.
				c := x.begin(t, func(s *setup) {
					for i := range s.arrays {
						s.arrays[i].MaxSessions = 1000
					}
				})
				c.limit = 60
				c.in.Plan.Seed = uint64(seed)
				var died atomic.Bool
				c.in.OnCrash = func(string) { died.Store(true) }
				c.restart = func() bool {
					if !died.Swap(false) {
						return false
					}
					c.start()
					return true
				}
				for i, r := range []fault.Rule{
					{Do: fault.Drop()},
					{Phase: fault.After, Do: fault.Drop()},
					{Do: fault.Error(&array.Error{Kind: array.TooBusy})},
					{Phase: fault.After, Do: fault.Error(&wsapi.Fault{Status: 500, Code: 1, Desc: "internal server error"})},
					{Do: fault.Crash("csp")},
					{Phase: fault.After, Do: fault.Crash("csp")},
				} {
					r.Name, r.Hop, r.Probability, r.MayNotFire = fmt.Sprint("rule ", i), ledger.WSAPI, 0.03, true
					c.in.Plan.Arm(r)
				}
				x.life(c)
				if t.Failed() {
					t.Log(ledger.Text(c.in.Ledger.Entries()))
				}
				c.close()
			})
		}
	}
}
