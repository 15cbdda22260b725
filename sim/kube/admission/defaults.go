package admission

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/csilab/csilab/sim/kube/class"
	"github.com/csilab/csilab/sim/kube/protection"
	"github.com/csilab/csilab/sim/kube/scheduler"
	"github.com/csilab/csilab/sim/kube/store"
)

// Default fills in what the API server does on a create: the defaults of the
// API (k8s v1.37.2 pkg/apis/core/v1/defaults.go, pkg/apis/storage/v1/defaults.go)
// and those of the admission plugins DefaultStorageClass, StorageObjectInUseProtection,
// DefaultTolerationSeconds and TaintNodesByCondition. The default class of a
// VolumeSnapshot is the snapshot controller's part.
func Default(c *store.Client, o store.Object) {
	if store.Namespaced(o) && o.GetNamespace() == "" {
		o.SetNamespace("default")
	}
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		setDefault(&o.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		if !volumehelpers.PersistentVolumeClaimHasClass(o) {
			if d := class.Default(c); d != nil {
				o.Spec.StorageClassName = &d.Name
			}
		}
		normalizeDataSources(&o.Spec)
		addFinalizer(o, protection.ClaimFinalizer)
	case *corev1.PersistentVolume:
		setDefault(&o.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		if o.Spec.PersistentVolumeReclaimPolicy == "" {
			o.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		}
		addFinalizer(o, protection.VolumeFinalizer)
	case *storagev1.StorageClass:
		setDefault(&o.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete)
		setDefault(&o.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	case *storagev1.CSIDriver:
		setDefault(&o.Spec.AttachRequired, true)
		setDefault(&o.Spec.PodInfoOnMount, false)
		setDefault(&o.Spec.StorageCapacity, false)
		setDefault(&o.Spec.FSGroupPolicy, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy)
		if len(o.Spec.VolumeLifecycleModes) == 0 {
			o.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent}
		}
		setDefault(&o.Spec.RequiresRepublish, false)
		setDefault(&o.Spec.SELinuxMount, false)
	case *corev1.Pod:
		defaultPod(o)
	case *corev1.Secret:
		if o.Type == "" {
			o.Type = corev1.SecretTypeOpaque
		}
		for k, v := range o.StringData {
			if o.Data == nil {
				o.Data = map[string][]byte{}
			}
			o.Data[k] = []byte(v)
		}
		o.StringData = nil
	case *corev1.Node:
		// The taint keeps pods away until the node has reported ready
		// (plugin/pkg/admission/nodetaint/admission.go).
		t := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
		for i := range o.Spec.Taints {
			if o.Spec.Taints[i].MatchTaint(&t) {
				return
			}
		}
		o.Spec.Taints = append(o.Spec.Taints, t)
	}
}

func setDefault[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

func addFinalizer(o store.Object, f string) {
	for _, g := range o.GetFinalizers() {
		if g == f {
			return
		}
	}
	o.SetFinalizers(append(o.GetFinalizers(), f))
}

func defaultPod(p *corev1.Pod) {
	s := &p.Spec
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.SchedulerName == "" {
		s.SchedulerName = scheduler.Actor
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	for i := range s.Volumes {
		if e := s.Volumes[i].Ephemeral; e != nil && e.VolumeClaimTemplate != nil {
			setDefault(&e.VolumeClaimTemplate.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)
		}
	}
	setDefault(&s.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	// plugin/pkg/admission/defaulttolerationseconds/admission.go
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		has := false
		for _, t := range s.Tolerations {
			has = has || (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "")
		}
		if !has {
			s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](300)})
		}
	}
}

// normalizeDataSources makes dataSource and dataSourceRef say the same
// (pkg/api/persistentvolumeclaim/util.go NormalizeDataSources).
func normalizeDataSources(s *corev1.PersistentVolumeClaimSpec) {
	switch {
	case s.DataSource != nil && s.DataSourceRef == nil:
		s.DataSourceRef = &corev1.TypedObjectReference{APIGroup: s.DataSource.APIGroup, Kind: s.DataSource.Kind, Name: s.DataSource.Name}
	case s.DataSourceRef != nil && s.DataSource == nil && ptr.Deref(s.DataSourceRef.Namespace, "") == "":
		s.DataSource = &corev1.TypedLocalObjectReference{APIGroup: s.DataSourceRef.APIGroup, Kind: s.DataSourceRef.Kind, Name: s.DataSourceRef.Name}
	}
}
