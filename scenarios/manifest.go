package scenarios

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csilab/csilab/kubeletsim"
	"github.com/csilab/csilab/scenarios/shell"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/kube/admission"
	"github.com/csilab/csilab/sim/kube/store"
)

// File is a manifest of a user.
type File struct {
	Name string
	Data []byte
}

// Manifests are the objects of a user's files.
type Manifests struct {
	files []string
	objs  []store.Object
}

// ReadManifests reads the objects of files and tries them out. The error tells all
// that an API server would say, as admission.Problems in the order of the files, or
// that there is nothing to drive.
func ReadManifests(files []File) (Manifests, error) {
	var m Manifests
	var manifests []admission.Manifest
	var problems admission.Problems
	for _, f := range files {
		m.files = append(m.files, f.Name)
		ms, err := admission.Read(f.Name, f.Data)
		var ps admission.Problems
		if err != nil && !errors.As(err, &ps) {
			return m, err
		}
		manifests, problems = append(manifests, ms...), append(problems, ps...)
	}
	if len(manifests)+len(problems) == 0 {
		return m, fmt.Errorf("%s: no object in it", strings.Join(m.files, ", "))
	}
	for _, x := range manifests {
		switch o := x.Object.(type) {
		case *corev1.PersistentVolumeClaim, *corev1.Pod, *snapshotv1.VolumeSnapshot:
			if o.GetNamespace() == "" {
				o.SetNamespace(sim.Namespace)
			}
		}
		m.objs = append(m.objs, x.Object)
	}
	problems = append(problems, tryOut(manifests, len(problems) == 0)...)
	problems = append(problems, undriven(manifests)...)
	if len(problems) > 0 {
		problems.Sort(m.files...)
		return m, problems
	}
	if len(of[*corev1.PersistentVolumeClaim](m.objs))+len(of[*corev1.Pod](m.objs)) == 0 {
		return m, fmt.Errorf("%s: no PersistentVolumeClaim and no Pod in it, so there is nothing to drive", strings.Join(m.files, ", "))
	}
	return m, nil
}

// Scenario takes the objects through a life. A step with one of them may take as
// long as wait; 0 is 10 s with fast timers, and with real ones what
// sim.Options.Settle is.
func (m Manifests) Scenario(wait time.Duration) Scenario {
	var replay []string
	for _, name := range m.files {
		replay = append(replay, "-f "+shell.Word(name))
	}
	return Scenario{
		Name: strings.Join(m.files, "+"), Text: "the objects of " + strings.Join(m.files, " and ") + " live and die",
		NoClasses: true, Replay: strings.Join(replay, " "),
		Flow: drive{objs: m.objs, wait: wait}.flow,
	}
}

// tryOut creates copies of the objects in an API of their own: what an API
// server would refuse is refused before a lab is started. Where not all could be
// read, what is missed may be among those.
func tryOut(manifests []admission.Manifest, complete bool) (problems admission.Problems) {
	ctx, api := context.Background(), store.New(0, nil).Client("user")
	isNamespace := func(o store.Object) bool { _, ok := o.(*corev1.Namespace); return ok }
	names := []string{sim.Namespace}
	// The driver's is there, unless the user makes it.
	if !slices.ContainsFunc(manifests, func(m admission.Manifest) bool {
		return isNamespace(m.Object) && m.Object.GetName() == sim.SecretNamespace
	}) {
		names = append(names, sim.SecretNamespace)
	}
	for _, name := range names {
		if err := api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			panic(err) // the store is empty
		}
	}
	for _, first := range []bool{true, false} {
		for _, m := range manifests {
			if isNamespace(m.Object) != first {
				continue
			}
			err := admission.Create(ctx, api, m.Object.DeepCopyObject().(store.Object))
			if err != nil && (complete || !apierrors.IsNotFound(err)) {
				problems = append(problems, m.Refused(err)...)
			}
		}
	}
	return problems
}

