package sim_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vmware/govmomi"
	"github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/object"
	"github.com/vmware/govmomi/session"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/attachdetach"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/simtest"
)

const kubeletRoot = "/var/lib/kubelet"

// stagingPath is where a kubelet has a volume staged (kubernetes v1.37.2
// pkg/volume/csi/csi_attacher.go, makeDeviceMountPath).
func stagingPath(volumeID string) string {
	return fmt.Sprintf("%s/plugins/kubernetes.io/csi/%s/%x/globalmount", kubeletRoot, driver.Name(driver.VSphere), sha256.Sum256([]byte(volumeID)))
}

// podPath is where a pod's volume is mounted on its node.
func podPath(lab *sim.Lab, pod, pvc string) string {
	p, err := lab.Pod(pod)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~csi/%s/mount", kubeletRoot, p.UID, lab.PVName(pvc))
}

// foreign plugs a disk with a filesystem into a node, that no vCenter knows.
func foreign(t testing.TB, lab *sim.Lab, node string) (device string) {
	t.Helper()
	const wwn = "6000c29fffffffffffffffffffffffff"
	s := disk.NewMemory()
	must(t, s.Create("foreign", 64<<20))
	img, err := s.Open("foreign")
	must(t, err)
	must(t, lab.Host(node).AttachDisk(t.Context(), wwn, img))
	device, err = lab.Host(node).EvalSymlinks("/dev/disk/by-id/wwn-0x" + wwn)
	must(t, err)
	if out, err := lab.Host(node).Exec().Command("mkfs.ext4", device).CombinedOutput(); err != nil {
		t.Fatalf("mkfs: %v: %s", err, out)
	}
	return device
}

// Each invariant is broken on purpose in a lab that is well otherwise. The lab
// must name just that one.
func TestBrokenLabs(t *testing.T) {
	for _, tc := range []struct {
		name, id string
		quiet    bool // it holds only in a quiet lab: Check sees it, Broken does not
		breakIt  func(ctx context.Context, t *testing.T, lab *sim.Lab)
	}{
		{"mounted on a second node", "I1", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			path := stagingPath(lab.VolumeID("data"))
			must(t, lab.Host("node-2").MkdirAll(path, 0o750))
			must(t, lab.Host("node-2").Mounter().Mount(foreign(t, lab, "node-2"), path, "ext4", nil))
		}},
		{"another device under the staging path", "I3", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			path := stagingPath(lab.VolumeID("data"))
			must(t, lab.Host("node-1").Mounter().Unmount(path))
			must(t, lab.Host("node-1").Mounter().Mount(foreign(t, lab, "node-1"), path, "ext4", nil))
		}},
		// The driver trusts neither blkid nor a short read; so somebody else formats
		// the device after its last look.
		{"mkfs over data", "I4", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "another mkfs first", Hop: ledger.Host, Op: "exec mkfs.ext4", Do: fault.Func("mkfs", func(_ context.Context, c fault.Call) error {
				device := c.Request[strings.Index(c.Request, "/dev/"):]
				return lab.Host(c.Node).Exec().Command("mkfs.ext4", device).Run()
			})})
			must(t, lab.Create(ctx, claim("other"), pod("other", "node-2", "other")))
			_, _ = lab.Running(ctx, "other") // ends with the alarm
		}},
		{"a detach that lies", "I5", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
			must(t, lab.DeletePod(ctx, "app"))
			_ = lab.Detached(ctx, lab.PVName("data"))
		}},
		{"an unpublish that lies", "I5", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "unpublish lies", Hop: ledger.CSI, Op: "NodeUnpublishVolume", Do: fault.Skip()})
			_ = lab.DeletePod(ctx, "app")
		}},
		{"a delete that lies", "I5", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "delete lies", Hop: ledger.CSI, Op: "DeleteVolume", Do: fault.Skip()})
			must(t, lab.DeletePod(ctx, "app"))
			_ = lab.DeletePVC(ctx, "data")
		}},
		{"a node's status that has lost what is mounted", "I6", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			must(t, lab.StopKubelet("node-1"))
			must(t, lab.ForceDeletePod(ctx, "app"))
			_, err := store.ModifyStatus(ctx, lab.Client(), "", "node-1", func(n *corev1.Node) error { n.Status.VolumesInUse = nil; return nil })
			must(t, err)
			_ = lab.Detached(ctx, lab.PVName("data")) // ends with the alarm
		}},
		{"a disk that comes back after its detach", "I6", false, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			pv, err := lab.Volume(lab.PVName("data"))
			must(t, err)
			a, err := store.Get[storagev1.VolumeAttachment](lab.Client(), "", attachdetach.AttachmentName(pv.Spec.CSI.VolumeHandle, lab.DriverName(), "node-1"))
			must(t, err)
			lab.Inject(fault.Rule{Name: "plugged in again", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Phase: fault.After, Do: fault.Func("plug", func(ctx context.Context, _ fault.Call) error {
				s := disk.NewMemory()
				must(t, s.Create("same", 64<<20))
				img, err := s.Open("same")
				must(t, err)
				return lab.Host("node-1").AttachDisk(ctx, a.Status.AttachmentMetadata["diskUUID"], img)
			})})
			_ = lab.DeletePod(ctx, "app")
			_ = lab.Detached(ctx, lab.PVName("data"))
		}},
		{"a claim that says more than there is", "I9", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			_, err := store.ModifyStatus(ctx, lab.Client(), sim.Namespace, "data", func(c *corev1.PersistentVolumeClaim) error {
				c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("65Mi")}
				return nil
			})
			must(t, err)
		}},
		{"a filesystem that is not grown", "I9", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			lab.Inject(fault.Rule{Name: "expansion lies", Hop: ledger.CSI, Op: "NodeExpandVolume", Do: fault.Skip()})
			must(t, lab.Expand(ctx, "data", "128Mi"))
			must(t, lab.Expanded(ctx, "data", "128Mi"))
		}},
		{"other content", "I8", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			must(t, lab.Host("node-1").WriteAt(podPath(lab, "app", "data")+"/a", 0, []byte("W"), true))
		}},
		{"a lost file", "I8", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			must(t, lab.Host("node-1").Remove(podPath(lab, "app", "data")+"/a"))
		}},
		{"a disk that no vCenter knows", "I10", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			foreign(t, lab, "node-2")
		}},
		{"a left-over volume directory", "I10", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			must(t, lab.Host("node-2").MkdirAll(kubeletRoot+"/pods/7fd04a0c-0000-4000-8000-000000000000/volumes/kubernetes.io~csi/pvc-1", 0o750))
		}},
		{"a left-over VolumeAttachment", "I10", true, func(ctx context.Context, t *testing.T, lab *sim.Lab) {
			pv := "no-such"
			must(t, lab.Client().Create(ctx, &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-left"},
				Spec: storagev1.VolumeAttachmentSpec{Attacher: driver.Name(driver.VSphere), NodeName: "node-2", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}}}))
		}},
	} {
		t.Run(tc.id+" "+tc.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T) {
				lab := simtest.New(t, simtest.Bubble())
				ctx := hour(t)
				start(ctx, t, lab, "app", "node-1", "data")
				must(t, lab.Write(ctx, "app", "/data/a", "written once"))
				must(t, lab.Check(ctx))
				tc.breakIt(ctx, t, lab)
				if err := lab.Broken(ctx); (err == nil) != tc.quiet {
					t.Errorf("at once: %v", err)
				}
				short, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				names(t, lab.Check(short), tc.id)
			})
		})
	}
}

