package kubeletsim

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
)

// pvcProtection keeps a claim alive while pods use it.
const pvcProtection = "kubernetes.io/pvc-protection"

// podWorker drives one pod of the node from its binding to the removal of its
// directory. Fields are guarded by Kubelet.mu.
type podWorker struct {
	uid     string
	pod     *corev1.Pod   // as last seen; without a spec if known from the disk only
	gone    bool          // not in the API any more
	done    bool          // ended; the object stays until someone deletes it
	resync  bool          // something that the pod depends on has changed
	running bool          // its containers run
	posted  bool          // and the API server knows
	starts  int32         // how often its containers have started
	claims  []string      // keys of the claims that it uses
	kick    chan struct{} // capacity 1
}

func (w *podWorker) wake() {
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *podWorker) ended() bool {
	return w.gone || w.pod.DeletionTimestamp != nil || w.pod.Status.Phase == corev1.PodSucceeded || w.pod.Status.Phase == corev1.PodFailed
}

// podChanged takes in a pod of this node; it starts a worker for a new one.
func (k *Kubelet) podChanged(ctx context.Context, pod *corev1.Pod, deleted bool) {
	uid := string(pod.UID)
	k.mu.Lock()
	w := k.pods[uid]
	if w == nil {
		if deleted {
			k.mu.Unlock()
			return
		}
		w = k.addWorker(pod)
		k.spawn(func() { k.runPod(ctx, w) })
	} else {
		w.gone = w.gone || deleted
		if !deleted {
			w.resync = w.resync || w.pod.Generation != pod.Generation
			w.pod = pod
		}
		if w.gone && w.done {
			k.dropWorker(w)
		}
	}
	k.mu.Unlock()
	w.wake()
}

// addWorker and dropWorker keep the indexes. The caller holds k.mu.
func (k *Kubelet) addWorker(pod *corev1.Pod) *podWorker {
	w := &podWorker{uid: string(pod.UID), pod: pod, kick: make(chan struct{}, 1)}
	for _, v := range pod.Spec.Volumes {
		if c := store.ClaimName(pod, &v); c != "" {
			key := pod.Namespace + "/" + c
			w.claims = append(w.claims, key)
			k.claims.add(key, w.uid)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		w.starts = max(w.starts, c.RestartCount)
		if c.State.Running != nil || c.State.Terminated != nil {
			w.starts = max(w.starts, c.RestartCount+1)
		}
	}
	k.pods[w.uid] = w
	if pod.Name != "" {
		k.podNames[store.Key(pod)] = w.uid
	}
	return w
}

func (k *Kubelet) dropWorker(w *podWorker) {
	delete(k.pods, w.uid)
	for _, c := range w.claims {
		k.claims.drop(c, w.uid)
	}
	if w.pod.Name != "" && k.podNames[store.Key(w.pod)] == w.uid {
		delete(k.podNames, store.Key(w.pod))
	}
}

// ErrNotHere says that this kubelet has no such pod, or not yet: one that was
// just restarted hears of its pods a moment later.
var ErrNotHere = errors.New("not on node")

func (k *Kubelet) podByName(namespace, name string) (*podWorker, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.pods[k.podNames[namespace+"/"+name]]
	if w == nil {
		return nil, fmt.Errorf("pod %s/%s is %w %s", namespace, name, ErrNotHere, k.cfg.NodeName)
	}
	return w, nil
}

// runPod is the life of a pod on its node (pkg/kubelet/pod_workers.go).
func (k *Kubelet) runPod(ctx context.Context, w *podWorker) {
	ctx = fault.About(ctx, w.uid)
	for ctx.Err() == nil {
		k.mu.Lock()
		end := w.ended()
		w.resync = false
		k.mu.Unlock()
		if end {
			k.endPod(ctx, w)
			return
		}
		wait := k.t.SyncFrequency
		if err := k.syncPod(ctx, w); err != nil {
			wait = k.t.PodBackOff
		}
		k.awaitCause(ctx, w, wait)
	}
}

// awaitCause waits until the pod must be synced again: it ends, something it
// depends on has changed, or the time has come.
func (k *Kubelet) awaitCause(ctx context.Context, w *podWorker, d time.Duration) {
	end := time.Now().Add(d)
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		k.mu.Lock()
		now := w.ended() || w.resync
		k.mu.Unlock()
		if now {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-w.kick:
		}
		if passed(end) { // whichever of the two was first
			k.await(ctx, w.uid)
			return
		}
	}
}

