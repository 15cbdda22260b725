package hpe_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csilab/csilab/driver/hpe"
)

// rpcs are the calls of a volume's life by name, each on a world that is ready
// for it.
var rpcs = map[string]func(*testing.T, *rig) error{
	"create": func(t *testing.T, r *rig) error { _, err := r.create(t); return err },
	"clone": func(t *testing.T, r *rig) error {
		_, err := r.create(t, func(q *csi.CreateVolumeRequest) {
			q.Name = "pvc-2"
			q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "pvc-1"}}}
		})
		return err
	},
	"delete": func(t *testing.T, r *rig) error {
		_, err := r.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "pvc-1", Secrets: r.secrets})
		return err
	},
	"publish": func(t *testing.T, r *rig) error {
		_, err := r.publish(t, &csi.Volume{VolumeId: "pvc-1"})
		return err
	},
	"unpublish": func(t *testing.T, r *rig) error {
		_, err := r.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: "pvc-1", NodeId: vanilla, Secrets: r.secrets})
		return err
	},
	"expand": func(t *testing.T, r *rig) error {
		res, err := r.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}, Secrets: r.secrets})
		if err == nil && res.GetCapacityBytes() != 2<<30 {
			t.Errorf("grown to %d", res.GetCapacityBytes())
		}
		return err
	},
	"snapshot": func(t *testing.T, r *rig) error {
		_, err := r.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "snapshot-1", SourceVolumeId: "pvc-1", Secrets: r.secrets})
		return err
	},
	"delete snapshot": func(t *testing.T, r *rig) error {
		_, err := r.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: "snapshot-1", Secrets: r.secrets})
		return err
	},
	"list": func(t *testing.T, r *rig) error {
		_, err := r.ListSnapshots(t.Context(), &csi.ListSnapshotsRequest{Secrets: r.secrets})
		return err
	},
	"validate": func(t *testing.T, r *rig) error {
		_, err := r.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "pvc-1", VolumeCapabilities: []*csi.VolumeCapability{mount("")}, Secrets: r.secrets})
		return err
	},
	"modify": func(t *testing.T, r *rig) error {
		_, err := r.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: "pvc-1", MutableParameters: map[string]string{"cpg": "cpg-2"}, Secrets: r.secrets})
		return err
	},
}

// ready makes the world that a call needs.
func ready(t *testing.T, r *rig, rpc string) {
	t.Helper()
	before := []string{"create"}
	switch rpc {
	case "create":
		before = nil
	case "unpublish":
		before = append(before, "publish")
	case "delete snapshot":
		before = append(before, "snapshot")
	}
	for _, b := range before {
		if err := rpcs[b](t, r); err != nil {
			t.Fatal(err)
		}
	}
	r.seen()
}