// names requires that err is about one invariant and no other.
func names(t testing.TB, err error, id string) {
	t.Helper()
	var ie *sim.InvariantError
	if !errors.As(err, &ie) {
		t.Fatalf("got %v, want that %s is broken", err, id)
	}
	for _, v := range ie.Violations {
		if v.ID != id {
			t.Errorf("also broken: %v", v)
		}
	}
	t.Log(err)
}

// Behind the driver's back, as an administrator: the vCenter itself refuses to
// attach a volume to a second VM. A volume of another cluster is not our business;
// one of ours that no PersistentVolume owns breaks I2.
func TestAdministrator(t *testing.T) {
	t.Parallel()
	lab := simtest.New(t, simtest.MemoryHosts())
	ctx := bounded(t)
	start(ctx, t, lab, "app", "node-1", "data")
	must(t, lab.Check(ctx))
	admin := soap.NewClient(lab.VCenter().URL(), true)
	admin.UserAgent = "csilab/admin" // how the ledger tells it from the driver
	t.Cleanup(admin.CloseIdleConnections)
	vc, err := vim25.NewClient(ctx, admin)
	must(t, err)
	must(t, session.NewManager(vc).Login(ctx, lab.VCenter().URL().User))
	c, err := cns.NewClient(ctx, vc)
	must(t, err)
	result := func(task *object.Task, err error) error {
		if err != nil {
			return err
		}
		info, err := task.WaitForResultEx(ctx)
		if err != nil {
			return err
		}
		if f := info.Result.(cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].GetCnsVolumeOperationResult().Fault; f != nil {
			return fmt.Errorf("%T: %s", f.Fault, f.LocalizedMessage)
		}
		return nil
	}

	second, err := object.NewSearchIndex(vc).FindByUuid(ctx, nil, lab.VCenter().VMUUID("node-2"), true, nil)
	must(t, err)
	err = result(c.AttachVolume(ctx, []cnstypes.CnsVolumeAttachDetachSpec{{VolumeId: cnstypes.CnsVolumeId{Id: lab.VolumeID("data")}, Vm: second.Reference()}}))
	if err == nil {
		t.Error("a second VM got the disk")
	}
	t.Log(err)
	must(t, lab.Check(ctx))

	spec := func(name, cluster string) []cnstypes.CnsVolumeCreateSpec {
		s := cnstypes.CnsVolumeCreateSpec{Name: name, VolumeType: "BLOCK",
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 64}}}
		s.Metadata.ContainerCluster = cnstypes.CnsContainerCluster{ClusterType: "KUBERNETES", ClusterId: cluster, VSphereUser: "Administrator@vsphere.local", ClusterFlavor: "VANILLA"}
		return []cnstypes.CnsVolumeCreateSpec{s}
	}
	must(t, result(c.CreateVolume(ctx, spec("foreign", "another-cluster"))))
	must(t, lab.Check(ctx))
	must(t, result(c.CreateVolume(ctx, spec("orphan", "csilab"))))
	must(t, lab.Broken(ctx))
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	names(t, lab.Check(short), "I2")
}

// More sessions than the driver had lives: one that logs in for each call and
// never out.
func TestLeakedSession(t *testing.T) {
	lab := simtest.New(t, simtest.MemoryHosts())
	ctx := bounded(t)
	start(ctx, t, lab, "app", "node-1", "data")
	must(t, lab.Check(ctx))
	vc, err := govmomi.NewClient(ctx, lab.VCenter().URL(), true)
	must(t, err)
	t.Cleanup(vc.CloseIdleConnections)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	names(t, lab.Check(short), "I10")
	must(t, vc.Logout(ctx))
	end(ctx, t, lab, "app", "data")
}
