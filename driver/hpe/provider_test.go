package hpe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/record"
)

// stub is a provider that does the least: for tests of single replies. Tests of
// whole lives are made with the simulated provider.
type stub struct {
	mu       sync.Mutex
	user     string
	password string
	token    string
	logins   int
	volumes  map[string]map[string]any
	snaps    map[string]map[string]any
	hosts    map[string]map[string]any
	exports  map[string]bool // volume host
	calls    []string
	bodies   []string
	headers  []http.Header
	// fault, when set, is asked with each call but logins, before it is done: a
	// reply that isn't nil is sent instead.
	fault func(op string) *reply
	// after is asked after the call was done.
	after func(op string) *reply
	// login is the same for logins.
	login func() *reply
	// publication changes what publish answers.
	publication func(map[string]any)
}

type reply struct {
	status int
	body   string
	drop   bool
}

func newStub() *stub {
	return &stub{user: "3paradm", password: "3pardata", volumes: map[string]map[string]any{}, snaps: map[string]map[string]any{},
		hosts: map[string]map[string]any{}, exports: map[string]bool{}}
}

func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	path := strings.TrimPrefix(r.URL.Path, "/containers/v1")
	op := r.Method + " " + path
	if r.URL.RawQuery != "" {
		op += "?" + r.URL.RawQuery
	}
	s.calls, s.bodies, s.headers = append(s.calls, op), append(s.bodies, string(body)), append(s.headers, r.Header)
	var in map[string]any
	json.Unmarshal(body, &in)
	if op == "POST /tokens" {
		s.logins++
		if s.login != nil {
			if x := s.login(); x != nil {
				send(w, x)
				return
			}
		}
		if in["username"] != s.user || in["password"] != s.password {
			send(w, refusal(401, "Unauthorized", "bad login"))
			return
		}
		s.token = fmt.Sprint("token-", s.logins)
		sendJSON(w, map[string]any{"session_token": s.token})
		return
	}
	if s.fault != nil {
		if x := s.fault(op); x != nil {
			send(w, x)
			return
		}
	}
	if r.Header.Get("x-auth-token") != s.token || s.token == "" {
		send(w, refusal(401, "Unauthorized", "no session"))
		return
	}
	rec := httptest.NewRecorder()
	s.do(rec, r.Method, path, r.URL.Query(), in)
	if s.after != nil {
		if x := s.after(op); x != nil {
			send(w, x)
			return
		}
	}
	w.WriteHeader(rec.Code)
	w.Write(rec.Body.Bytes())
}

func (s *stub) do(w http.ResponseWriter, method, path string, q url.Values, in map[string]any) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	kind, id := parts[0], ""
	if len(parts) > 1 {
		id = parts[1]
	}
	all := map[string]map[string]map[string]any{"volumes": s.volumes, "snapshots": s.snaps, "hosts": s.hosts}[kind]
	missing := refusal(404, "Not Found", kind+" "+id)
	switch {
	case len(parts) == 4: // actions
		host, _ := in["host_uuid"].(string)
		v := s.volumes[id]
		if v == nil || s.hosts[host] == nil {
			send(w, missing)
			return
		}
		if parts[3] == "unpublish" {
			delete(s.exports, id+" "+host)
			v["published"] = false
			w.WriteHeader(204)
			return
		}
		s.exports[id+" "+host] = true
		v["published"] = true
		p := map[string]any{"serial_number": "60002AC0000000000000000100020003", "access_protocol": in["access_protocol"], "lun_id": 0,
			"target_names": []string{"iqn.2000-05.com.3pardata:a", "iqn.2000-05.com.3pardata:b"}, "discovery_ips": []string{"192.0.2.1", "192.0.2.2"}}
		if s.publication != nil {
			s.publication(p)
		}
		sendJSON(w, p)
	case method == "POST" && kind == "hosts":
		s.hosts[in["uuid"].(string)] = in
		sendJSON(w, in)
	case method == "POST":
		name := in["name"].(string)
		if all[name] != nil {
			send(w, refusal(409, "Conflict", name+" exists"))
			return
		}
		in["id"] = name
		if kind == "snapshots" {
			in["ready_to_use"], in["creation_time"], in["size"] = true, 9, s.volumes[in["volume_id"].(string)]["size"]
		}
		all[name] = in
		sendJSON(w, in)
	case id == "":
		var out []map[string]any
		for _, x := range slices.Sorted(maps.Keys(all)) {
			v := all[x]
			if (q.Get("name") == "" || q.Get("name") == v["name"]) && (q.Get("volume_id") == "" || q.Get("volume_id") == v["volume_id"]) {
				out = append(out, v)
			}
		}
		if q.Get("name") != "" && len(out) == 0 {
			send(w, missing)
			return
		}
		sendJSON(w, out)
	case all[id] == nil:
		send(w, missing)
	case method == "DELETE":
		delete(all, id)
		w.WriteHeader(204)
	case method == "PUT":
		maps.Copy(all[id], in)
		sendJSON(w, all[id])
	default:
		sendJSON(w, all[id])
	}
}

