package kubeletsim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/csilab/csilab/sim/kube/store"
)

// verifyAttached takes a volume into the actual state once the Node object
// says that it is attached (operation_generator.go:1394).
func (k *Kubelet) verifyAttached(_ context.Context, op operation) error {
	pvc, err := k.claimOf(op.spec)
	if err != nil {
		return opError("VerifyControllerAttachedVolume fetching pvc failed", op.spec, err)
	}
	a, devicePath := notAttachable, ""
	if op.attachable {
		node, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName)
		if err != nil {
			return opError("VerifyControllerAttachedVolume failed fetching node from API server", op.spec, err)
		}
		for _, v := range node.Status.VolumesAttached {
			if v.Name == op.volume {
				a, devicePath = attachable, v.DevicePath
			}
		}
		if a != attachable {
			return opError("Volume not attached according to node status", op.spec, nil)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.world.attached(op.volume, op.spec, a, devicePath)
	k.world.initSize(op.volume, pvc.Status.Capacity[corev1.ResourceStorage])
	return nil
}

func (k *Kubelet) claimOf(s volumeSpec) (*corev1.PersistentVolumeClaim, error) {
	r := s.pv.Spec.ClaimRef
	if r == nil {
		return nil, fmt.Errorf("PV %s has no claimRef", s.pv.Name)
	}
	return store.Get[corev1.PersistentVolumeClaim](k.cfg.Client, r.Namespace, r.Name)
}

// csiDriver is the driver's CSIDriver object, nil when there is none.
func (k *Kubelet) csiDriver(name string) (*storagev1.CSIDriver, error) {
	d, err := store.See[storagev1.CSIDriver](k.cfg.Client, "", name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return d, err
}

// needsAttach says whether a driver's volumes are attached by a controller:
// yes, unless its CSIDriver object says no (pkg/volume/csi/csi_plugin.go, skipAttach).
func (k *Kubelet) needsAttach(driver string) bool {
	d, err := k.csiDriver(driver)
	return err != nil || d == nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

// waitForAttach checks the VolumeAttachment. Nothing is waited for here: an
// operation that fails is repeated (pkg/volume/csi/csi_attacher.go:127).
func (k *Kubelet) waitForAttach(s volumeSpec) (string, error) {
	handle := s.csi().VolumeHandle
	id := attachmentName(handle, s.csi().Driver, k.cfg.NodeName)
	va, err := store.See[storagev1.VolumeAttachment](k.cfg.Client, "", id)
	switch {
	case err != nil:
		return "", fmt.Errorf("volume %v has GET error for volume attachment %v: %v", handle, id, err)
	case va.DeletionTimestamp != nil:
		return "", errors.New("volume attachment is being deleted")
	case va.Status.Attached:
		return va.Name, nil
	case va.Status.AttachError != nil:
		return "", errors.New(va.Status.AttachError.Message)
	}
	return "", fmt.Errorf("volume %v is not attached for volume attachment %v", handle, id)
}

// publishContext is the attachment's metadata; nil for a driver without attach.
func (k *Kubelet) publishContext(s volumeSpec) (map[string]string, error) {
	if !k.needsAttach(s.csi().Driver) {
		return nil, nil
	}
	va, err := store.See[storagev1.VolumeAttachment](k.cfg.Client, "", attachmentName(s.csi().VolumeHandle, s.csi().Driver, k.cfg.NodeName))
	if err != nil {
		return nil, err
	}
	return va.Status.AttachmentMetadata, nil
}

// secret reads the secret of a reference; a nil reference gives no secrets.
func (k *Kubelet) secret(r *corev1.SecretReference) (map[string]string, error) {
	out := map[string]string{}
	if r == nil {
		return out, nil
	}
	s, err := store.Get[corev1.Secret](k.cfg.Client, r.Namespace, r.Name)
	if err != nil {
		return nil, csiErrorf("failed to find the secret %s in the namespace %s with error: %v", r.Name, r.Namespace, err)
	}
	for key, v := range s.Data {
		out[key] = string(v)
	}
	for key, v := range s.StringData {
		out[key] = v
	}
	return out, nil
}

// checkUse holds what is checked before any call: the PV's node affinity and
// the access mode ReadWriteOncePod (operation_generator.go:457-486).
func (k *Kubelet) checkUse(op operation, verb, setUp string) error {
	node, err := store.Get[corev1.Node](k.cfg.Client, "", k.cfg.NodeName)
	if err == nil {
		err = storagehelpers.CheckNodeAffinity(op.spec.pv, node.Labels)
	}
	if err != nil {
		return opError(verb+".NodeAffinity check failed", op.spec, err)
	}
	k.mu.Lock()
	elsewhere := k.world.elsewhere(op.volume, op.uid)
	k.mu.Unlock()
	if m := op.spec.pv.Spec.AccessModes; elsewhere && len(m) == 1 && m[0] == corev1.ReadWriteOncePod {
		return opError(setUp, op.spec, errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod"))
	}
	return nil
}

// mountVolume makes a filesystem available to a pod: wait for attach, stage,
// publish, expand (operation_generator.go:433).
func (k *Kubelet) mountVolume(ctx context.Context, op operation) error {
	if err := k.checkUse(op, "MountVolume", "MountVolume.SetUp failed"); err != nil {
		return err
	}
	devicePath := ""
	if op.attachable {
		var err error
		if devicePath, err = k.waitForAttach(op.spec); err != nil {
			return opError("MountVolume.WaitForAttach failed", op.spec, err)
		}
	}
	staging := k.dirs.stage(op.spec.csi().Driver, op.spec.csi().VolumeHandle)
	k.mu.Lock()
	dev := k.world.deviceState(op.volume)
	reconstructed := k.world.podState(op.volume, op.uid) == uncertain && k.world.actual[op.volume].reconstructed[op.uid]
	k.mu.Unlock()
	if dev != mounted {
		err := k.mountDevice(ctx, op, staging)
		k.mu.Lock()
		if err != nil {
			k.world.deviceFailed(op.volume, devicePath, staging, err)
		} else {
			k.world.setDevice(op.volume, mounted, devicePath, staging)
		}
		k.mu.Unlock()
		if err != nil {
			return opError("MountVolume.MountDevice failed", op.spec, err)
		}
	}
	if err := k.setUp(ctx, op, reconstructed); err != nil {
		k.mu.Lock()
		k.world.podFailed(op.volume, op.uid, op.spec, err)
		k.mu.Unlock()
		return opError("MountVolume.SetUp failed", op.spec, err)
	}
	if err := k.expandDuringMount(ctx, op, k.dirs.publish(op.uid, op.innerName), staging); err != nil {
		// The volume is mounted but too small: not for the pod, yet to be unmounted.
		k.mu.Lock()
		k.world.setPod(op.volume, op.uid, op.spec, uncertain)
		k.mu.Unlock()
		return opError("MountVolume.Setup failed while expanding volume", op.spec, err)
	}
	k.mu.Lock()
	k.world.setPod(op.volume, op.uid, op.spec, mounted)
	k.mu.Unlock()
	return nil
}

// mountDevice stages a filesystem (pkg/volume/csi/csi_attacher.go, MountDevice).
func (k *Kubelet) mountDevice(ctx context.Context, op operation, staging string) error {
	src := op.spec.csi()
	c, err := k.client(src.Driver)
	if err != nil {
		return transientf("attacher.MountDevice failed to create newCsiDriverClient: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	hasStage, err := c.supportsStage(ctx)
	if err != nil {
		return err
	}
	pubCtx, err := k.publishContext(op.spec)
	if err != nil {
		return &transientError{err.Error()}
	}
	secrets := map[string]string{}
	if hasStage {
		if secrets, err = k.secret(src.NodeStageSecretRef); err != nil {
			return &transientError{fmt.Sprintf("fetching NodeStageSecretRef %s/%s failed: %v", src.NodeStageSecretRef.Namespace, src.NodeStageSecretRef.Name, err)}
		}
	}
	if err := k.cfg.Host.MkdirAll(staging, 0o750); err != nil {
		return csiErrorf("attacher.MountDevice failed to create dir %#v:  %v", staging, err)
	}
	if !hasStage {
		return nil
	}
	group, err := c.supportsMountGroup(ctx)
	if err != nil {
		return transientf("attacher.MountDevice failed to determine if the node service has VOLUME_MOUNT_GROUP capability: %v", err)
	}
	if err := k.saveData(path.Dir(staging), volumeData{keyHandle: src.VolumeHandle, keyDriver: src.Driver}); err != nil {
		if rerr := k.removeMountDir(staging); rerr != nil {
			k.log.Error("attacher.MountDevice failed to remove mount dir after error", "path", staging, "error", rerr)
		}
		return csiErrorf("failed to save volume info data: %v", err)
	}
	a := mountArgs{volumeID: src.VolumeHandle, publishContext: pubCtx, volumeContext: src.VolumeAttributes, secrets: secrets,
		accessMode: op.spec.accessMode(), fsType: src.FSType, mountFlags: op.spec.pv.Spec.MountOptions}
	if group {
		a.fsGroup = fsGroupOf(op.pod)
	}
	err = c.stage(ctx, a, staging)
	if err != nil && finished(err) {
		if rerr := k.removeMountDir(staging); rerr != nil {
			k.log.Error("attacher.MountDevice failed to remove mount dir after error", "path", staging, "error", rerr)
		}
	}
	return err
}

// setUp publishes a filesystem to a pod (pkg/volume/csi/csi_mounter.go, SetUpAt).
func (k *Kubelet) setUp(ctx context.Context, op operation, reconstructed bool) error {
	src := op.spec.csi()
	dir := k.dirs.publish(op.uid, op.innerName)
	c, err := k.client(src.Driver)
	if err != nil {
		return transientf("mounter.SetUpAt failed to get CSI client: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	obj, err := k.csiDriver(src.Driver)
	if err != nil {
		return transientf("mounter.SetupAt failed to check volume lifecycle mode: %s", err)
	}
	policy, err := fsGroupPolicy(obj)
	if err != nil {
		return transientf("mounter.SetupAt failed to check fsGroup policy: %s", err)
	}
	if obj != nil && len(obj.Spec.VolumeLifecycleModes) > 0 && !hasPersistentMode(obj) {
		return transientf("mounter.SetupAt failed to check volume lifecycle mode: volume mode %q not supported by driver %s (only supports %q)",
			storagev1.VolumeLifecyclePersistent, src.Driver, obj.Spec.VolumeLifecycleModes)
	}
	hasStage, err := c.supportsStage(ctx)
	if err != nil {
		return csiErrorf("mounter.SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability: %v", err)
	}
	staging := ""
	if hasStage {
		staging = k.dirs.stage(src.Driver, src.VolumeHandle)
	}
	pubCtx, err := k.publishContext(op.spec)
	if err != nil {
		return transientf("mounter.SetUpAt failed to fetch publishContext: %v", err)
	}
	parent := path.Dir(dir)
	if err := k.cfg.Host.MkdirAll(parent, 0o750); err != nil {
		return csiErrorf("mounter.SetUpAt failed to create dir %#v:  %v", parent, err)
	}
	secrets, err := k.secret(src.NodePublishSecretRef)
	if err != nil {
		return &transientError{fmt.Sprintf("fetching NodePublishSecretRef %s/%s failed: %v", src.NodePublishSecretRef.Namespace, src.NodePublishSecretRef.Name, err)}
	}
	group, err := c.supportsMountGroup(ctx)
	if err != nil {
		return transientf("mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability: %v", err)
	}
	if err := k.saveData(parent, volumeData{keySpecVolID: op.spec.name(), keyHandle: src.VolumeHandle, keyDriver: src.Driver,
		keyNode: k.cfg.NodeName, keyLifecycle: string(storagev1.VolumeLifecyclePersistent),
		keyAttachment: attachmentName(src.VolumeHandle, src.Driver, k.cfg.NodeName)}); err != nil {
		if rerr := k.removeMountDir(dir); rerr != nil {
			k.log.Error("mounter.SetUpAt failed to remove mount dir after error", "path", dir, "error", rerr)
		}
		return err
	}
	a := mountArgs{volumeID: src.VolumeHandle, publishContext: pubCtx, volumeContext: podInfo(obj, op.pod, src.VolumeAttributes),
		secrets: secrets, accessMode: op.spec.accessMode(), fsType: src.FSType, mountFlags: op.spec.pv.Spec.MountOptions}
	if group {
		a.fsGroup = fsGroupOf(op.pod)
	}
	if err := c.publish(ctx, a, staging, dir, op.spec.readOnly); err != nil {
		if finished(err) && !reconstructed && !op.remount {
			if rerr := k.removeMountDir(dir); rerr != nil {
				k.log.Error("mounter.SetupAt failed to remove mount dir after a NodePublish() error", "path", dir, "error", rerr)
			}
		}
		return err
	}
	if !group && changesGroup(op.spec, fsGroupOf(op.pod), policy) {
		if err := k.applyFSGroup(dir, *fsGroupOf(op.pod), op.pod.Spec.SecurityContext.FSGroupChangePolicy); err != nil {
			return &uncertainError{fmt.Sprintf("applyFSGroup failed for vol %s: %v", src.VolumeHandle, err)}
		}
	}
	return nil
}

func hasPersistentMode(d *storagev1.CSIDriver) bool {
	for _, m := range d.Spec.VolumeLifecycleModes {
		if m == storagev1.VolumeLifecyclePersistent {
			return true
		}
	}
	return false
}

// podInfo adds what a driver with podInfoOnMount is told about the pod
// (pkg/volume/csi/csi_util.go, getPodInfoAttrs).
func podInfo(d *storagev1.CSIDriver, pod *corev1.Pod, attrs map[string]string) map[string]string {
	if d == nil || d.Spec.PodInfoOnMount == nil || !*d.Spec.PodInfoOnMount {
		return attrs
	}
	out := map[string]string{}
	maps.Copy(out, attrs)
	out["csi.storage.k8s.io/pod.name"] = pod.Name
	out["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
	out["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
	out["csi.storage.k8s.io/serviceAccount.name"] = pod.Spec.ServiceAccountName
	out["csi.storage.k8s.io/ephemeral"] = "false"
	return out
}

// unmountVolume takes a filesystem from a pod (operation_generator.go:741,
// csi_mounter.go, TearDownAt).
func (k *Kubelet) unmountVolume(ctx context.Context, op operation) error {
	dir := k.dirs.publish(op.uid, op.innerName)
	data, err := k.loadData(path.Dir(dir))
	if err != nil {
		// NewUnmounter fails before the operation starts: tried again, state unchanged.
		return opError("UnmountVolume.NewUnmounter failed", op.spec, csiErrorf("unmounter failed to load volume data file [%s]: %v", dir, err))
	}
	err = func() error {
		c, err := k.client(data[keyDriver])
		if err != nil {
			return transientf("Unmounter.TearDownAt failed to get CSI client: %v", err)
		}
		ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
		defer cancel()
		if err := c.unpublish(ctx, data[keyHandle], dir); err != nil {
			return csiErrorf("Unmounter.TearDownAt failed: %v", err)
		}
		// The driver has removed the target path, by the CSI specification; some don't.
		if err := k.removeMountDir(dir); err != nil {
			return csiErrorf("Unmounter.TearDownAt failed to clean mount dir [%s]: %v", dir, err)
		}
		return nil
	}()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.world.setPod(op.volume, op.uid, op.spec, uncertain)
		return opError("UnmountVolume.TearDown failed", op.spec, err)
	}
	k.world.dropPod(op.volume, op.uid)
	return nil
}

// unmountDevice unstages a filesystem that no pod uses (operation_generator.go:819).
func (k *Kubelet) unmountDevice(ctx context.Context, op operation) error {
	staging := k.dirs.stage(op.spec.csi().Driver, op.spec.csi().VolumeHandle)
	refs, err := k.cfg.Host.Mounter().GetMountRefs(staging)
	if missing(err) {
		refs, err = nil, nil
	}
	if err == nil && foreignRefs(staging, refs) {
		err = fmt.Errorf("the device mount path %q is still mounted by other references %v", staging, refs)
	}
	if err != nil {
		return opError("GetDeviceMountRefs check failed", op.spec, err)
	}
	err = k.tearDownDevice(ctx, staging)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.world.setDevice(op.volume, uncertain, "", staging)
		return opError("UnmountDevice failed", op.spec, err)
	}
	k.world.setDevice(op.volume, notMounted, "", "")
	return nil
}

// tearDownDevice is pkg/volume/csi/csi_attacher.go, UnmountDevice. Without a
// data file there is nothing to unstage.
func (k *Kubelet) tearDownDevice(ctx context.Context, staging string) error {
	data, err := k.loadData(path.Dir(staging))
	if missing(err) {
		return nil
	} else if err != nil {
		return err
	}
	c, err := k.client(data[keyDriver])
	if err != nil {
		return transientf("attacher.UnmountDevice failed to create newCsiDriverClient: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, k.t.CSICall)
	defer cancel()
	hasStage, err := c.supportsStage(ctx)
	if err != nil {
		return csiErrorf("attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set: %v", err)
	}
	if hasStage {
		if err := c.unstage(ctx, data[keyHandle], staging); err != nil {
			return csiErrorf("attacher.UnmountDevice failed: %v", err)
		}
	}
	if err := k.removeMountDir(staging); err != nil {
		return csiErrorf("failed to clean up global mount %s: %s", path.Dir(staging), err)
	}
	return nil
}

// foreignRefs says whether a mount is also somewhere that is not kubelet's
// business (pkg/volume/util/util.go:562).
func foreignRefs(p string, refs []string) bool {
	find := p
	if i := strings.Index(p, "/plugins/kubernetes.io/"); i >= 0 {
		find = p[i:]
	}
	for _, r := range refs {
		if !strings.Contains(r, find) {
			return true
		}
	}
	return false
}