// syncPod waits for the volumes of a pod and starts its containers
// (pkg/kubelet/kubelet.go, SyncPod; volume_manager.go, WaitForAttachAndMount).
func (k *Kubelet) syncPod(ctx context.Context, w *podWorker) error {
	k.mu.Lock()
	pod := w.pod
	k.mu.Unlock()
	failed := k.populate(pod)
	names := claimVolumes(pod)
	limit := time.Now().Add(k.t.MountTimeout)
	t := time.NewTimer(k.t.MountTimeout)
	defer t.Stop()
	for over := false; ; {
		k.mu.Lock()
		unmounted := k.world.unmountedOf(w.uid, names)
		var notProcessed, unattached []string
		for _, n := range names {
			v, ok := k.world.byPod[w.uid][n]
			if !ok {
				notProcessed = append(notProcessed, n)
			} else if k.world.actual[v] == nil && k.world.desired[v].attachable {
				unattached = append(unattached, n)
			}
		}
		end, resync := w.ended(), w.resync
		if len(unmounted) > 0 {
			w.resync = false // used below; otherwise the next sync is for it
		}
		k.mu.Unlock()
		if end {
			return nil
		}
		if len(unmounted) == 0 {
			break
		}
		if resync {
			failed = k.populate(pod)
		}
		// On a timeout kubelet says nothing; what failed has its own event.
		if failed != nil {
			err := fmt.Errorf("unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: %w", unmounted, unattached, notProcessed, failed)
			k.event(pod, warning, "FailedMount", fmt.Sprintf("Unable to attach or mount volumes: %v", err))
			return err
		}
		if over {
			return fmt.Errorf("unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: %w", unmounted, unattached, notProcessed, context.DeadlineExceeded)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-w.kick:
		case <-t.C:
		}
		if over = passed(limit); over { // a last look: what comes just now counts
			k.await(ctx, w.uid)
		}
	}
	return k.startContainers(ctx, w, pod)
}

func (k *Kubelet) startContainers(ctx context.Context, w *podWorker, pod *corev1.Pod) error {
	k.mu.Lock()
	running, posted := w.running, w.posted
	k.mu.Unlock()
	if !running {
		if err := k.makeDirs(w.uid, pod); err != nil {
			k.event(pod, warning, "Failed", fmt.Sprintf("Error: %v", err))
			return err
		}
		k.mu.Lock()
		w.running = true
		w.starts++
		k.mu.Unlock()
	}
	if posted {
		return nil
	}
	k.mu.Lock()
	restarts := w.starts - 1
	k.mu.Unlock()
	err := k.podStatus(ctx, pod, func(s *corev1.PodStatus) {
		now := metav1.NewTime(time.Now())
		s.Phase = corev1.PodRunning
		if s.StartTime == nil {
			s.StartTime = &now
		}
		for _, t := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
			setPodCondition(s, t, corev1.ConditionTrue, "")
		}
		s.ContainerStatuses = nil
		for _, c := range pod.Spec.Containers {
			started := true
			s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: &started,
				RestartCount: restarts, ContainerID: fmt.Sprintf("csilab://%s/%s/%d", w.uid, c.Name, restarts),
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}})
		}
	})
	if err != nil {
		k.log.Error("could not update the pod status", "pod", store.Key(pod), "error", err)
		return err
	}
	k.mu.Lock()
	w.posted = true
	k.mu.Unlock()
	return nil
}

