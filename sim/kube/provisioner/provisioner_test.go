package provisioner_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/provisioner"
	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// bubble runs f with a lab in virtual time; nothing may be left after it.
func bubble(t *testing.T, f func(t *testing.T, l *sidecartest.Lab)) {
	synctest.Test(t, func(t *testing.T) {
		l := sidecartest.New(t)
		defer l.Close()
		f(t, l)
	})
}

func getPV(l *sidecartest.Lab, pvc *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	pv, err := store.Get[corev1.PersistentVolume](l.Client, "", "pvc-"+string(pvc.UID))
	if err != nil {
		l.T.Fatal(err)
	}
	return pv
}

// release is what the PV controller does when the claim has gone.
func release(l *sidecartest.Lab, pv string) {
	if _, err := store.ModifyStatus(context.Background(), l.Client, "", pv, func(p *corev1.PersistentVolume) error {
		p.Status.Phase = corev1.VolumeReleased
		return nil
	}); err != nil {
		l.T.Fatal(err)
	}
}

func TestProvisionAndDelete(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		retain := corev1.PersistentVolumeReclaimDelete
		sc := sidecartest.Class("sc", map[string]string{"storagepolicyname": "gold", "csi.storage.k8s.io/fstype": "xfs",
			"csi.storage.k8s.io/node-stage-secret-name": "${pvc.name}-secret", "csi.storage.k8s.io/node-stage-secret-namespace": "${pvc.namespace}"})
		sc.ReclaimPolicy, sc.MountOptions = &retain, []string{"noatime"}
		pvc := sidecartest.Claim("data", "sc", "2Gi")
		l.Create(sc, pvc)
		l.Start(sidecar.Real(), sidecar.Provisioner)
		synctest.Wait()

		req := l.Driver.Requests("CreateVolume")[0].(*csi.CreateVolumeRequest)
		if req.Name != "pvc-"+string(pvc.UID) || req.CapacityRange.RequiredBytes != 2<<30 || len(req.Parameters) != 1 || req.Parameters["storagepolicyname"] != "gold" {
			t.Errorf("request %v", req)
		}
		if c := req.VolumeCapabilities[0]; c.GetMount().GetFsType() != "xfs" || c.GetMount().GetMountFlags()[0] != "noatime" || c.GetAccessMode().GetMode() != csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER {
			t.Errorf("capability %v", c)
		}
		if req.AccessibilityRequirements != nil {
			t.Errorf("topology is off, but %v was asked for", req.AccessibilityRequirements)
		}
		pv := getPV(l, pvc)
		s := pv.Spec
		switch {
		case pv.Finalizers[0] != provisioner.Finalizer, pv.Annotations[provisioner.ProvisionedBy] != sidecartest.Name:
			t.Errorf("metadata %+v", pv.ObjectMeta)
		case s.CSI.FSType != "xfs", s.CSI.VolumeHandle != "id-"+req.Name, s.CSI.VolumeAttributes["type"] != "test", s.CSI.VolumeAttributes[provisioner.IdentityKey] == "",
			s.CSI.NodeStageSecretRef.Name != "data-secret", s.CSI.NodeStageSecretRef.Namespace != "default":
			t.Errorf("source %+v", s.CSI)
		case s.ClaimRef.UID != pvc.UID, s.StorageClassName != "sc", s.MountOptions[0] != "noatime", s.NodeAffinity != nil,
			s.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
			t.Errorf("spec %+v", s)
		}
		if q := s.Capacity[corev1.ResourceStorage]; q.String() != "2Gi" {
			t.Errorf("capacity %v", q.String())
		}
		l.HasEvent("PersistentVolumeClaim", "Provisioning: ", `provisioning volume for claim "default/data"`)
		l.HasEvent("PersistentVolumeClaim", "ProvisioningSucceeded: Successfully provisioned volume "+pv.Name)

		// A PV that is attached still is not deleted; each try waits longer.
		va := sidecartest.Attachment("va", pv.Name, "node-1")
		l.Create(va)
		release(l, pv.Name)
		time.Sleep(4 * time.Second)
		l.HasEvent("PersistentVolume", "VolumeFailedDelete", "is still attached to node node-1")
		if got := l.Calls("DeleteVolume"); got != "" {
			t.Errorf("deleted at %s", got)
		}
		l.Delete(va)
		time.Sleep(4 * time.Second)
		if got := l.Calls("DeleteVolume"); got != "7" { // tries at 0, 1, 3, 7 s
			t.Errorf("deleted at %q", got)
		}
		if _, err := store.Get[corev1.PersistentVolume](l.Client, "", pv.Name); !apierrors.IsNotFound(err) {
			t.Errorf("PV: %v", err)
		}
		if got := l.Driver.Left(); got != "0 volumes, 0 attached, 0 snapshots" {
			t.Error(got)
		}
	})
}