func refusal(status int, code, message string) *reply {
	b, _ := json.Marshal(map[string]any{"errors": []any{map[string]string{"code": code, "message": message}}})
	return &reply{status: status, body: string(b)}
}

func send(w http.ResponseWriter, x *reply) {
	if x.drop {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(x.status)
	io.WriteString(w, x.body)
}

func sendJSON(w http.ResponseWriter, v any) {
	b, _ := json.Marshal(v)
	w.Write(b)
}

// rig is a controller service over the backend over a stub.
type rig struct {
	csi.ControllerServer
	*stub
	backend *hpe.Backend
	cluster *kube.Memory
	records *record.Memory
	secrets map[string]string
}

func newRig(t *testing.T, change ...func(*hpe.Options)) *rig {
	t.Helper()
	stub := newStub()
	web := httptest.NewServer(stub)
	t.Cleanup(web.Close)
	u, _ := url.Parse(web.URL)
	return newRigAt(t, stub, u, change...)
}

// newRigAt is a rig for a provider somewhere.
func newRigAt(t *testing.T, stub *stub, u *url.URL, change ...func(*hpe.Options)) *rig {
	t.Helper()
	r := &rig{stub: stub, cluster: &kube.Memory{}, records: record.NewMemory()}
	r.secrets = map[string]string{"serviceName": u.Hostname(), "servicePort": u.Port(), "backend": "192.0.2.9", "username": "3paradm", "password": "3pardata"}
	opt := hpe.Options{Records: r.records, Config: hpe.Config{Pause: time.Millisecond}}
	for _, f := range change {
		f(&opt)
	}
	if opt.Config.Cluster != nil {
		opt.Config.Cluster = r.cluster
	}
	var err error
	if r.backend, err = hpe.New(opt); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.backend.Close(context.Background()) })
	r.ControllerServer = controller.New(controller.Config{Backend: r.backend, MinBytes: hpe.MinBytes, MaxBytes: hpe.MaxBytes, FSTypes: hpe.FSTypes})
	return r
}

// seen returns the calls so far, without logins, and forgets them.
func (r *rig) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.DeleteFunc(r.calls, func(c string) bool { return c == "POST /tokens" })
	r.calls, r.bodies, r.headers = nil, nil, nil
	return out
}

const vanilla = `{"name":"node-1","uuid":"u-1","iqns":["iqn.1994-05.com.redhat:1"],"networks":["192.0.2.50/24"]}`

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}, AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}}
}

func mount(fs string) *csi.VolumeCapability {
	return &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fs}}}
}

func (r *rig) create(t *testing.T, change ...func(*csi.CreateVolumeRequest)) (*csi.Volume, error) {
	t.Helper()
	q := &csi.CreateVolumeRequest{Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 30}, VolumeCapabilities: []*csi.VolumeCapability{mount("")},
		Parameters: map[string]string{"accessProtocol": "iscsi", "cpg": "cpg-1", "hostSeesVLUN": "true"}, Secrets: r.secrets}
	for _, f := range change {
		f(q)
	}
	res, err := r.CreateVolume(t.Context(), q)
	return res.GetVolume(), err
}

func (r *rig) publish(t *testing.T, v *csi.Volume, change ...func(*csi.ControllerPublishVolumeRequest)) (map[string]string, error) {
	t.Helper()
	q := &csi.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: vanilla, VolumeCapability: mount(""), VolumeContext: v.GetVolumeContext(), Secrets: r.secrets}
	for _, f := range change {
		f(q)
	}
	res, err := r.ControllerPublishVolume(t.Context(), q)
	return res.GetPublishContext(), err
}