// makeDirs makes emptyDir volumes and subPath directories, and refuses the paths
// that no container is made with.
func (k *Kubelet) makeDirs(uid string, pod *corev1.Pod) error {
	for _, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil {
			if err := k.cfg.Host.MkdirAll(k.dirs.emptyDir(uid, v.Name), 0o777); err != nil {
				return err
			}
		}
	}
	for _, c := range pod.Spec.Containers {
		for _, d := range c.VolumeDevices {
			if !path.IsAbs(d.DevicePath) { // kubelet_pods.go:237, v1.37.2
				return fmt.Errorf("error DevicePath `%s` must be an absolute path", d.DevicePath)
			}
		}
		for _, m := range c.VolumeMounts {
			if m.SubPath == "" {
				continue
			}
			if !path.IsAbs(m.SubPath) && !slices.Contains(strings.Split(m.SubPath, "/"), "..") {
				base, _, err := k.volumeDir(uid, pod, m.Name)
				if err == nil && base != "" {
					err = k.cfg.Host.MkdirAll(path.Join(base, m.SubPath), 0o750)
				}
				if err != nil {
					return fmt.Errorf("failed to create subPath directory for volumeMount %q of container %q: %w", m.Name, c.Name, err)
				}
				continue
			}
			return fmt.Errorf("container %q: volumeMounts[%s].subPath %q: must be a relative path without '..'", c.Name, m.Name, m.SubPath)
		}
	}
	return nil
}

// podStatus changes the status of exactly this pod.
func (k *Kubelet) podStatus(ctx context.Context, pod *corev1.Pod, f func(*corev1.PodStatus)) error {
	_, err := store.ModifyStatus(ctx, k.cfg.Client, pod.Namespace, pod.Name, func(p *corev1.Pod) error {
		if p.UID != pod.UID {
			return apierrors.NewNotFound(corev1.Resource("pods"), pod.Name)
		}
		f(&p.Status)
		return nil
	})
	return err
}

func setPodCondition(s *corev1.PodStatus, t corev1.PodConditionType, st corev1.ConditionStatus, reason string) {
	c := corev1.PodCondition{Type: t, Status: st, Reason: reason, LastTransitionTime: metav1.NewTime(time.Now())}
	i := slices.IndexFunc(s.Conditions, func(x corev1.PodCondition) bool { return x.Type == t })
	switch {
	case i < 0:
		s.Conditions = append(s.Conditions, c)
	case s.Conditions[i].Status != st:
		s.Conditions[i] = c
	}
}

// endPod stops a pod's containers, waits until its volumes are unmounted,
// removes its directory and only then its object
// (pkg/kubelet/kubelet.go, SyncTerminatingPod and SyncTerminatedPod).
func (k *Kubelet) endPod(ctx context.Context, w *podWorker) {
	k.mu.Lock()
	pod, running := w.pod, w.running
	k.mu.Unlock()
	if running && k.t.ContainerStop > 0 && !k.sleep(ctx, k.t.ContainerStop, w.uid) {
		return
	}
	k.mu.Lock()
	w.running = false
	gone := w.gone
	over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	k.mu.Unlock()
	if !gone && !over {
		if !k.persist(ctx, w, "could not update the pod status", func() error { return k.podStatus(ctx, pod, terminated) }) {
			return
		}
	}

	k.mu.Lock()
	k.world.unwant(w.uid)
	k.mu.Unlock()
	k.wake()
	k.kickStatus()
	for {
		k.mu.Lock()
		unmounted := k.world.gone(w.uid)
		k.mu.Unlock()
		if unmounted {
			break
		}
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		}
	}
	for {
		err := k.removePodDir(w.uid)
		if err == nil {
			break
		}
		k.log.Error("pod found, but volumes are not cleaned up", "pod", store.Key(pod), "uid", w.uid, "error", err)
		if !k.sleep(ctx, k.t.PodBackOff, w.uid) {
			return
		}
	}
	k.mu.Lock()
	gone = w.gone
	deleting := w.pod.DeletionTimestamp != nil
	k.mu.Unlock()
	if !gone && deleting && !k.persist(ctx, w, "could not delete the pod", func() error {
		return k.cfg.Client.DeleteNow(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(w.uid)}})
	}) {
		return
	}
	k.mu.Lock()
	w.done = true
	if w.gone || deleting {
		k.dropWorker(w)
	}
	again := !w.gone && !deleting
	k.mu.Unlock()
	// A pod that ended by itself: its object goes when someone deletes it.
	for again {
		select {
		case <-ctx.Done():
			return
		case <-w.kick:
		}
		k.mu.Lock()
		gone, deleting = w.gone, w.pod.DeletionTimestamp != nil
		k.mu.Unlock()
		if gone {
			return
		}
		if deleting {
			again = false
			if k.persist(ctx, w, "could not delete the pod", func() error {
				return k.cfg.Client.DeleteNow(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(w.uid)}})
			}) {
				k.mu.Lock()
				k.dropWorker(w)
				k.mu.Unlock()
			}
		}
	}
}