// drive takes objects through a whole life.
type drive struct {
	objs []store.Object
	wait time.Duration // how long a step may take; 0: as the lab's timers want it
}

func of[T store.Object](objs []store.Object) (out []T) {
	for _, o := range objs {
		if t, ok := o.(T); ok {
			out = append(out, t.DeepCopyObject().(T))
		}
	}
	return out
}

func (d drive) claims() []*corev1.PersistentVolumeClaim {
	return of[*corev1.PersistentVolumeClaim](d.objs)
}
func (d drive) pods() []*corev1.Pod { return of[*corev1.Pod](d.objs) }

func claimsOf(p *corev1.Pod) (names []string) {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		}
	}
	return names
}

// patience is how long a step with the user's objects may take. With real timers
// that is what the lab's own checks wait: back-offs of sidecars and kubelets are
// of minutes there.
func patience(o sim.Options) time.Duration {
	if o.Timers == "real" {
		return o.SettleTime()
	}
	return 10 * time.Second
}

func (d drive) flow(ctx context.Context, l *sim.Lab) error {
	wait := d.wait
	if wait == 0 {
		wait = patience(l.Options())
	}
	do := func(what string, f func(context.Context) error) error {
		c, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("after %v", wait))
		defer cancel()
		if err := f(c); err != nil {
			return step(err, "%s", what)
		}
		l.Note("%s", what)
		return nil
	}
	d.objs = named(l, d.objs)
	for _, sc := range of[*storagev1.StorageClass](d.objs) {
		if err := l.CanMountShares(); sc.Parameters["accessProtocol"] == "nfs" && err != nil {
			return &sim.EnvironmentError{Err: fmt.Errorf("StorageClass %s has accessProtocol nfs: %w (--host memory)", sc.Name, err)}
		}
	}
	claims, pods, snaps := d.claims(), d.pods(), of[*snapshotv1.VolumeSnapshot](d.objs)
	// A claim that no pod uses gets one, or its volume would never be used.
	for _, c := range claims {
		if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
			return p.Namespace == c.Namespace && slices.Contains(claimsOf(p), c.Name)
		}) {
			pods = append(pods, userOf(c))
		}
	}
	r := rounds{claims, snaps}
	start := func(round int) error {
		for _, c := range claims {
			if r.ofClaim(c) != round {
				continue
			}
			if err := do("create PersistentVolumeClaim "+store.Key(c), func(ctx context.Context) error { return l.Create(ctx, c.DeepCopy()) }); err != nil {
				return err
			}
		}
		for _, p := range pods {
			if r.ofPod(p) != round {
				continue
			}
			if err := do("create Pod "+store.Key(p), func(ctx context.Context) error { return l.Create(ctx, p.DeepCopy()) }); err != nil {
				return err
			}
		}
		for _, c := range claims {
			if r.ofClaim(c) == round {
				if err := do("PersistentVolumeClaim "+store.Key(c)+" is bound", func(ctx context.Context) error { _, err := l.Bound(ctx, store.Key(c)); return err }); err != nil {
					return err
				}
			}
		}
		for _, p := range pods {
			if r.ofPod(p) == round {
				if err := do("Pod "+store.Key(p)+" runs", func(ctx context.Context) error { _, err := l.Running(ctx, store.Key(p)); return err }); err != nil {
					return err
				}
			}
		}
		return nil
	}
	write := func(round int, content string) error {
		for _, p := range pods {
			if r.ofPod(p) != round {
				continue
			}
			for _, file := range writable(p) {
				if err := do(fmt.Sprintf("Pod %s writes %s", store.Key(p), file), func(ctx context.Context) error { return l.Write(ctx, store.Key(p), file, content) }); err != nil {
					return err
				}
			}
		}
		return do("all data reads back, the invariants hold", func(ctx context.Context) error { return l.Check(ctx) })
	}

	for _, o := range d.objs {
		switch o.(type) {
		case *corev1.PersistentVolumeClaim, *corev1.Pod, *snapshotv1.VolumeSnapshot:
			continue
		}
		err := do("create "+store.KindOf(o)+" "+store.Key(o), func(ctx context.Context) error { return l.Create(ctx, o.DeepCopyObject().(store.Object)) })
		if apierrors.IsAlreadyExists(err) && labHas(o) {
			l.Note("%s %s is there already: the lab's own is used", store.KindOf(o), store.Key(o))
			continue
		}
		if err != nil {
			return err
		}
	}
	for round := range r.last() + 1 {
		if err := start(round); err != nil {
			return err
		}
		if round > 0 {
			if err := do("restored volumes hold what their snapshots held", func(ctx context.Context) error { return l.Check(ctx) }); err != nil {
				return err
			}
		}
		taken := r.snapshots(round)
		if round == 0 || len(taken) > 0 {
			if err := write(round, "csilab wrote this before the snapshots"); err != nil {
				return err
			}
		}
		for _, s := range taken {
			if err := do("VolumeSnapshot "+store.Key(s)+" is ready", func(ctx context.Context) error {
				if err := l.Create(ctx, s.DeepCopy()); err != nil {
					return err
				}
				_, err := l.SnapshotReady(ctx, store.Key(s))
				return err
			}); err != nil {
				return err
			}
		}
		if len(taken) > 0 {
			if err := write(round, "csilab wrote that after the snapshots!"); err != nil {
				return err
			}
		}
	}
	for _, s := range snaps {
		if err := d.dropSnapshot(ctx, l, s, do); err != nil {
			return err
		}
	}
	for _, c := range claims {
		if err := d.grow(ctx, l, c, pods, do); err != nil {
			return err
		}
	}
	if err := d.move(ctx, l, pods, do); err != nil {
		return err
	}
	for _, p := range pods {
		if err := do("delete Pod "+store.Key(p), func(ctx context.Context) error { return l.DeletePod(ctx, store.Key(p)) }); err != nil {
			return err
		}
	}
	for _, c := range claims {
		if err := d.dropClaim(ctx, l, store.Key(c), do); err != nil {
			return err
		}
	}
	return do("nothing is left behind", func(ctx context.Context) error { return l.Empty(ctx) })
}

