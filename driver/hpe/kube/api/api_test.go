package api_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/hpe/kube/api"
)

// server is an API server as far as the driver uses one: objects by path, with
// resource versions, pages and tokens.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	token   string
	objects map[string]map[string]any // by path
	version int
	calls   []string
	// before is told of each call and may answer it.
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newServer(t *testing.T) *server {
	s := &server{token: "t1", objects: map[string]map[string]any{}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *server) put(path string, o map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store(path, o)
}

func (s *server) store(path string, o map[string]any) {
	s.version++
	m, _ := o["metadata"].(map[string]any)
	if m == nil {
		m = map[string]any{}
		o["metadata"] = m
	}
	m["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[path] = o
}

func status(w http.ResponseWriter, code int, text string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": code})
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, r.Method+" "+r.URL.Path)
	if r.Header.Get("Authorization") != "Bearer "+s.token {
		status(w, 401, "Unauthorized")
		return
	}
	if s.before != nil && s.before(w, r) {
		return
	}
	var in map[string]any
	_ = json.Unmarshal(body, &in)
	there := s.objects[r.URL.Path]
	// A list of all namespaces.
	fits := func(path string) bool {
		dir, _, _ := cutLast(path)
		if dir == r.URL.Path {
			return true
		}
		p := strings.Split(dir, "/")
		return len(p) == 6 && p[3] == "namespaces" && "/api/v1/"+p[5] == r.URL.Path
	}
	switch r.Method {
	case "GET":
		if there != nil {
			_ = json.NewEncoder(w).Encode(there)
			return
		}
		if _, last, _ := cutLast(r.URL.Path); last == "hpenodeinfos" || last == "persistentvolumeclaims" {
			s.list(w, r.URL.Query(), fits)
			return
		}
		status(w, 404, r.URL.Path+" not found")
	case "POST":
		name := in["metadata"].(map[string]any)["name"].(string)
		path := r.URL.Path + "/" + name
		if s.objects[path] != nil {
			status(w, 409, "already exists")
			return
		}
		spec, _ := in["spec"].(map[string]any)
		if spec["uuid"] == nil || spec["networks"] == nil { // as the CRD says
			status(w, 422, "spec.uuid and spec.networks are required")
			return
		}
		s.store(path, in)
		w.WriteHeader(201)
		_ = json.NewEncoder(w).Encode(in)
	case "PUT":
		if there == nil {
			status(w, 404, "not found")
			return
		}
		if v := in["metadata"].(map[string]any)["resourceVersion"]; v != there["metadata"].(map[string]any)["resourceVersion"] {
			status(w, 409, "the object has been modified")
			return
		}
		s.store(r.URL.Path, in)
		_ = json.NewEncoder(w).Encode(in)
	case "DELETE":
		if there == nil {
			status(w, 404, "not found")
			return
		}
		delete(s.objects, r.URL.Path)
		status(w, 200, "")
	}
}

func (s *server) list(w http.ResponseWriter, q url.Values, fits func(string) bool) {
	var items []map[string]any
	for _, p := range slices.Sorted(maps.Keys(s.objects)) {
		if fits(p) {
			items = append(items, s.objects[p])
		}
	}
	from, _ := strconv.Atoi(q.Get("continue"))
	limit, _ := strconv.Atoi(q.Get("limit"))
	m := map[string]any{}
	if limit > 0 && from+limit < len(items) {
		m["continue"] = strconv.Itoa(from + limit)
		items = items[from : from+limit]
	} else {
		items = items[min(from, len(items)):]
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"metadata": m, "items": items})
}

func cutLast(path string) (dir, name string, ok bool) {
	i := strings.LastIndexByte(path, '/')
	return path[:i], path[i+1:], i >= 0
}

// mounted is the directory of a service account.
func (s *server) mounted(t *testing.T) (dir string, getenv func(string) string) {
	dir = t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for name, b := range map[string][]byte{"ca.crt": ca, "token": []byte(s.token + "\n")} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, _ := url.Parse(s.URL)
	return dir, func(k string) string {
		return map[string]string{"KUBERNETES_SERVICE_HOST": u.Hostname(), "KUBERNETES_SERVICE_PORT": u.Port()}[k]
	}
}

