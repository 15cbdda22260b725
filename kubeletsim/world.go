package kubeletsim

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// volumeName is a volume's unique name on the node, as in node.status:
// kubernetes.io/csi/<driver>^<handle>.
type volumeName = corev1.UniqueVolumeName

func uniqueName(driver, handle string) volumeName {
	return volumeName("kubernetes.io/csi/" + driver + "^" + handle)
}

// volumeSpec is a persistent volume as a pod uses it. After a restart the PV
// holds only what the files on the node tell: name, driver, handle and mode.
type volumeSpec struct {
	pv       *corev1.PersistentVolume
	readOnly bool // spec.volumes[].persistentVolumeClaim.readOnly
}

func (s volumeSpec) name() string                           { return s.pv.Name }
func (s volumeSpec) csi() *corev1.CSIPersistentVolumeSource { return s.pv.Spec.CSI }
func (s volumeSpec) unique() volumeName                     { return uniqueName(s.csi().Driver, s.csi().VolumeHandle) }
func (s volumeSpec) block() bool {
	return s.pv.Spec.VolumeMode != nil && *s.pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// accessMode is the first access mode of the PV (pkg/volume/csi/csi_attacher.go,
// MountDevice; csi_mounter.go, SetUpAt), ReadWriteOnce without one.
func (s volumeSpec) accessMode() corev1.PersistentVolumeAccessMode {
	if len(s.pv.Spec.AccessModes) > 0 {
		return s.pv.Spec.AccessModes[0]
	}
	return corev1.ReadWriteOnce
}

type mountState int

const (
	notMounted mountState = iota
	mounted
	// uncertain: a call to mount may be going on, or have had its effect. The
	// volume is neither given to a pod nor forgotten: mounting is repeated while
	// it is wanted, unmounting once it isn't.
	uncertain
)

func (s mountState) String() string { return [...]string{"not mounted", "mounted", "uncertain"}[s] }

type attachability int

const (
	attachUncertain attachability = iota // found on disk, the Node object not yet asked
	attachable
	notAttachable
)

// world is what should be and what is, for the volumes of one node: kubelet's
// desired and actual state of world (pkg/kubelet/volumemanager/cache). It is a
// plain state machine: no clock, no I/O, no lock.
type world struct {
	desired map[volumeName]*desiredVolume
	actual  map[volumeName]*actualVolume
	byPod   map[string]map[string]volumeName // pod uid -> name in the pod's spec -> volume
	ops     *operations

	// attachedOnNode is node.status.volumesAttached as last seen.
	attachedOnNode map[volumeName]bool
	// claims holds the resource version, as last seen, of the claims whose
	// volumes wait for their turn to be expanded ("" none seen yet).
	claims map[string]string
	// populated says that all pods of the node are in desired, so that what is
	// not wanted may be unmounted (reconciler/reconstruct.go, readyToUnmount).
	populated bool
}

type desiredVolume struct {
	name          volumeName
	attachable    bool
	reportedInUse bool
	size          resource.Quantity // of the PV; zero: don't expand
	pods          map[string]desiredPod
}

type desiredPod struct {
	pod  *corev1.Pod
	spec volumeSpec
}

type actualVolume struct {
	name            volumeName
	spec            volumeSpec
	attachability   attachability
	device          mountState
	devicePath      string
	deviceMountPath string
	size            resource.Quantity // of the claim, as this node knows it
	noInUseExpand   bool              // the driver can't expand while in use
	expandFailed    bool              // with a final error
	claim           string            // key of the claim that this node waits for to expand
	claimSeen       string            // and its version that said: not your turn
	reconstructed   map[string]bool   // pods found on disk at start; nil: volume was not found there
	pods            map[string]*actualPod
}

type actualPod struct {
	uid       string
	innerName string // name of the directory: that of the PV
	state     mountState
	spec      volumeSpec
	remount   bool
}

func newWorld(first, most time.Duration) *world {
	return &world{desired: map[volumeName]*desiredVolume{}, actual: map[volumeName]*actualVolume{},
		byPod: map[string]map[string]volumeName{}, ops: newOperations(first, most), attachedOnNode: map[volumeName]bool{}, claims: map[string]string{}}
}

// operation is one step that the world needs. Everything that it acts on was
// copied when it was decided.
type operation struct {
	key        opKey
	name       opName
	volume     volumeName
	pod        *corev1.Pod // nil for an unmount
	uid        string
	innerName  string
	spec       volumeSpec
	attachable bool
	remount    bool
	size       resource.Quantity // wanted (mount, expand)
	oldSize    resource.Quantity // expand
}

// want adds a pod's volume to the desired state.
func (w *world) want(pod *corev1.Pod, outerName string, spec volumeSpec, isAttachable bool) {
	n := spec.unique()
	d := w.desired[n]
	if d == nil {
		d = &desiredVolume{name: n, attachable: isAttachable, pods: map[string]desiredPod{}}
		w.desired[n] = d
	}
	d.pods[string(pod.UID)] = desiredPod{pod: pod, spec: spec}
	if w.byPod[string(pod.UID)] == nil {
		w.byPod[string(pod.UID)] = map[string]volumeName{}
	}
	w.byPod[string(pod.UID)][outerName] = n
	if spec.readOnly {
		return // populator.go, checkVolumeFSResize: no resize through a read-only use
	}
	d.size = spec.pv.Spec.Capacity[corev1.ResourceStorage].DeepCopy()
}

// unwant takes all volumes of a pod out of the desired state.
func (w *world) unwant(uid string) {
	for _, n := range w.byPod[uid] {
		if d := w.desired[n]; d != nil {
			delete(d.pods, uid)
			if len(d.pods) == 0 {
				delete(w.desired, n)
			}
		}
	}
	delete(w.byPod, uid)
}

// inUse is what node.status.volumesInUse must hold
// (pkg/kubelet/volumemanager/volume_manager.go, GetVolumesInUse).
func (w *world) inUse() []volumeName {
	set := map[volumeName]bool{}
	for n, d := range w.desired {
		if d.attachable {
			set[n] = true
		}
	}
	for n, a := range w.actual {
		if a.attachability == attachable {
			set[n] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// reported notes what the API server knows to be in use.
func (w *world) reported(names []volumeName) (changed bool) {
	for n, d := range w.desired {
		now := slices.Contains(names, n)
		changed = changed || now != d.reportedInUse
		d.reportedInUse = now
	}
	return changed
}

// attached adds a volume to the actual state.
func (w *world) attached(n volumeName, spec volumeSpec, a attachability, devicePath string) *actualVolume {
	v := w.actual[n]
	if v == nil {
		v = &actualVolume{name: n, spec: spec, attachability: a, pods: map[string]*actualPod{}}
		w.actual[n] = v
	} else if v.attachability == attachUncertain {
		v.attachability = a
	}
	v.devicePath = devicePath
	return v
}

// initSize notes the claim's size once (actual_state_of_world.go:912).
func (w *world) initSize(n volumeName, size resource.Quantity) {
	if v := w.actual[n]; v != nil && v.size.IsZero() {
		v.size = size
	}
}

func (w *world) deviceState(n volumeName) mountState {
	if v := w.actual[n]; v != nil {
		return v.device
	}
	return notMounted
}

func (w *world) setDevice(n volumeName, s mountState, devicePath, mountPath string) {
	v := w.actual[n]
	if v == nil {
		return
	}
	v.device, v.deviceMountPath = s, mountPath
	if devicePath != "" {
		v.devicePath = devicePath
	}
}

// deviceFailed notes that staging failed (operation_generator.go:685,
// markDeviceErrorState).
func (w *world) deviceFailed(n volumeName, devicePath, mountPath string, err error) {
	v := w.actual[n]
	if v == nil {
		return
	}
	switch {
	case finished(err) && v.device == uncertain:
		if v.reconstructed == nil { // what was found on disk may still be staged
			v.device, v.deviceMountPath = notMounted, ""
		}
	case isUncertain(err) && v.device == notMounted:
		w.setDevice(n, uncertain, devicePath, mountPath)
	}
}

func (w *world) podState(n volumeName, uid string) mountState {
	if v := w.actual[n]; v != nil && v.pods[uid] != nil {
		return v.pods[uid].state
	}
	return notMounted
}

// setPod notes the state of a volume for a pod (actual_state_of_world.go:782).
func (w *world) setPod(n volumeName, uid string, spec volumeSpec, s mountState) {
	v := w.actual[n]
	if v == nil {
		return
	}
	p := v.pods[uid]
	if p == nil {
		p = &actualPod{uid: uid, innerName: spec.name()}
		v.pods[uid] = p
	}
	p.spec, p.state, p.remount = spec, s, false
	if s == mounted {
		delete(v.reconstructed, uid)
	}
}

func (w *world) dropPod(n volumeName, uid string) {
	if v := w.actual[n]; v != nil {
		delete(v.pods, uid)
		delete(v.reconstructed, uid)
	}
}

// podFailed notes that publishing failed (operation_generator.go:712,
// markVolumeErrorState).
func (w *world) podFailed(n volumeName, uid string, spec volumeSpec, err error) {
	v := w.actual[n]
	if v == nil {
		return
	}
	switch st := w.podState(n, uid); {
	case finished(err) && st == uncertain:
		if !v.reconstructed[uid] {
			w.dropPod(n, uid)
		}
	case isUncertain(err) && st == notMounted:
		w.setPod(n, uid, spec, uncertain)
	}
}

// remount asks for another publish of a volume that a pod has already.
func (w *world) remount(n volumeName, uid string) {
	if w.podState(n, uid) == mounted {
		w.actual[n].pods[uid].remount = true
	}
}

// elsewhere says whether the volume is mounted, perhaps, for another pod.
func (w *world) elsewhere(n volumeName, uid string) bool {
	v := w.actual[n]
	if v == nil {
		return false
	}
	for other, p := range v.pods {
		if other != uid && p.state != notMounted {
			return true
		}
	}
	return false
}

func claimKey(s volumeSpec) string {
	if r := s.pv.Spec.ClaimRef; r != nil {
		return r.Namespace + "/" + r.Name
	}
	return ""
}

// watchClaim, waitForClaim, claimChanged and claimUnchanged replace kubelet's
// question every 100 ms whether a claim allows this node to expand.
func (w *world) watchClaim(s volumeSpec) {
	if _, ok := w.claims[claimKey(s)]; !ok {
		w.claims[claimKey(s)] = ""
	}
}

func (w *world) waitForClaim(v *actualVolume, s volumeSpec, version string) {
	v.claim, v.claimSeen = claimKey(s), version
	w.claims[v.claim] = newer(w.claims[v.claim], version)
}

func (w *world) claimChanged(key, version string) (known bool) {
	if _, known = w.claims[key]; known {
		w.claims[key] = newer(w.claims[key], version)
	}
	return known
}

// newer is the later of two resource versions of an object ("" is none yet): what
// is read may be ahead of the events, and is then no reason to read again.
func newer(a, b string) string {
	if len(a) > len(b) || len(a) == len(b) && a > b { // they are numbers
		return a
	}
	return b
}

func (w *world) claimUnchanged(v *actualVolume) bool {
	return v.claimSeen != "" && w.claims[v.claim] == v.claimSeen
}

// gone says that nothing of the pod is mounted or being mounted.
func (w *world) gone(uid string) bool {
	for n, v := range w.actual {
		if v.pods[uid] != nil || w.ops.runningFor(uid, n) {
			return false
		}
	}
	return true
}

// unmountedOf lists the names, in the pod's spec, of its volumes that are not mounted.
func (w *world) unmountedOf(uid string, names []string) []string {
	var out []string
	for _, name := range names {
		n, ok := w.byPod[uid][name]
		if !ok || w.podState(n, uid) != mounted {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// decide gives the operations to start now, in order, and marks them as
// running; wake is when to ask again if nothing happens before (zero: never).
// The order is that of pkg/kubelet/volumemanager/reconciler/reconciler.go:33:
// unmount, mount, then unmount devices.
func (w *world) decide(now time.Time) (start []operation, wake time.Time) {
	later := func(at time.Time) {
		if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
			wake = at
		}
	}
	begin := func(op operation, pod string) {
		op.key = opKey{op.volume, pod}
		ok, retry := w.ops.begin(op.key, op.name, op.uid, now)
		if ok {
			start = append(start, op)
		} else {
			later(retry)
		}
	}
	ready := w.populated
	for _, v := range w.actual {
		ready = ready && v.attachability != attachUncertain
	}

	if ready {
		for _, n := range sortedKeys(w.actual) {
			v := w.actual[n]
			for _, uid := range sortedKeys(v.pods) {
				p := v.pods[uid]
				if p.state == notMounted {
					continue
				}
				if d := w.desired[n]; d != nil {
					if _, wanted := d.pods[uid]; wanted {
						continue
					}
				}
				begin(operation{name: opUnmount, volume: n, uid: uid, innerName: p.innerName, spec: p.spec}, uid)
			}
		}
	}

	for _, n := range sortedKeys(w.desired) {
		d := w.desired[n]
		for _, uid := range sortedKeys(d.pods) {
			if w.ops.running(opKey{volume: n}) {
				break
			}
			dp := d.pods[uid]
			v := w.actual[n]
			op := operation{volume: n, uid: uid, pod: dp.pod, innerName: dp.spec.name(), spec: dp.spec, attachable: d.attachable, size: d.size}
			switch {
			case v == nil:
				// reconciler_common.go, waitForVolumeAttach; operation_generator.go:1409: no
				// operation, and so no back-off, before the API server knows of the use and
				// the Node object says attached.
				if d.attachable && (!d.reportedInUse || !w.attachedOnNode[n]) {
					continue
				}
				op.name = opVerifyAttached
			case w.podState(n, uid) != mounted:
				op.name = opMount
			case v.pods[uid].remount:
				op.name, op.remount = opMount, true
			case dp.spec.readOnly:
				continue // not through this pod
			case !v.noInUseExpand && !v.size.IsZero() && d.size.Cmp(v.size) > 0 && !w.claimUnchanged(v):
				op.name, op.oldSize = opExpand, v.size
			default:
				continue
			}
			begin(op, "")
		}
	}

	if ready {
		for _, n := range sortedKeys(w.actual) {
			v := w.actual[n]
			if w.desired[n] != nil || len(v.pods) > 0 || w.ops.running(opKey{volume: n}) {
				continue
			}
			if v.device == notMounted {
				delete(w.actual, n) // the attach/detach controller detaches
				delete(w.claims, v.claim)
				continue
			}
			begin(operation{name: opUnmountDevice, volume: n, spec: v.spec}, "")
		}
	}
	return start, wake
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