// userOf is a pod for a claim, whose name may be longer than a volume's and have
// dots.
func userOf(c *corev1.PersistentVolumeClaim) *corev1.Pod {
	name := own + c.Name
	if len(name) > validation.DNS1123LabelMaxLength {
		name = fmt.Sprintf("%s%x", own, sha256.Sum256([]byte(c.Name)))[:validation.DNS1123LabelMaxLength]
	}
	p := pod(name, "", c)
	p.Namespace = c.Namespace
	p.Spec.Volumes[0].Name = "volume"
	for i := range p.Spec.Containers[0].VolumeMounts {
		p.Spec.Containers[0].VolumeMounts[i].Name = "volume"
	}
	for i := range p.Spec.Containers[0].VolumeDevices {
		p.Spec.Containers[0].VolumeDevices[i].Name = "volume"
	}
	return p
}

// named are copies of the objects that have the names that the lab's API gives to
// those with a generateName: all later steps name them.
func named(l *sim.Lab, objs []store.Object) (out []store.Object) {
	for _, o := range objs {
		o = o.DeepCopyObject().(store.Object)
		l.Client().SetName(o)
		out = append(out, o)
	}
	return out
}

// writable lists a file for each volume that a container of a pod can write.
func writable(p *corev1.Pod) (files []string) {
	readOnly := map[string]bool{} // of the claims' volumes
	for _, v := range p.Spec.Volumes {
		if store.ClaimName(p, &v) != "" {
			readOnly[v.Name] = v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
		}
	}
	seen := map[string]bool{}
	add := func(c corev1.Container, volume, file string) {
		if ro, claim := readOnly[volume]; claim && !ro && !seen[volume] && kubeletsim.ContainerAt(p, file).Name == c.Name {
			seen[volume] = true
			files = append(files, file)
		}
	}
	for _, c := range p.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if !m.ReadOnly {
				add(c, m.Name, path.Join(kubeletsim.MountPoint(m), "csilab-"+p.Name))
			}
		}
		for _, d := range c.VolumeDevices {
			add(c, d.Name, d.DevicePath)
		}
	}
	return files
}