// persist repeats a write about a pod until it succeeds or the pod is gone;
// false if ctx ended first.
func (k *Kubelet) persist(ctx context.Context, w *podWorker, what string, f func() error) bool {
	for {
		err := f()
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		k.log.Error(what, "uid", w.uid, "error", err)
		if !k.sleep(ctx, k.t.StatusRetry, w.uid) {
			return false
		}
	}
}

func terminated(s *corev1.PodStatus) {
	now := metav1.NewTime(time.Now())
	for i := range s.ContainerStatuses {
		c := &s.ContainerStatuses[i]
		started := false
		c.Ready, c.Started = false, &started
		if c.State.Terminated == nil {
			t := &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now, ContainerID: c.ContainerID}
			if c.State.Running != nil {
				t.StartedAt = c.State.Running.StartedAt
			}
			c.State = corev1.ContainerState{Terminated: t}
		}
	}
	for _, t := range []corev1.PodConditionType{corev1.ContainersReady, corev1.PodReady} {
		setPodCondition(s, t, corev1.ConditionFalse, "PodCompleted")
	}
	if s.Phase != corev1.PodFailed {
		s.Phase = corev1.PodSucceeded
	}
}

// removePodDir removes what a pod had on disk: directories only where volumes
// were, so that no file of a volume can be hit (pkg/kubelet/kubelet_volumes.go,
// removeOrphanedPodVolumeDirs and cleanupOrphanedPodDirs).
func (k *Kubelet) removePodDir(uid string) error {
	if err := k.removeTree(path.Join(k.dirs.volumes(uid), emptyDirFS), false); err != nil {
		return err
	}
	if err := k.removeTree(k.dirs.volumes(uid), true); err != nil {
		return err
	}
	return k.removeTree(k.dirs.pod(uid), false)
}

// uses gives the volume names that containers mount, and those that they have
// as devices.
func uses(pod *corev1.Pod) (mounts, devices map[string]bool) {
	mounts, devices = map[string]bool{}, map[string]bool{}
	for _, cs := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range cs {
			for _, m := range c.VolumeMounts {
				mounts[m.Name] = true
			}
			for _, d := range c.VolumeDevices {
				devices[d.Name] = true
			}
		}
	}
	return mounts, devices
}

// claimVolumes lists the used volumes of a pod that are claims, or that should be
// there as well and never come: inline volumes of CSI drivers.
func claimVolumes(pod *corev1.Pod) []string {
	mounts, devices := uses(pod)
	var out []string
	for _, v := range pod.Spec.Volumes {
		if (store.ClaimName(pod, &v) != "" || v.CSI != nil) && (mounts[v.Name] || devices[v.Name]) {
			out = append(out, v.Name)
		}
	}
	return out
}

// populate adds a pod's volumes to the desired state
// (pkg/kubelet/volumemanager/populator, processPodVolumes).
func (k *Kubelet) populate(pod *corev1.Pod) error {
	mounts, devices := uses(pod)
	var errs []string
	for _, v := range pod.Spec.Volumes {
		claim := store.ClaimName(pod, &v)
		if v.CSI != nil && (mounts[v.Name] || devices[v.Name]) {
			k.event(pod, warning, "FailedMount", fmt.Sprintf("MountVolume.SetUp failed for volume %q : %v", v.Name, k.refuseInline(v.CSI.Driver)))
		}
		if claim == "" || !mounts[v.Name] && !devices[v.Name] {
			continue
		}
		spec, err := k.specOf(pod, v, claim, mounts[v.Name], devices[v.Name])
		if err != nil {
			errs = append(errs, err.Error())
			continue
		}
		needs := k.needsAttach(spec.csi().Driver)
		// pkg/volume/csi/csi_plugin.go, RequiresRemount: published at each sync.
		d, err := k.csiDriver(spec.csi().Driver)
		again := err == nil && d != nil && d.Spec.RequiresRepublish != nil && *d.Spec.RequiresRepublish
		pvc, err := k.claimOf(spec)
		k.mu.Lock()
		k.world.want(pod, v.Name, spec, needs)
		if err == nil {
			k.world.initSize(spec.unique(), pvc.Status.Capacity[corev1.ResourceStorage])
		}
		if again {
			k.world.remount(spec.unique(), string(pod.UID))
		}
		k.mu.Unlock()
	}
	k.wake()
	k.kickStatus()
	if len(errs) > 0 {
		return errors.New(strings.Join(errs, "; "))
	}
	return nil
}

// refuseInline says why a pod's inline volume is not mounted: the driver has
// persistent volumes only (pkg/volume/csi/csi_mounter.go:536,
// supportsVolumeLifecycleMode), as ours have.
func (k *Kubelet) refuseInline(driver string) error {
	const mode = storagev1.VolumeLifecycleEphemeral
	d, err := k.csiDriver(driver)
	switch {
	case err != nil:
	case d == nil:
		err = fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, driver)
	case slices.Contains(d.Spec.VolumeLifecycleModes, mode):
		return fmt.Errorf("driver %s: csilab's kubelet mounts no inline volumes", driver)
	default:
		modes := d.Spec.VolumeLifecycleModes
		if len(modes) == 0 { // the API's default
			modes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
		}
		err = fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, driver, modes)
	}
	return fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: %w", err)
}

// specOf finds the volume behind a claim, and says why it can't be used
// (desired_state_of_world_populator.go, createVolumeSpec).
func (k *Kubelet) specOf(pod *corev1.Pod, v corev1.Volume, claim string, isMount, isDevice bool) (volumeSpec, error) {
	bad := func(err error) (volumeSpec, error) {
		return volumeSpec{}, fmt.Errorf("error processing PVC %s/%s: %v", pod.Namespace, claim, err)
	}
	pvc, err := store.Get[corev1.PersistentVolumeClaim](k.cfg.Client, pod.Namespace, claim)
	switch {
	case err != nil:
		return bad(fmt.Errorf("failed to fetch PVC from API server: %v", err))
	case pvc.DeletionTimestamp != nil && !slices.Contains(pvc.Finalizers, pvcProtection):
		return bad(errors.New("PVC is being deleted"))
	case pvc.Status.Phase != corev1.ClaimBound:
		return bad(errors.New("PVC is not bound"))
	case pvc.Spec.VolumeName == "":
		return bad(errors.New("PVC has empty pvc.Spec.VolumeName"))
	}
	if err := store.Usable(pod, &v, pvc); err != nil {
		return volumeSpec{}, err
	}
	pv, err := store.Get[corev1.PersistentVolume](k.cfg.Client, "", pvc.Spec.VolumeName)
	switch {
	case err != nil:
		return bad(fmt.Errorf("failed to fetch PV %s from API server: %v", pvc.Spec.VolumeName, err))
	case pv.Spec.ClaimRef == nil:
		return bad(fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", pv.Name))
	case pv.Spec.ClaimRef.UID != pvc.UID:
		return bad(fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", pv.Name, pv.Spec.ClaimRef.UID, pvc.UID))
	case pv.Spec.CSI == nil:
		return volumeSpec{}, fmt.Errorf("no volume plugin matched name: PV %s is not a CSI volume", pv.Name)
	}
	s := volumeSpec{pv: pv, readOnly: v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly}
	switch {
	case isMount && s.block():
		return volumeSpec{}, fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", v.Name, corev1.PersistentVolumeBlock)
	case isDevice && !s.block():
		return volumeSpec{}, fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", v.Name, corev1.PersistentVolumeFilesystem)
	}
	return s, nil
}