func (s *server) cluster(t *testing.T) (*api.Cluster, string) {
	dir, getenv := s.mounted(t)
	cfg, err := api.InCluster(getenv, dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := api.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, dir
}

func (s *server) claim(namespace, name, uid, volume string, annotations map[string]any) {
	s.put("/api/v1/namespaces/"+namespace+"/persistentvolumeclaims/"+name, map[string]any{
		"metadata": map[string]any{"name": name, "namespace": namespace, "uid": uid, "annotations": annotations}, "spec": map[string]any{"volumeName": volume}})
}

func TestCluster(t *testing.T) {
	s := newServer(t)
	c, dir := s.cluster(t)
	ctx := t.Context()
	missing := func(err error) {
		t.Helper()
		if !errors.Is(err, kube.ErrNotFound) {
			t.Errorf("got %v, want not found", err)
		}
	}
	_, err := c.NodeInfo(ctx, "u1")
	missing(err)
	_, err = c.Claim(ctx, "1")
	missing(err)
	_, err = c.ClaimNamed(ctx, "ns", "c")
	missing(err)
	_, err = c.ClaimNamed(ctx, "", "c")
	missing(err)
	_, err = c.Secret(ctx, "ns", "x")
	missing(err)
	if err := c.PutNodeInfo(ctx, kube.NodeInfo{Name: "n"}); err == nil {
		t.Error("a node without uuid")
	}
	for _, n := range []kube.NodeInfo{{Name: "b", UUID: "u2"}, {Name: "a", UUID: "u1", IQNs: []string{"iqn.x"}}, {Name: "a", UUID: "u3", WWPNs: []string{"5"}, Networks: []string{"192.0.2.1/24"}}} {
		if err := c.PutNodeInfo(ctx, n); err != nil {
			t.Error(err)
		}
	}
	_, err = c.NodeInfo(ctx, "u1")
	missing(err)
	if ns, err := c.NodeInfos(ctx); err != nil || len(ns) != 2 || ns[0].UUID != "u3" || ns[0].IQNs != nil || ns[0].WWPNs[0] != "5" || ns[1].Networks != nil {
		t.Errorf("%v, %v", ns, err)
	}
	for range 2 {
		if err := c.DeleteNodeInfo(ctx, "b"); err != nil {
			t.Error(err)
		}
	}
	// Two pages of claims, one of which has an annotation.
	for i := range 700 {
		s.claim("ns", fmt.Sprintf("c%03d", i), fmt.Sprint("uid-", i), "", nil)
	}
	s.claim("other", "mine", "uid-x", "pvc-uid-x", map[string]any{"csi.hpe.com/cpg": "fast"})
	for _, get := range []func() (kube.Claim, error){
		func() (kube.Claim, error) { return c.Claim(ctx, "uid-x") },
		func() (kube.Claim, error) { return c.ClaimNamed(ctx, "other", "mine") },
	} {
		if x, err := get(); err != nil || x.Namespace != "other" || x.Name != "mine" || x.UID != "uid-x" || x.Volume != "pvc-uid-x" || x.Annotations["csi.hpe.com/cpg"] != "fast" {
			t.Errorf("%+v, %v", x, err)
		}
	}
	if x, err := c.Claim(ctx, "uid-699"); err != nil || x.Name != "c699" {
		t.Errorf("on the second page: %+v, %v", x, err)
	}
	s.put("/api/v1/namespaces/ns/secrets/chap", map[string]any{"data": map[string]any{"chapUser": "dQ==", "chapPassword": "MTIzNDU2Nzg5MDEy"}})
	if m, err := c.Secret(ctx, "ns", "chap"); err != nil || m["chapUser"] != "u" || m["chapPassword"] != "123456789012" {
		t.Errorf("%v, %v", m, err)
	}
	// The token on disk is what counts.
	s.mu.Lock()
	s.token = "t2"
	s.mu.Unlock()
	if _, err := c.Secret(ctx, "ns", "chap"); err == nil || errors.Is(err, kube.ErrNotFound) || strings.Contains(err.Error(), "t1") {
		t.Errorf("with an old token: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("t2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Secret(ctx, "ns", "chap"); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.NodeInfos(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestConflicts: somebody else writes, or reads go out of date, meanwhile.
func TestConflicts(t *testing.T) {
	s := newServer(t)
	c, _ := s.cluster(t)
	ctx := t.Context()
	if err := c.PutNodeInfo(ctx, kube.NodeInfo{Name: "a", UUID: "u1"}); err != nil {
		t.Fatal(err)
	}
	n := 0
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == "PUT" && n < 2 {
			n++
			o := s.objects[r.URL.Path]
			s.store(r.URL.Path, o)
		}
		return false
	}
	if err := c.PutNodeInfo(ctx, kube.NodeInfo{Name: "a", UUID: "u2"}); err != nil || n != 2 {
		t.Errorf("%v after %d conflicts", err, n)
	}
	s.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == "PUT" {
			s.store(r.URL.Path, s.objects[r.URL.Path])
		}
		return false
	}
	s.calls = nil
	if err := c.PutNodeInfo(ctx, kube.NodeInfo{Name: "a", UUID: "u3"}); err == nil || len(s.calls) != 10 {
		t.Errorf("it always conflicts: %v after %v", err, s.calls)
	}
	gone := 0
	for i := range 700 {
		s.claim("ns", fmt.Sprintf("c%03d", i), fmt.Sprint("uid-", i), "", nil)
	}
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("continue") != "" && gone == 0 {
			gone++
			status(w, 410, "the continue parameter is too old")
			return true
		}
		return false
	}
	if x, err := c.Claim(ctx, "uid-699"); err != nil || x.Name != "c699" {
		t.Errorf("a list that went out of date: %v, %v", x, err)
	}
	for _, reply := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { status(w, 500, "etcd is away") },
		func(w http.ResponseWriter) { status(w, 403, "forbidden") },
		func(w http.ResponseWriter) { fmt.Fprint(w, "<html>") },
		func(w http.ResponseWriter) { fmt.Fprint(w, `{"items":"x"}`) },
	} {
		s.before = func(w http.ResponseWriter, r *http.Request) bool { reply(w); return true }
		if _, err := c.NodeInfos(ctx); err == nil || errors.Is(err, kube.ErrNotFound) {
			t.Errorf("a bad reply: %v", err)
		}
	}
}

func TestInCluster(t *testing.T) {
	s := newServer(t)
	dir, getenv := s.mounted(t)
	none := func(string) string { return "" }
	if _, err := api.InCluster(none, dir); err == nil || !strings.Contains(err.Error(), "KUBERNETES_SERVICE_HOST") {
		t.Error(err)
	}
	if _, err := api.InCluster(getenv, t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca.crt") {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "token")); err != nil {
		t.Fatal(err)
	}
	if _, err := api.InCluster(getenv, dir); err == nil || !strings.Contains(err.Error(), "token") {
		t.Error(err)
	}
	token := func() (string, error) { return "", nil }
	for _, cfg := range []api.Config{{}, {URL: "http://a:1", Token: token}, {URL: "https://a:1"}, {URL: "https://a:1", Token: token, CA: []byte("x")}} {
		if _, err := api.New(cfg); err == nil {
			t.Errorf("%+v is taken", cfg)
		}
	}
}