// grow doubles a claim whose class allows it.
func (d drive) grow(ctx context.Context, l *sim.Lab, c *corev1.PersistentVolumeClaim, pods []*corev1.Pod, do doing) error {
	now, err := l.PVC(store.Key(c))
	if err != nil {
		return err
	}
	pv, err := l.Volume(now.Spec.VolumeName)
	if err != nil {
		return err
	}
	expandable := slices.ContainsFunc(of[*storagev1.StorageClass](d.objs), func(sc *storagev1.StorageClass) bool {
		return sc.Name == pv.Spec.StorageClassName && sc.AllowVolumeExpansion != nil && *sc.AllowVolumeExpansion
	})
	if !expandable {
		return nil
	}
	if err := l.CanGrowOnline(store.Key(c)); err != nil {
		l.Note("PersistentVolumeClaim %s is not grown: %v", store.Key(c), err)
		return nil
	}
	if !slices.ContainsFunc(pods, func(p *corev1.Pod) bool { return p.Namespace == c.Namespace && mounts(p, c.Name) }) {
		l.Note("PersistentVolumeClaim %s is not grown: no container mounts it, and a volume that no node has staged grows when it is next mounted", store.Key(c))
		return nil
	}
	q := now.Status.Capacity[corev1.ResourceStorage]
	size := resource.NewQuantity(2*q.Value(), resource.BinarySI).String()
	return do(fmt.Sprintf("PersistentVolumeClaim %s grows to %s", store.Key(c), size), func(ctx context.Context) error {
		if err := l.Expand(ctx, store.Key(c), size); err != nil {
			return err
		}
		if err := l.Expanded(ctx, store.Key(c), size); err != nil {
			return err
		}
		return l.BackendSize(ctx, store.Key(c), size)
	})
}

// move starts each pod that may run elsewhere on another node. Pods that are
// together on one, as those are that share a claim for one node, are so on the next.
func (d drive) move(ctx context.Context, l *sim.Lab, pods []*corev1.Pod, do doing) error {
	type there struct {
		pod  *corev1.Pod
		from string
	}
	var moving []there
	for _, p := range pods {
		now, err := l.Pod(store.Key(p))
		if err != nil {
			return err
		}
		if p.Spec.NodeName != "" || len(p.Spec.NodeSelector) > 0 || p.Spec.Affinity != nil {
			l.Note("Pod %s is not moved: it says itself where it runs", store.Key(p))
			continue
		}
		moving = append(moving, there{p, now.Spec.NodeName})
	}
	for _, m := range moving {
		if err := do("delete Pod "+store.Key(m.pod)+" on "+m.from, func(ctx context.Context) error { return l.DeletePod(ctx, store.Key(m.pod)) }); err != nil {
			return err
		}
	}
	for _, m := range moving {
		p, to := m.pod.DeepCopy(), l.OtherNode(m.from)
		p.Spec.Affinity = onNode(to)
		if err := do("Pod "+store.Key(p)+" runs on "+to, func(ctx context.Context) error {
			if err := l.Create(ctx, p); err != nil {
				return err
			}
			_, err := l.Running(ctx, store.Key(p))
			return err
		}); err != nil {
			return err
		}
	}
	if len(moving) == 0 {
		return nil
	}
	return do("all data is there after the move", func(ctx context.Context) error { return l.Check(ctx) })
}

// onNode lets the scheduler choose a certain node. A spec.nodeName would bypass it,
// and a claim that waits for its first consumer would wait for ever.
func onNode(name string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}}}}
}
