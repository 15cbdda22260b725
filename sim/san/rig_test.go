package san_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/san"
	"github.com/csilab/csilab/sim/transport"
)

const iqn = "iqn.1993-08.org.debian:01:"

// rig is a SAN with a client of its arrays' REST APIs.
type rig struct {
	t   *testing.T
	san *san.SAN
	c   *http.Client
	key map[string]string // session by array
}

// newRig starts a SAN whose arrays serve on a network in memory.
func newRig(t *testing.T, cfg san.Config) *rig {
	t.Helper()
	net := transport.NewMemory()
	if len(cfg.Arrays) == 0 {
		cfg.Arrays = make([]san.ArrayConfig, 1)
	}
	for i := range cfg.Arrays {
		l, err := net.Listen("tcp", fmt.Sprintf("array%d:443", i+1))
		if err != nil {
			t.Fatal(err)
		}
		cfg.Arrays[i].Listener = l
	}
	s, err := san.New(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	tr := &http.Transport{DialContext: net.DialContext, DisableKeepAlives: true}
	return &rig{t: t, san: s, c: &http.Client{Transport: tr}, key: map[string]string{}}
}

func (r *rig) array(name string) *san.Array {
	r.t.Helper()
	a, ok := r.san.Array(name)
	if !ok {
		r.t.Fatalf("no array %s", name)
	}
	return a
}

// send sends a request to an array, logged in.
func (r *rig) send(on, method, path, body string) (int, string, error) {
	a := r.array(on)
	if r.key[on] == "" && path != "/credentials" {
		code, b, err := r.send(on, "POST", "/credentials", `{"user":"3paradm","password":"3pardata"}`)
		if err != nil {
			return 0, "", err
		}
		var out struct{ Key string }
		if json.Unmarshal([]byte(b), &out) != nil || code != http.StatusCreated {
			return code, b, nil
		}
		r.key[on] = out.Key
	}
	req, err := http.NewRequest(method, a.URL()+"/api/v1"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("X-Hp3Par-Wsapi-Sessionkey", r.key[on])
	res, err := r.c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

func (r *rig) want(status int, on, method, path, body string) string {
	r.t.Helper()
	code, b, err := r.send(on, method, path, body)
	if err != nil || code != status {
		r.t.Fatalf("%s %s %s: %d %s %v, want %d", method, path, body, code, b, err, status)
	}
	return b
}

func (r *rig) volume(on, name string) {
	r.t.Helper()
	r.want(201, on, "POST", "/volumes", `{"name":"`+name+`","cpg":"SSD_r6","snapCPG":"SSD_r6","tpvv":true,"sizeMiB":1024}`)
}

func (r *rig) host(on, name string) {
	r.t.Helper()
	r.want(201, on, "POST", "/hosts", `{"name":"`+name+`","iSCSINames":["`+iqn+name+`"]}`)
}

func (r *rig) export(on, volume, host string) {
	r.t.Helper()
	r.want(201, on, "POST", "/vluns", `{"volumeName":"`+volume+`","hostname":"`+host+`","lun":0,"autoLun":true}`)
}

// node is one that is logged in at all iSCSI ports.
type node struct {
	r    *rig
	name string
	scsi.SAN
	targets []scsi.Target
}

func (r *rig) node(name string) *node {
	r.t.Helper()
	n := &node{r: r, name: name, SAN: r.san.For(name, scsi.Adapters{IQN: iqn + name, WWPNs: []string{"10000000c9a0b0c0"}})}
	for _, a := range r.san.Arrays() {
		for _, p := range a.Ports() {
			if p.Protocol != array.ISCSI {
				continue
			}
			found, err := n.Discover(r.t.Context(), iqn+name, p.Address+":3260")
			if err != nil || len(found) != 1 || found[0].Name != p.ISCSIName {
				r.t.Fatalf("discovery at %s: %v %v", p.Address, found, err)
			}
			if err := n.Login(r.t.Context(), iqn+name, found[0], scsi.CHAP{}); err != nil {
				r.t.Fatal(err)
			}
			n.targets = append(n.targets, found[0])
		}
	}
	return n
}

// at asks one port about a LUN.
func (n *node) at(target, lun int) (scsi.LUN, error) {
	n.r.t.Helper()
	l, err := n.SAN.(interface {
		LUN(string, scsi.Target, int) (scsi.LUN, error)
	}).LUN(iqn+n.name, n.targets[target], lun)
	all, listed := n.LUNs(iqn+n.name, n.targets[target])
	if errors.Is(err, scsi.ErrUnreachable) != (listed != nil) {
		n.r.t.Fatalf("LUN: %v, LUNs: %v", err, listed)
	}
	found := false
	for _, x := range all {
		found = found || x.Number == lun && x == l
	}
	if found != (err == nil) {
		n.r.t.Fatalf("LUN %d: %+v %v, LUNs: %+v", lun, l, err, all)
	}
	return l, err
}

// is checks whether the content at a LUN begins with text, and that all ports
// that are up say so.
func (n *node) is(lun int, text string) {
	n.r.t.Helper()
	paths := 0
	for i := range n.targets {
		l, err := n.at(i, lun)
		if err != nil || l.Standby {
			continue
		}
		paths++
		if got := n.read(l, len(text)); got != text {
			n.r.t.Fatalf("LUN %d by %s is %q, want %q", lun, n.targets[i].Portal, got, text)
		}
	}
	if paths == 0 {
		n.r.t.Fatalf("LUN %d has no path", lun)
	}
}

func (n *node) read(l scsi.LUN, length int) string {
	n.r.t.Helper()
	img, err := n.Open(l.Image)
	if err != nil {
		n.r.t.Fatal(err)
	}
	defer img.Close()
	if img.Size() != l.Bytes {
		n.r.t.Fatalf("size is %d, LUN has %d", img.Size(), l.Bytes)
	}
	b := make([]byte, length)
	if _, err := img.ReadAt(b, 0); err != nil {
		n.r.t.Fatal(err)
	}
	return string(bytes.TrimRight(b, "\x00"))
}

// write writes text over the first path that takes I/O.
func (n *node) write(lun int, text string) {
	n.r.t.Helper()
	for i := range n.targets {
		l, err := n.at(i, lun)
		if err != nil || l.Standby {
			continue
		}
		img, err := n.Open(l.Image)
		if err != nil {
			n.r.t.Fatal(err)
		}
		defer img.Close()
		if _, err := img.WriteAt([]byte(text), 0); err != nil {
			n.r.t.Fatal(err)
		}
		return
	}
	n.r.t.Fatalf("LUN %d has no path", lun)
}

// paths counts those over which a LUN is seen, and those of them that take I/O.
func (n *node) paths(lun int) (seen, active int) {
	for i := range n.targets {
		if l, err := n.at(i, lun); err == nil {
			seen++
			if !l.Standby {
				active++
			}
		}
	}
	return seen, active
}

func (n *node) wantPaths(lun, seen, active int) {
	n.r.t.Helper()
	if s, a := n.paths(lun); s != seen || a != active {
		n.r.t.Fatalf("LUN %d is seen over %d paths, %d take I/O; want %d and %d", lun, s, a, seen, active)
	}
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}
