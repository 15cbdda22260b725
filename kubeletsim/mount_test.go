package kubeletsim_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func TestTwoPodsOneVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false), pod("p2", "v1", false))
		r.running("p1")
		r.running("p2")
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("shared"), true); err != nil {
			t.Fatal(err)
		}
		if got, err := r.kubelet.ReadFile(r.ctx, "default", "p2", "main", "/data/f", 0, 6); err != nil || string(got) != "shared" {
			t.Errorf("%q, %v", got, err)
		}
		r.deletePod("p1")
		r.until("p1 gone", func() bool { return r.phase("p1") == "" })
		time.Sleep(time.Minute)
		if len(r.driver.made("NodeUnstageVolume")) != 0 {
			t.Error("unstaged under the other pod")
		}
		r.deletePod("p2")
		r.clean()
		want := []string{"NodeStageVolume", "NodePublishVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
		if got := r.driver.order(); !slices.Equal(got, want) {
			t.Errorf("calls %v", got)
		}
	})
}

func TestReadWriteOncePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1", withMode(corev1.ReadWriteOncePod))
		r.create(pod("p1", "v1", false))
		r.running("p1")
		r.create(pod("p2", "v1", false))
		time.Sleep(time.Minute)
		if r.phase("p2") == corev1.PodRunning {
			t.Fatal("two pods have a ReadWriteOncePod volume")
		}
		if want := `MountVolume.SetUp failed for volume "pv-v1" : volume uses the ReadWriteOncePod access mode and is already in use by another pod`; !strings.Contains(r.dump(), want) {
			t.Error(r.dump())
		}
		r.deletePod("p1")
		r.running("p2")
		r.deletePod("p2")
		r.clean()
	})
}

// A pod follows another at once: published anew, with the data of the first,
// whether or not the volume was unstaged between.
func TestMoveToTheNextPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		for i := range 3 {
			name := fmt.Sprintf("p%d", i)
			r.create(pod(name, "v1", false))
			r.running(name)
			if i > 0 {
				if got, err := r.kubelet.ReadFile(r.ctx, "default", name, "", "/data/f", 0, 1); err != nil || string(got) != fmt.Sprint(i-1) {
					t.Errorf("%s read %q, %v", name, got, err)
				}
			}
			if err := r.kubelet.WriteFile(r.ctx, "default", name, "", "/data/f", 0, []byte(fmt.Sprint(i)), true); err != nil {
				t.Fatal(err)
			}
			r.deletePod(name)
			r.until("gone", func() bool { return r.phase(name) == "" })
		}
		r.clean()
	})
}

// Requests carry what the PV, the attachment, the secrets and the pod say.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		yes := true
		r.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{PodInfoOnMount: &yes}},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "s"}, Data: map[string][]byte{"key": []byte("value")}})
		r.up()
		ref := &corev1.SecretReference{Namespace: "kube-system", Name: "s"}
		r.volume("v1", func(pv *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef = ref, ref
			pv.Spec.MountOptions = []string{"noatime"}
		})
		p := pod("p1", "v1", false)
		p.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = true
		p.Spec.ServiceAccountName = "sa"
		r.create(p)
		r.running("p1")
		stage := r.driver.made("NodeStageVolume")[0].req.(*csi.NodeStageVolumeRequest)
		publish := r.driver.made("NodePublishVolume")[0].req.(*csi.NodePublishVolumeRequest)
		if stage.PublishContext["wwn"] != wwn("v1") || publish.PublishContext["wwn"] != wwn("v1") {
			t.Error("no publish context")
		}
		if stage.Secrets["key"] != "value" || publish.Secrets["key"] != "value" {
			t.Error("no secrets")
		}
		if m := stage.VolumeCapability.GetMount(); m.FsType != "ext4" || !slices.Equal(m.MountFlags, []string{"noatime"}) ||
			stage.VolumeCapability.AccessMode.Mode != csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
			t.Errorf("capability %v", stage.VolumeCapability)
		}
		if !publish.Readonly || publish.VolumeContext["csi.storage.k8s.io/pod.name"] != "p1" || publish.VolumeContext["csi.storage.k8s.io/serviceAccount.name"] != "sa" ||
			publish.VolumeContext["type"] != "test" || publish.StagingTargetPath != stage.StagingTargetPath {
			t.Errorf("publish %v", publish)
		}
		if _, leaked := stage.VolumeContext["csi.storage.k8s.io/pod.name"]; leaked {
			t.Error("pod info in the stage request")
		}
		err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("x"), true)
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("write to a read-only volume: %v", err)
		}
		for _, e := range r.led.Entries() {
			if strings.Contains(e.Request, "value") {
				t.Errorf("secret in the ledger: %v", e)
			}
		}
	})
}