// What a provider's failures become, how many calls they take, and that the
// same call succeeds once the failure is over. The rows are those of hpe.md
// 4.4, where upstream's driver is seen to do otherwise in most.
func TestFaults(t *testing.T) {
	busy := func(status int) *reply { return &reply{status: status, body: "<html>no backend</html>"} }
	is := func(prefix string) func(string) bool {
		return func(op string) bool { return strings.HasPrefix(op, prefix) }
	}
	for _, c := range []struct {
		name  string
		rpc   string
		op    string // the call that fails
		fault *reply
		after bool // it was done
		times int  // how often; 0: always
		code  codes.Code
		calls int // of the RPC, without logins
		says  string
	}{
		{"401 with a body, read", "expand", "GET /volumes/", refusal(401, "Unauthorized", "x"), false, 1, codes.OK, 3, ""},
		{"401 with a body, create", "create", "POST /volumes", refusal(401, "Unauthorized", "x"), false, 1, codes.OK, 3, ""},
		{"401 with a body, publish", "publish", "PUT /volumes/", refusal(401, "Unauthorized", "x"), false, 1, codes.OK, 4, ""},
		{"401 with a body, unpublish", "unpublish", "PUT /volumes/", refusal(401, "Unauthorized", "x"), false, 1, codes.OK, 3, ""},
		{"401 without a body", "publish", "PUT /volumes/", &reply{status: 401}, false, 1, codes.OK, 4, ""},
		{"401 for ever", "expand", "PUT /volumes/", refusal(401, "Unauthorized", "x"), false, 0, codes.Unauthenticated, 4, "Unauthorized"},
		{"publish 400", "publish", "PUT /volumes/", refusal(400, "Bad Request", "no host"), false, 1, codes.InvalidArgument, 3, "no host"},
		{"publish 403", "publish", "PUT /volumes/", refusal(403, "Forbidden", "x"), false, 1, codes.PermissionDenied, 3, "x"},
		{"publish 404", "publish", "PUT /volumes/", refusal(404, "Not Found", "x"), false, 1, codes.NotFound, 3, "x"},
		{"publish 409", "publish", "PUT /volumes/", refusal(409, "Conflict", "x"), false, 1, codes.FailedPrecondition, 3, "x"},
		{"publish 429", "publish", "PUT /volumes/", refusal(429, "Too Many Requests", "x"), false, 1, codes.Unavailable, 3, "x"},
		{"publish 500", "publish", "PUT /volumes/", refusal(500, "Internal Server Error", "x"), false, 1, codes.Unavailable, 3, "x"},
		{"publish 502", "publish", "PUT /volumes/", busy(502), false, 1, codes.Unavailable, 3, "502"},
		{"publish 503", "publish", "PUT /volumes/", busy(503), false, 1, codes.Unavailable, 3, "no backend"},
		{"publish 504", "publish", "PUT /volumes/", busy(504), false, 1, codes.Unavailable, 3, "504"},
		{"publish 500 with a page", "publish", "PUT /volumes/", busy(500), false, 1, codes.Unavailable, 3, "<html>"},
		{"publish 200 with a page", "publish", "PUT /volumes/", busy(200), true, 1, codes.Unavailable, 3, "can't be read"},
		{"reply lost, create", "create", "POST /volumes", &reply{drop: true}, true, 1, codes.OK, 3, ""},
		{"request lost, create", "create", "POST /volumes", &reply{drop: true}, false, 1, codes.Unavailable, 3, "POST /volumes"},
		{"reply lost, clone", "clone", "POST /volumes", &reply{drop: true}, true, 1, codes.OK, 8, ""},
		{"reply lost, its snapshot", "clone", "POST /snapshots", &reply{drop: true}, true, 1, codes.OK, 8, ""},
		{"reply lost, publish", "publish", "PUT /volumes/", &reply{drop: true}, true, 1, codes.OK, 4, ""},
		{"reply lost, host", "publish", "POST /hosts", &reply{drop: true}, true, 1, codes.OK, 4, ""},
		{"reply lost, unpublish", "unpublish", "PUT /volumes/", &reply{drop: true}, true, 1, codes.OK, 3, ""},
		{"reply lost, expand", "expand", "PUT /volumes/", &reply{drop: true}, true, 1, codes.OK, 3, ""},
		{"reply lost, snapshot", "snapshot", "POST /snapshots", &reply{drop: true}, true, 1, codes.OK, 4, ""},
		{"reply lost, delete", "delete", "DELETE /volumes/", &reply{drop: true}, true, 1, codes.OK, 5, ""},
		{"reply lost, delete snapshot", "delete snapshot", "DELETE /snapshots/", &reply{drop: true}, true, 1, codes.OK, 3, ""},
		{"no reply ever, read", "create", "GET /volumes", &reply{drop: true}, false, 0, codes.Unavailable, 4, "GET /volumes"},
		{"no reply ever, publish", "publish", "PUT /volumes/", &reply{drop: true}, true, 0, codes.Unavailable, 6, "PUT /volumes/"},
		{"hosts 409", "publish", "POST /hosts", refusal(409, "Conflict", "iqn is on node-9"), false, 1, codes.FailedPrecondition, 2, "node-9"},
		{"hosts 500", "publish", "POST /hosts", refusal(500, "x", "x"), false, 1, codes.Unavailable, 2, "x"},
		{"unpublish 404", "unpublish", "PUT /volumes/", refusal(404, "Not Found", "no host"), true, 0, codes.OK, 2, ""},
		{"unpublish 404, published", "unpublish", "PUT /volumes/", refusal(404, "Not Found", "no host"), false, 0, codes.Unavailable, 5, "still published"},
		{"unpublish 500", "unpublish", "PUT /volumes/", refusal(500, "x", "x"), false, 1, codes.Unavailable, 1, "x"},
		{"unpublish 409", "unpublish", "PUT /volumes/", refusal(409, "Conflict", "x"), false, 1, codes.FailedPrecondition, 1, "x"},
		{"delete 400", "delete", "DELETE /volumes/", refusal(400, "Bad Request", "exported"), false, 1, codes.FailedPrecondition, 3, "exported"},
		// What is not found may be something else: the volume is still there.
		{"delete 404", "delete", "DELETE /volumes/", refusal(404, "Not Found", "not in the group"), false, 1, codes.Internal, 4, "not in the group"},
		{"delete snapshot 404", "delete snapshot", "DELETE /snapshots/", refusal(404, "Not Found", "no such set"), false, 1, codes.Internal, 2, "no such set"},
		{"delete 409", "delete", "DELETE /volumes/", refusal(409, "Conflict", "in a set"), false, 1, codes.FailedPrecondition, 3, "in a set"},
		{"delete, snapshots 500", "delete", "GET /snapshots", refusal(500, "x", "x"), false, 1, codes.Unavailable, 2, "x"},
		{"delete, snapshots 404", "delete", "GET /snapshots", refusal(404, "Not Found", "x"), false, 1, codes.OK, 3, ""},
		{"volume 500", "validate", "GET /volumes/", refusal(500, "x", "x"), false, 1, codes.Unavailable, 1, "x"},
		{"volume 503", "snapshot", "GET /volumes/", busy(503), false, 1, codes.Unavailable, 1, "503"},
		{"by name, an empty list", "create", "GET /volumes?", &reply{status: 200, body: "[]"}, false, 1, codes.OK, 2, ""},
		{"by name 500", "create", "GET /volumes?", refusal(500, "x", "x"), false, 1, codes.Unavailable, 1, "x"},
		{"create 500, done", "create", "POST /volumes", refusal(500, "x", "x"), true, 1, codes.OK, 3, ""},
		{"create 500, not done", "create", "POST /volumes", refusal(500, "x", "boom"), false, 1, codes.Unavailable, 3, "boom"},
		{"create 503, done", "create", "POST /volumes", busy(503), true, 1, codes.OK, 3, ""},
		{"create 409, done", "create", "POST /volumes", refusal(409, "Conflict", "exists"), true, 1, codes.OK, 3, ""},
		{"create 409", "create", "POST /volumes", refusal(409, "Conflict", "exists"), false, 1, codes.AlreadyExists, 3, "exists"},
		{"create 400", "create", "POST /volumes", refusal(400, "Bad Request", "cpg: unknown"), false, 1, codes.InvalidArgument, 2, "cpg"},
		{"create 404", "create", "POST /volumes", refusal(404, "Not Found", "cpg"), false, 1, codes.InvalidArgument, 2, "cpg"},
		{"create without room", "create", "POST /volumes", refusal(500, "Internal Server Error", "Insufficient storage space"), false, 1, codes.ResourceExhausted, 3, "nsufficient"},
		{"create 507", "create", "POST /volumes", refusal(507, "x", "x"), false, 1, codes.ResourceExhausted, 3, "x"},
		{"snapshot without room", "snapshot", "POST /snapshots", refusal(400, "Bad Request", "insufficient storage space"), false, 1, codes.ResourceExhausted, 3, "insufficient"},
		{"snapshot 409", "snapshot", "POST /snapshots", refusal(409, "Conflict", "x"), false, 1, codes.AlreadyExists, 4, "x"},
		{"delete snapshot 409", "delete snapshot", "DELETE /snapshots/", refusal(409, "Conflict", "has a clone"), false, 1, codes.FailedPrecondition, 1, "has a clone"},
		{"delete snapshot 500", "delete snapshot", "DELETE /snapshots/", refusal(500, "x", "x"), false, 1, codes.Unavailable, 1, "x"},
		{"list 500", "list", "GET /snapshots", refusal(500, "x", "x"), false, 1, codes.Unavailable, 1, "x"},
		{"expand 400", "expand", "PUT /volumes/", refusal(400, "Bad Request", "not larger"), false, 1, codes.OutOfRange, 3, "not larger"},
		{"expand 409", "expand", "PUT /volumes/", refusal(409, "Conflict", "snapshots"), false, 1, codes.FailedPrecondition, 3, "snapshots"},
		{"expand 500, done", "expand", "PUT /volumes/", refusal(500, "x", "x"), true, 1, codes.OK, 3, ""},
		{"modify 400", "modify", "PUT /volumes/", refusal(400, "Bad Request", "has snapshots"), false, 1, codes.InvalidArgument, 2, "has snapshots"},
		{"modify, reply lost", "modify", "PUT /volumes/", &reply{drop: true}, true, 1, codes.OK, 3, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			ready(t, r, c.rpc)
			match, n := is(c.op), 0
			hook := func(op string) *reply {
				if match(op) && (c.times == 0 || n < c.times) {
					n++
					return c.fault
				}
				return nil
			}
			r.mu.Lock()
			if c.after {
				r.after = hook
			} else {
				r.fault = hook
			}
			r.mu.Unlock()
			err := rpcs[c.rpc](t, r)
			if status.Code(err) != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %s with %q", err, c.code, c.says)
			}
			if got := r.seen(); len(got) != c.calls {
				t.Errorf("%d calls, want %d: %q", len(got), c.calls, got)
			}
			if n == 0 {
				t.Error("the fault didn't fire")
			}
			r.mu.Lock()
			r.fault, r.after = nil, nil
			logins := r.logins
			r.mu.Unlock()
			if logins > 3 {
				t.Errorf("%d logins", logins)
			}
			if err := rpcs[c.rpc](t, r); err != nil {
				t.Errorf("again, without the fault: %v", err)
			}
		})
	}
}