// What each code means: final or not, seen by deleting the claim in between.
func TestCodes(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		t.Run(code.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				uncertain := code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unavailable || code == codes.Aborted
				pvc := sidecartest.Claim("data", "sc", "1Gi")
				l.Create(sidecartest.Class("sc", nil), pvc)
				l.Driver.Answer("CreateVolume", sidecartest.Repeat(3, sidecartest.Status(code))...)
				l.Start(sidecar.Real(), sidecar.Provisioner)
				time.Sleep(1500 * time.Millisecond) // two tries
				l.HasEvent("PersistentVolumeClaim", "ProvisioningFailed: failed to provision volume with StorageClass \"sc\": rpc error: code = "+code.String())
				l.Delete(pvc)
				time.Sleep(time.Hour)
				if !uncertain {
					if got := l.Calls("CreateVolume"); got != "0 1" {
						t.Errorf("final, but called at %s", got)
					}
					return
				}
				// Tried until it was answered; the volume has a PV, so that it can be deleted.
				if got := l.Calls("CreateVolume"); got != "0 1 3 7" {
					t.Errorf("uncertain, but called at %s", got)
				}
				release(l, getPV(l, pvc).Name)
				time.Sleep(time.Second)
				if got := l.Driver.Left(); got != "0 volumes, 0 attached, 0 snapshots" {
					t.Error(got)
				}
			})
		})
	}
}

func TestTimeoutAndBackoff(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.Class("sc", nil), sidecartest.Claim("data", "sc", "1Gi"))
		l.Driver.Do("CreateVolume", sidecartest.Hang)
		l.Driver.Answer("CreateVolume", sidecartest.Repeat(20, sidecartest.Status(codes.Internal))...)
		l.Start(sidecar.Real(), sidecar.Provisioner)
		// No resync comes in between: it would be at 900 s.
		time.Sleep(850 * time.Second)
		// The first ends after its timeout of 300 s; then 1, 2, 4… s, at most 300.
		if got := l.Calls("CreateVolume"); got != "0 301 303 307 315 331 363 427 555 811" {
			t.Errorf("called at %s", got)
		}
	})
}

func TestBadParameters(t *testing.T) {
	for name, c := range map[string]struct {
		params map[string]string
		claim  func(*corev1.PersistentVolumeClaim)
		event  string
	}{
		"reserved":    {map[string]string{"csi.storage.k8s.io/nonsense": "x"}, nil, `found unknown parameter key "csi.storage.k8s.io/nonsense" with reserved namespace csi.storage.k8s.io/`},
		"two fstypes": {map[string]string{"fsType": "a", "csi.storage.k8s.io/fstype": "b"}, nil, "fstype specified in parameters with both"},
		"half secret": {map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "a"}, nil, "either name and namespace for Provisioner secrets specified"},
		"bad token":   {map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "${pvc.nme}", "csi.storage.k8s.io/provisioner-secret-namespace": "x"}, nil, `invalid tokens: ["pvc.nme"]`},
		"no secret":   {map[string]string{"csi.storage.k8s.io/provisioner-secret-name": "a", "csi.storage.k8s.io/provisioner-secret-namespace": "x"}, nil, `secrets "a" not found`},
		"no snapshot": {nil, func(p *corev1.PersistentVolumeClaim) {
			g := "snapshot.storage.k8s.io"
			p.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &g, Kind: "VolumeSnapshot", Name: "s"}
		}, `error getting handle for DataSource Type VolumeSnapshot by Name s: error getting snapshot s from api server: volumesnapshots.snapshot.storage.k8s.io "s" not found`},
		"modes": {nil, func(p *corev1.PersistentVolumeClaim) { p.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{"x"} }, "unsupported AccessMode combination"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				pvc := sidecartest.Claim("data", "sc", "1Gi")
				if c.claim != nil {
					c.claim(pvc)
				}
				l.Create(sidecartest.Class("sc", c.params), pvc)
				l.Start(sidecar.Real(), sidecar.Provisioner)
				synctest.Wait()
				l.HasEvent("PersistentVolumeClaim", "ProvisioningFailed", c.event)
				if l.Calls("CreateVolume") != "" {
					t.Error("the driver was called")
				}
			})
		})
	}
}

func TestWaitForFirstConsumer(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Driver.Zones = true
		for n, z := range map[string]string{"n1": "a", "n2": "b", "n3": "c"} {
			l.Node(n, z)
		}
		sc := sidecartest.Class("sc", nil)
		wait := storagev1.VolumeBindingWaitForFirstConsumer
		sc.VolumeBindingMode = &wait
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		l.Create(sc, pvc)
		set := sidecar.Real()
		set.Provisioner.Topology = true
		l.Driver.Answer("CreateVolume", sidecartest.Status(codes.Aborted), sidecartest.Status(codes.ResourceExhausted))
		l.Start(set, sidecar.Provisioner)
		time.Sleep(time.Minute)
		if l.Calls("CreateVolume") != "" {
			t.Fatal("called without a node")
		}
		choose := func(node string) {
			if _, err := store.Modify(context.Background(), l.Client, "default", "data", func(p *corev1.PersistentVolumeClaim) error {
				p.Annotations[provisioner.SelectedNode] = node
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		choose("n2")
		time.Sleep(time.Minute)
		if got := l.Calls("CreateVolume"); got != "60 61" {
			t.Fatalf("called at %s", got) // out of space there: the scheduler's turn
		}
		if p, _ := store.Get[corev1.PersistentVolumeClaim](l.Client, "default", "data"); p.Annotations[provisioner.SelectedNode] != "" {
			t.Fatal("the node is still selected")
		}
		choose("gone")
		time.Sleep(time.Second)
		l.HasEvent("PersistentVolumeClaim", `ProvisioningFailed: nodes "gone" not found`)
		choose("n3")
		time.Sleep(time.Second)
		reqs := l.Driver.Requests("CreateVolume")
		first, again, last := topology(reqs[0]), topology(reqs[1]), topology(reqs[2])
		if first != "a b c | b c a" || again != first || last != "a b c | c a b" {
			t.Errorf("topologies %q, %q, %q", first, again, last)
		}
		if e := getPV(l, pvc).Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]; e.Key != "zone" || e.Values[0] != "c" {
			t.Errorf("affinity %v", e)
		}
	})
}

func topology(r any) string {
	a := r.(*csi.CreateVolumeRequest).AccessibilityRequirements
	var out []string
	for _, t := range a.GetRequisite() {
		out = append(out, t.Segments["zone"])
	}
	out = append(out, "|")
	for _, t := range a.GetPreferred() {
		out = append(out, t.Segments["zone"])
	}
	return strings.Join(out, " ")
}

func TestImmediateTopology(t *testing.T) {
	for name, c := range map[string]struct {
		flags func(*sidecar.Flags)
		sc    func(*storagev1.StorageClass)
		claim string
		want  string
	}{
		"spread 0":  {nil, nil, "data-web-0", "a b c | a b c"},
		"spread 1":  {nil, nil, "data-web-1", "a b c | b c a"},
		"same set":  {nil, nil, "logs-web-1", "a b c | b c a"},
		"not asked": {func(f *sidecar.Flags) { f.ImmediateTopology = false }, nil, "data-web-0", "|"},
		"allowed": {nil, func(s *storagev1.StorageClass) {
			s.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"c", "b"}}}}}
		}, "data-web-1", "b c | b c"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				for n, z := range map[string]string{"n1": "a", "n2": "b", "n3": "c", "n4": "a"} {
					l.Node(n, z)
				}
				sc := sidecartest.Class("sc", nil)
				if c.sc != nil {
					c.sc(sc)
				}
				set := sidecar.Real()
				set.Provisioner.Topology = true
				if c.flags != nil {
					c.flags(&set.Provisioner)
				}
				l.Create(sc, sidecartest.Claim(c.claim, "sc", "1Gi"))
				l.Start(set, sidecar.Provisioner)
				synctest.Wait()
				reqs := l.Driver.Requests("CreateVolume")
				if len(reqs) != 1 {
					t.Fatalf("%d calls, events %q", len(reqs), l.Events("PersistentVolumeClaim"))
				}
				if got := topology(reqs[0]); got != c.want {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestNoTopologyYet(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		l.Create(sidecartest.Class("sc", nil), sidecartest.Claim("data", "sc", "1Gi"))
		set := sidecar.Real()
		set.Provisioner.Topology = true
		l.Start(set, sidecar.Provisioner)
		time.Sleep(10 * time.Second)
		l.HasEvent("PersistentVolumeClaim", "error generating accessibility requirements: no available topology found")
		l.Node("n1", "a")
		time.Sleep(10 * time.Second)
		if got := l.Calls("CreateVolume"); got != "15" { // tries at 0, 1, 3, 7, 15
			t.Errorf("called at %s", got)
		}
	})
}

// A PV that can't be saved is tried again without another call of the driver.
func TestSaveIsRetried(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		l.Create(sidecartest.Class("sc", nil), pvc)
		l.Plan.Arm(fault.Rule{Hop: ledger.Kube, Op: "create persistentvolumes", First: 3, Do: fault.Error(apierrors.NewInternalError(context.DeadlineExceeded))})
		l.Start(sidecar.Real(), sidecar.Provisioner)
		time.Sleep(time.Second)
		getPV(l, pvc)
		if got := l.Calls("CreateVolume"); got != "0" {
			t.Errorf("called at %s", got)
		}
	})
}

func TestShortVolumeIsDiscarded(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		l.Create(sidecartest.Class("sc", nil), pvc)
		l.Driver.Do("CreateVolume", func(context.Context) error {
			l.Driver.Volumes["pvc-"+string(pvc.UID)] = &csi.Volume{VolumeId: "short", CapacityBytes: 5}
			return nil
		})
		l.Driver.Answer("DeleteVolume", sidecartest.Status(codes.Internal))
		l.Start(sidecar.Real(), sidecar.Provisioner)
		time.Sleep(5 * time.Second)
		if got := l.Sequence(); got != "CreateVolume DeleteVolume DeleteVolume CreateVolume" {
			t.Error(got)
		}
		l.HasEvent("PersistentVolumeClaim", "created volume capacity 5 less than requested capacity 1073741824")
	})
}

// The sidecar is killed at each of its calls, before and after it has its
// effect; what is left at the end is one volume with one PV.
func TestCrashAtEachCall(t *testing.T) {
	for _, op := range []struct {
		hop ledger.Hop
		op  string
	}{{ledger.CSI, "CreateVolume"}, {ledger.Kube, "create persistentvolumes"}, {ledger.CSI, "DeleteVolume"}, {ledger.Kube, "delete persistentvolumes"}, {ledger.Kube, "update persistentvolumes"}} {
		for _, phase := range []fault.Phase{fault.Before, fault.After} {
			t.Run(op.op+" "+string(phase), func(t *testing.T) {
				bubble(t, func(t *testing.T, l *sidecartest.Lab) {
					pvc := sidecartest.Claim("data", "sc", "1Gi")
					l.Create(sidecartest.Class("sc", nil), pvc)
					r := l.Plan.Arm(fault.Rule{Hop: op.hop, Op: op.op, Component: sidecar.Provisioner, Phase: phase, Nth: 1, Do: fault.Crash("")})
					l.Start(sidecar.Real(), sidecar.Provisioner)
					time.Sleep(time.Minute)
					pv := getPV(l, pvc)
					if got := l.Driver.Left(); got != "1 volumes, 0 attached, 0 snapshots" {
						t.Error(got)
					}
					l.Delete(pvc)
					release(l, pv.Name)
					time.Sleep(time.Minute)
					if got := l.Driver.Left(); got != "0 volumes, 0 attached, 0 snapshots" {
						t.Error(got)
					}
					if n := len(store.List[corev1.PersistentVolume](l.Client, "")); n != 0 {
						t.Errorf("%d PVs left", n)
					}
					if r.Fired() != 1 {
						t.Errorf("the rule fired %d times", r.Fired())
					}
				})
			})
		}
	}
}

// The known limit of the real one: killed after a lost CreateVolume, claim
// gone meanwhile.
func TestCrashAndClaimGoneLeavesAnOrphan(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		l.Create(sidecartest.Class("sc", nil), pvc)
		l.Plan.Arm(fault.Rule{Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, Nth: 1, Do: fault.Func("delete claim", func(ctx context.Context, c fault.Call) error {
			_ = l.Client.Delete(context.Background(), pvc)
			l.Pod.Crash(sidecar.Provisioner)
			return fault.ErrCrashed
		})})
		l.Start(sidecar.Real(), sidecar.Provisioner)
		time.Sleep(time.Hour)
		if got := l.Driver.Left(); got != "1 volumes, 0 attached, 0 snapshots" {
			t.Error(got)
		}
	})
}