func TestFSGroup(t *testing.T) {
	gid := int64(1234)
	root := corev1.FSGroupChangeOnRootMismatch
	for _, c := range []struct {
		name    string
		policy  storagev1.FSGroupPolicy
		mode    corev1.PersistentVolumeAccessMode
		group   bool // the driver's VOLUME_MOUNT_GROUP
		changed bool
	}{
		{"default", "", corev1.ReadWriteOnce, false, true},
		{"default, RWX", "", corev1.ReadWriteMany, false, false},
		{"File, RWX", storagev1.FileFSGroupPolicy, corev1.ReadWriteMany, false, true},
		{"None", storagev1.NoneFSGroupPolicy, corev1.ReadWriteOnce, false, false},
		{"by the driver", "", corev1.ReadWriteOnce, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.driver.group = c.group
				if c.policy != "" {
					r.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{FSGroupPolicy: &c.policy}})
				}
				r.up()
				r.volume("v1", withMode(c.mode))
				// The first pod writes a file, the second comes with an fsGroup.
				r.create(pod("p0", "v1", false))
				r.running("p0")
				if err := r.kubelet.WriteFile(r.ctx, "default", "p0", "main", "/data/f", 0, []byte("x"), true); err != nil {
					t.Fatal(err)
				}
				r.deletePod("p0")
				r.until("gone", func() bool { return r.phase("p0") == "" })
				p := pod("p1", "v1", false)
				p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &gid, FSGroupChangePolicy: &root}
				r.create(p)
				r.running("p1")
				for _, name := range []string{"/data", "/data/f"} {
					hp := must(r.kubelet.HostPath("default", "p1", "main", name))
					_, g, err := r.host.Owner(hp)
					fi := must(r.host.Stat(hp))
					if err != nil || (g == 1234) != c.changed {
						t.Errorf("%s has group %d, %v", name, g, err)
					}
					if c.changed && (fi.Mode().Perm()&0o660 != 0o660 || fi.IsDir() != (fi.Mode()&fs.ModeSetgid != 0)) {
						t.Errorf("%s has mode %v", name, fi.Mode())
					}
				}
				calls := r.driver.made("NodePublishVolume")
				got := calls[len(calls)-1].req.(*csi.NodePublishVolumeRequest).VolumeCapability.GetMount().VolumeMountGroup
				if (got == "1234") != c.group {
					t.Errorf("volume_mount_group %q", got)
				}
			})
		})
	}
}

func TestWithoutStageAndAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		no := false
		r.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{AttachRequired: &no}})
		r.driver.noStage = true
		r.up()
		r.volume("v1")
		if err := r.host.AttachDisk(r.ctx, wwn("v1"), must(r.disks.Open("v1"))); err != nil {
			t.Fatal(err)
		}
		at := time.Now()
		r.create(pod("p1", "v1", false))
		r.until("published", func() bool { return len(r.driver.made("NodePublishVolume")) > 0 })
		if d := time.Since(at); d > time.Second {
			t.Errorf("waited %v although nothing is attached", d)
		}
		req := r.driver.made("NodePublishVolume")[0].req.(*csi.NodePublishVolumeRequest)
		if req.StagingTargetPath != "" || len(req.PublishContext) != 0 {
			t.Errorf("request %v", req)
		}
		n := must(store.Get[corev1.Node](r.client, "", nodeName))
		if len(n.Status.VolumesInUse) != 0 {
			t.Errorf("in use %v", n.Status.VolumesInUse)
		}
		// kubelet v1.37 makes the staging directory before it knows, and without a
		// data file doesn't remove it (pkg/volume/csi/csi_attacher.go, MountDevice).
		dir := fmt.Sprintf("%s/plugins/kubernetes.io/csi/%s/%x", kubeletDir, driverName, sha256.Sum256([]byte("v1")))
		r.leftovers = []string{dir, dir + "/globalmount"}
		r.deletePod("p1")
		r.until("gone", func() bool { return r.phase("p1") == "" })
		r.clean()
		if len(r.driver.made("NodeStageVolume"))+len(r.driver.made("NodeUnstageVolume")) != 0 {
			t.Error("staged without the capability")
		}
	})
}

// volumesInUse is in the API before the volume is attached and as long as it
// is mounted or staged.
func TestInUseBeforeAttach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		var order []string
		for _, e := range r.led.Entries() {
			switch e.Op {
			case "create volumeattachments", "NodeStageVolume":
				order = append(order, e.Op)
			}
		}
		if !slices.Equal(order, []string{"create volumeattachments", "NodeStageVolume"}) {
			t.Errorf("order %v", order)
		}
		r.deletePod("p1")
		r.clean() // which checks that nothing was detached under a mount
	})
}

// What a container may do with its paths.
func TestContainerPaths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		p := pod("p1", "v1", false)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts,
			corev1.VolumeMount{Name: "vol", MountPath: "/data/ro", ReadOnly: true}, corev1.VolumeMount{Name: "vol", MountPath: "/sub", SubPath: "a/b"},
			corev1.VolumeMount{Name: "tmp", MountPath: "/tmp"})
		r.create(p)
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, nil, true); err == nil {
			t.Error("a container wrote before it ran")
		}
		r.running("p1")
		for _, c := range []struct {
			path string
			err  string // "" none
		}{
			{"/data/f", ""}, {"/sub/f", ""}, {"/tmp/f", ""}, {"/data/ro/f", "read-only file system"}, {"/etc/passwd", "is on no volume"},
			{"data/f", "must be absolute"}, {"/data/../etc/f", "is on no volume"}, {"/database", "is on no volume"},
		} {
			err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", c.path, 0, []byte("x"), true)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.path, err, c.err)
			}
		}
		if _, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", "/data/a/b/f", 0, 1); err != nil {
			t.Errorf("subPath a/b is not below the volume: %v", err)
		}
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "other", "/data/f", 0, nil, true); err == nil || !strings.Contains(err.Error(), `no container "other"`) {
			t.Error(err)
		}
		r.deletePod("p1")
		r.clean()
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, nil, true); err == nil {
			t.Error("a container wrote after its end")
		}
	})
}

// A pod of the same name, as a StatefulSet makes it, is another pod.
func TestSameNameAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		first := must(store.Get[corev1.Pod](r.client, "default", "p1"))
		if err := r.client.DeleteNow(r.ctx, first); err != nil {
			t.Fatal(err)
		}
		r.create(pod("p1", "v1", false))
		r.running("p1")
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("x"), true); err != nil {
			t.Error(err)
		}
		r.until("first unpublished", func() bool { return len(r.driver.made("NodeUnpublishVolume")) == 1 })
		r.deletePod("p1")
		r.clean()
	})
}