// A publication that doesn't name one device is refused, whatever its form.
func TestPublication(t *testing.T) {
	for name, c := range map[string]struct {
		change func(map[string]any)
		says   string
		key    string
		want   string
	}{
		"LUN that is a string":  {func(p map[string]any) { p["lun_id"] = "5" }, `lun_id is "5"`, "", ""},
		"LUN that is missing":   {func(p map[string]any) { delete(p, "lun_id") }, "lun_id is missing", "", ""},
		"LUN that is null":      {func(p map[string]any) { p["lun_id"] = nil }, "lun_id is missing", "", ""},
		"LUN -1":                {func(p map[string]any) { p["lun_id"] = -1 }, "lun_id is -1", "", ""},
		"LUN with a fraction":   {func(p map[string]any) { p["lun_id"] = 1.5 }, "lun_id is 1.5", "", ""},
		"LUN too large":         {func(p map[string]any) { p["lun_id"] = 16384 }, "16384", "", ""},
		"no serial":             {func(p map[string]any) { p["serial_number"] = "" }, "serial_number", "", ""},
		"serial of other signs": {func(p map[string]any) { p["serial_number"] = "60002/../x" }, "serial_number", "", ""},
		"serial with 0x":        {func(p map[string]any) { p["serial_number"] = "0x60002AC0" }, "", "serialNumber", "60002ac0"},
		"no targets":            {func(p map[string]any) { p["target_names"] = nil }, "target_names", "", ""},
		"no addresses":          {func(p map[string]any) { p["discovery_ips"] = []string{} }, "discovery_ips", "", ""},
		"another protocol":      {func(p map[string]any) { p["access_protocol"] = "fc" }, `"fc"`, "", ""},
		"a peer": {func(p map[string]any) {
			p["PeerArrayDetails"] = []any{map[string]any{"lun_id": 7, "target_names": []string{"t"}, "discovery_ips": []string{"i"}}}
		}, "", "secondaryArrayDetailsKey", `{"PeerArrayDetails":[{"lun_id":7,"target_names":["t"],"discovery_ips":["i"]}]}`},
		"a peer with LUN -1": {func(p map[string]any) {
			p["PeerArrayDetails"] = []any{map[string]any{"lun_id": -1, "target_names": []string{"t"}, "discovery_ips": []string{"i"}}}
		}, "PeerArrayDetails[0]: lun_id is -1", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ready(t, r, "publish")
			r.publication = c.change
			pc, err := r.publish(t, &csi.Volume{VolumeId: "pvc-1"})
			if c.says == "" && (err != nil || pc[c.key] != c.want) {
				t.Errorf("%v, %v", pc, err)
			}
			if c.says != "" && (!slices.Contains([]codes.Code{codes.Internal, codes.Unavailable}, status.Code(err)) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// Logins: one for many calls at once, one after each refusal, with the password
// of the request, and none of it kept where it isn't needed.
func TestLogins(t *testing.T) {
	t.Run("wrong password", func(t *testing.T) {
		r := newRig(t)
		right := r.secrets["password"]
		r.secrets["password"] = "wrong-one"
		err := rpcs["create"](t, r)
		if status.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), "wrong-one") || r.logins != 1 {
			t.Errorf("%v, %d logins", err, r.logins)
		}
		r.secrets["password"] = right
		if err := rpcs["create"](t, r); err != nil {
			t.Error(err)
		}
	})
	t.Run("password changed", func(t *testing.T) {
		r := newRig(t)
		ready(t, r, "publish")
		r.password, r.secrets["password"] = "rotated-pw", "rotated-pw"
		if err := rpcs["publish"](t, r); err != nil || r.logins != 2 {
			t.Errorf("%v, %d logins", err, r.logins)
		}
	})
	for _, st := range []int{500, 503} {
		t.Run(fmt.Sprint("tokens ", st), func(t *testing.T) {
			r := newRig(t)
			r.login = func() *reply { return refusal(st, "x", "x") }
			if err := rpcs["create"](t, r); status.Code(err) != codes.Unavailable || r.logins != 1 {
				t.Errorf("%v, %d logins", err, r.logins)
			}
		})
	}
	t.Run("reply of the login lost", func(t *testing.T) {
		r := newRig(t)
		n := 0
		r.login = func() *reply {
			if n++; n == 1 {
				return &reply{drop: true}
			}
			return nil
		}
		if err := rpcs["create"](t, r); err != nil || r.logins != 2 {
			t.Errorf("%v, %d logins", err, r.logins)
		}
	})
	t.Run("no token in the reply", func(t *testing.T) {
		r := newRig(t)
		r.login = func() *reply { return &reply{status: 200, body: `{}`} }
		if err := rpcs["create"](t, r); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "session_token") {
			t.Error(err)
		}
	})
	t.Run("many at once", func(t *testing.T) {
		r := newRig(t)
		errs := make(chan error)
		for i := range 20 {
			go func() {
				_, err := r.create(t, func(q *csi.CreateVolumeRequest) { q.Name = fmt.Sprint("pvc-", i) })
				errs <- err
			}()
		}
		for range 20 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if r.logins != 1 {
			t.Errorf("%d logins", r.logins)
		}
	})
	t.Run("many refused at once", func(t *testing.T) {
		r := newRig(t)
		ready(t, r, "list")
		r.token = "another" // as after a restart of the provider
		errs := make(chan error)
		for range 10 {
			go func() { errs <- rpcs["list"](t, r) }()
		}
		for range 10 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if r.logins != 2 {
			t.Errorf("%d logins", r.logins)
		}
	})
	t.Run("secrets that are none", func(t *testing.T) {
		r := newRig(t)
		for key, bad := range map[string]string{"backend": "", "username": "", "password": "", "servicePort": "0", "serviceName": "a/b"} {
			good := r.secrets[key]
			r.secrets[key] = bad
			if err := rpcs["create"](t, r); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: %v", key, err)
			}
			r.secrets[key] = good
		}
	})
}

