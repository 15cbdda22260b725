package provisioner_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/kube/sidecar"
	"github.com/csilab/csilab/sim/kube/sidecar/sidecartest"
	"github.com/csilab/csilab/sim/kube/store"
)

// What a snapshot must be before a volume is made of it.
func TestSnapshotSource(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for name, c := range map[string]struct {
		change func(*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotContent, *corev1.PersistentVolumeClaim)
		event  string
	}{
		"good":          {nil, ""},
		"being deleted": {nil, ""}, // external-provisioner#1449
		"not bound": {func(s *snapshotv1.VolumeSnapshot, _ *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			s.Status = nil
		}, "snapshot s not bound"},
		"not ready": {func(s *snapshotv1.VolumeSnapshot, _ *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			*s.Status.ReadyToUse = false
		}, "snapshot s is not Ready"},
		"no content": {func(s *snapshotv1.VolumeSnapshot, _ *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			*s.Status.BoundVolumeSnapshotContentName = "x"
		}, "snapshot s not bound"},
		"other driver": {func(_ *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			c.Spec.Driver = "x"
		}, "snapshot s not bound"},
		"other snapshot": {func(_ *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeSnapshotRef.Name = "x"
		}, "snapshot s not bound"},
		"no handle": {func(_ *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			c.Status = nil
		}, "snapshot handle s is not available"},
		"too small": {func(s *snapshotv1.VolumeSnapshot, _ *snapshotv1.VolumeSnapshotContent, _ *corev1.PersistentVolumeClaim) {
			s.Status.RestoreSize = resource.NewQuantity(2<<30, resource.BinarySI)
		}, "requested volume size 1073741824 is less than the size 2147483648 for the source snapshot s"},
		"other mode": {func(_ *snapshotv1.VolumeSnapshot, c *snapshotv1.VolumeSnapshotContent, p *corev1.PersistentVolumeClaim) {
			fs := corev1.PersistentVolumeFilesystem
			c.Spec.SourceVolumeMode, p.Spec.VolumeMode = &fs, &block
		}, "requested volume default/restore modifies the mode of the source volume but does not have permission to do so"},
		"wrong group": {func(_ *snapshotv1.VolumeSnapshot, _ *snapshotv1.VolumeSnapshotContent, p *corev1.PersistentVolumeClaim) {
			p.Spec.DataSource.APIGroup = nil
		}, "the PVC source does not belong to the right APIGroup. Expected snapshot.storage.k8s.io, Got "},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, l *sidecartest.Lab) {
				yes, handle, content, group := true, "snap-1", "content", snapshotv1.GroupName
				s := sidecartest.Snapshot("s", "data", "snap")
				l.Create(s)
				s.Status = &snapshotv1.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &content, ReadyToUse: &yes, RestoreSize: resource.NewQuantity(1<<30, resource.BinarySI)}
				vc := &snapshotv1.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: content}, Spec: snapshotv1.VolumeSnapshotContentSpec{Driver: sidecartest.Name,
					VolumeSnapshotRef: corev1.ObjectReference{Namespace: "default", Name: "s", UID: s.UID}}}
				status := &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &handle}
				vc.Status = status
				pvc := sidecartest.Claim("restore", "sc", "1Gi")
				pvc.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: &group, Kind: "VolumeSnapshot", Name: "s"}
				if c.change != nil {
					c.change(s, vc, pvc)
				}
				status = vc.Status
				l.Create(vc)
				vc.Status = status
				for _, o := range []store.Object{s, vc} {
					if err := l.Client.UpdateStatus(context.Background(), o); err != nil {
						t.Fatal(err)
					}
				}
				if name == "being deleted" {
					s.Finalizers = []string{"snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"}
					if err := l.Client.Update(context.Background(), s); err != nil {
						t.Fatal(err)
					}
					l.Delete(s)
				}
				l.Create(sidecartest.Class("sc", nil), pvc)
				l.Start(sidecar.Real(), sidecar.Provisioner)
				synctest.Wait()
				if c.event != "" {
					l.HasEvent("PersistentVolumeClaim", "ProvisioningFailed", c.event)
					if l.Calls("CreateVolume") != "" {
						t.Error("the driver was called")
					}
					return
				}
				if got := l.Driver.Requests("CreateVolume")[0].(*csi.CreateVolumeRequest).VolumeContentSource.GetSnapshot().GetSnapshotId(); got != handle {
					t.Errorf("source %q; events %q", got, l.Events("PersistentVolumeClaim"))
				}
				getPV(l, pvc)
			})
		})
	}
}

func TestClone(t *testing.T) {
	for _, can := range []bool{true, false} {
		bubble(t, func(t *testing.T, l *sidecartest.Lab) {
			l.Bound("data", "1Gi")
			if !can {
				l.Driver.Without = []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CLONE_VOLUME}
			}
			pvc := sidecartest.Claim("copy", "sc", "1Gi")
			pvc.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"}
			l.Create(sidecartest.Class("sc", nil), pvc)
			l.Start(sidecar.Real(), sidecar.Provisioner)
			synctest.Wait()
			if !can {
				l.HasEvent("PersistentVolumeClaim", "CSI driver does not support clone operations: controller CLONE_VOLUME capability is not reported")
				return
			}
			if got := l.Driver.Requests("CreateVolume")[0].(*csi.CreateVolumeRequest).VolumeContentSource.GetVolume().GetVolumeId(); got != "id-data" {
				t.Errorf("source %q", got)
			}
		})
	}
}

// The secret reaches the driver, at creation and at deletion, and nothing else.
func TestSecretsStaySecret(t *testing.T) {
	bubble(t, func(t *testing.T, l *sidecartest.Lab) {
		pvc := sidecartest.Claim("data", "sc", "1Gi")
		l.Create(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "array"}, Data: map[string][]byte{"password": []byte("tr0ub4dor")}},
			sidecartest.Class("sc", map[string]string{"csi.storage.k8s.io/secret-name": "array", "csi.storage.k8s.io/secret-namespace": "kube-system"}), pvc)
		l.Start(sidecar.Real(), sidecar.Provisioner)
		synctest.Wait()
		if got := l.Driver.Requests("CreateVolume")[0].(*csi.CreateVolumeRequest); got.Secrets["password"] != "tr0ub4dor" || len(got.Parameters) != 0 {
			t.Errorf("%v", got)
		}
		pv := getPV(l, pvc)
		if pv.Spec.CSI.NodeStageSecretRef.Name != "array" {
			t.Errorf("%+v", pv.Spec.CSI)
		}
		release(l, pv.Name)
		synctest.Wait()
		if got := l.Driver.Requests("DeleteVolume")[0].(*csi.DeleteVolumeRequest); got.Secrets["password"] != "tr0ub4dor" {
			t.Errorf("%v", got)
		}
		for _, e := range l.Ledger.Entries() {
			if strings.Contains(e.String()+e.Request, "tr0ub4dor") {
				t.Errorf("in the ledger: %s %s", e, e.Request)
			}
		}
	})
}