// A pod that failed, as one that is evicted, gives its volumes back; the
// object stays until it is deleted.
func TestFailedPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		must(store.ModifyStatus(r.ctx, r.client, "default", "p1", func(p *corev1.Pod) error { p.Status.Phase = corev1.PodFailed; return nil }))
		r.clean()
		if r.phase("p1") != corev1.PodFailed {
			t.Errorf("phase %q", r.phase("p1"))
		}
		r.deletePod("p1")
		r.until("gone", func() bool { return r.phase("p1") == "" })
	})
}

// With requiresRepublish a volume is published at each sync of its pod, and a
// failure then leaves the mount in place.
func TestRepublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		yes := true
		r.create(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName}, Spec: storagev1.CSIDriverSpec{RequiresRepublish: &yes}})
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		if err := r.kubelet.WriteFile(r.ctx, "default", "p1", "main", "/data/f", 0, []byte("x"), true); err != nil {
			t.Fatal(err)
		}
		r.driver.failNext("NodePublishVolume", status.Error(codes.Internal, "no token"))
		time.Sleep(3*time.Minute + time.Second)
		if n := len(r.driver.made("NodePublishVolume")); n != 5 { // at 0, 1, 2, 3 min and the retry
			t.Errorf("%d calls", n)
		}
		if _, err := r.kubelet.ReadFile(r.ctx, "default", "p1", "main", "/data/f", 0, 1); err != nil {
			t.Error(err)
		}
		r.deletePod("p1")
		r.clean()
	})
}

// The Node object is deleted under kubelet: it is not made again before the
// next start, and then the driver registers again.
func TestNodeDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		if err := r.client.Delete(r.ctx, must(store.Get[corev1.Node](r.client, "", nodeName))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := store.Get[corev1.Node](r.client, "", nodeName); err == nil {
			t.Fatal("the Node is back without a restart")
		}
		r.stopKubelet()
		r.startKubelet()
		r.until("registered", func() bool {
			cn, err := store.Get[storagev1.CSINode](r.client, "", nodeName)
			n, nerr := store.Get[corev1.Node](r.client, "", nodeName)
			return err == nil && nerr == nil && len(cn.Spec.Drivers) == 1 && cn.OwnerReferences[0].UID == n.UID
		})
	})
}

// Writes to the API server fail for a while; the flow goes through.
func TestAPIServerErrors(t *testing.T) {
	for _, op := range []string{"update-status nodes", "update nodes", "create nodes", "create csinodes", "update csinodes", "update-status pods", "delete pods", "create events"} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				a := r.plan.Arm(fault.Rule{Hop: ledger.Kube, Op: op, Component: "kubelet@" + nodeName, First: 7,
					Do: fault.Error(apierrors.NewInternalError(errors.New("etcd")))})
				r.up()
				r.volume("v1")
				p := pod("p1", "v1", false)
				r.create(p)
				r.running("p1")
				r.deletePod("p1")
				r.until("gone", func() bool { return r.phase("p1") == "" })
				r.clean()
				if a.Fired() == 0 && op != "create events" {
					t.Error("never fired")
				}
			})
		})
	}
}

// NodeUnstage has unmounted and then failed; the next pod's volume is staged
// again before it is published (kubernetes#86360, #100182).
func TestStagedAgainAfterAFailedUnstage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.up()
		r.volume("v1")
		r.create(pod("p1", "v1", false))
		r.running("p1")
		r.driver.after["NodeUnstageVolume"] = []error{status.Error(codes.Internal, "flush failed")}
		r.deletePod("p1")
		r.until("unstaged, with an error", func() bool { return len(r.driver.made("NodeUnstageVolume")) == 1 })
		r.driver.forget()
		r.create(pod("p2", "v1", false))
		r.running("p2")
		got := r.driver.order()
		if i, j := slices.Index(got, "NodeStageVolume"), slices.Index(got, "NodePublishVolume"); i < 0 || i > j {
			t.Errorf("calls %v", got)
		}
		r.deletePod("p2")
		r.clean()
	})
}