var nowhere = &url.URL{Scheme: "http", Host: "csp:8080"}

// A provider that isn't there: the retries take a bounded time, and none when
// the caller has gone.
func TestAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		r := newRigAt(t, newStub(), nowhere, func(o *hpe.Options) {
			o.Config.Pause = 0
			o.Dial = func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("refused")}
			}
		})
		began := time.Now()
		_, err := r.CreateVolume(context.Background(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{mount("")}, Secrets: r.secrets})
		if took := time.Since(began); status.Code(err) != codes.Unavailable || dials.Load() != 4 || took != 1750*time.Millisecond {
			t.Errorf("%v after %d dials and %s", err, dials.Load(), took)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began = time.Now()
		_, err = r.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: []*csi.VolumeCapability{mount("")}, Secrets: r.secrets})
		if took := time.Since(began); status.Code(err) != codes.DeadlineExceeded || took != time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// A slow provider: the caller's deadline ends the call with its code, the
// client's own with Unavailable.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := transportFunc(func(q *http.Request) (*http.Response, error) {
			<-q.Context().Done()
			return nil, q.Context().Err()
		})
		for service, want := range map[string]time.Duration{"csp": time.Minute, "primera3par-csp-svc": 6 * time.Minute} {
			b := newRigAt(t, newStub(), nowhere, func(o *hpe.Options) { o.Transport, o.Config.Retries = hang, -1 })
			b.secrets["serviceName"] = service
			began := time.Now()
			_, err := b.DeleteVolume(context.Background(), &csi.DeleteVolumeRequest{VolumeId: "a", Secrets: b.secrets})
			if took := time.Since(began); status.Code(err) != codes.Unavailable || took != want {
				t.Errorf("%s: %v after %s", service, err, took)
			}
		}
	})
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }
