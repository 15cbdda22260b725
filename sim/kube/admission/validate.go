package admission

import (
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	volumehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/csilab/csilab/sim/kube/store"
)

// Validate says what is wrong with an object, after defaults; old is the
// stored one on an update, nil on a create. The error is a StatusError: Invalid
// with all fields that are wrong, or Forbidden.
func Validate(c *store.Client, o, old store.Object) error {
	errs := validation.ValidateObjectMetaAccessor(o, store.Namespaced(o), validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	spec := field.NewPath("spec")
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		errs = append(errs, validateClaim(&o.Spec, spec)...)
		if old != nil {
			if err := validateClaimUpdate(c, o, old.(*corev1.PersistentVolumeClaim), &errs); err != nil && len(errs) == 0 {
				return err
			}
		}
	case *corev1.PersistentVolume:
		errs = append(errs, validateVolume(&o.Spec, spec)...)
		if old != nil {
			was := old.(*corev1.PersistentVolume)
			if !equality.Semantic.DeepEqual(o.Spec.PersistentVolumeSource, was.Spec.PersistentVolumeSource) {
				errs = append(errs, field.Forbidden(spec.Child("persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
			}
			errs = append(errs, validation.ValidateImmutableField(o.Spec.VolumeMode, was.Spec.VolumeMode, field.NewPath("volumeMode"))...)
		}
	case *storagev1.StorageClass:
		errs = append(errs, validateClass(o)...)
		if old != nil {
			was := old.(*storagev1.StorageClass)
			for f, pair := range map[string][2]any{
				"parameters": {o.Parameters, was.Parameters}, "provisioner": {o.Provisioner, was.Provisioner},
				"reclaimPolicy": {o.ReclaimPolicy, was.ReclaimPolicy}, "volumeBindingMode": {o.VolumeBindingMode, was.VolumeBindingMode}} {
				errs = append(errs, validation.ValidateImmutableField(pair[0], pair[1], field.NewPath(f))...)
			}
		}
	case *corev1.Pod:
		errs = append(errs, validatePod(o.Name, &o.Spec, spec)...)
		if old != nil && !equality.Semantic.DeepEqual(o.Spec, old.(*corev1.Pod).Spec) {
			errs = append(errs, field.Forbidden(spec, "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"))
		}
	case *snapshotv1.VolumeSnapshot:
		errs = append(errs, validateSnapshot(&o.Spec, spec)...)
		if old != nil && !equality.Semantic.DeepEqual(o.Spec.Source, old.(*snapshotv1.VolumeSnapshot).Spec.Source) {
			errs = append(errs, field.Invalid(spec.Child("source"), "object", "source is immutable"))
		}
	case *snapshotv1.VolumeSnapshotClass:
		errs = append(errs, validateDeletionPolicy(o.DeletionPolicy, field.NewPath("deletionPolicy"))...)
		if o.Driver == "" {
			errs = append(errs, field.Required(field.NewPath("driver"), ""))
		}
	case *snapshotv1.VolumeSnapshotContent:
		errs = append(errs, validateContent(&o.Spec, spec)...)
	}
	if len(errs) == 0 {
		return nil
	}
	slices.SortStableFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Field, b.Field) })
	return apierrors.NewInvalid(store.GroupKind(o), o.GetName(), errs)
}

var accessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce, corev1.ReadWriteOncePod}

// validateAccessModes is the part that claims and volumes share
// (pkg/apis/core/validation/validation.go).
func validateAccessModes(modes []corev1.PersistentVolumeAccessMode, p *field.Path, empty string) (errs field.ErrorList) {
	if len(modes) == 0 {
		errs = append(errs, field.Required(p, empty))
	}
	for _, m := range modes {
		if !slices.Contains(accessModes, m) {
			errs = append(errs, field.NotSupported(p, m, accessModes))
		}
	}
	if slices.Contains(modes, corev1.ReadWriteOncePod) && len(modes) > 1 {
		errs = append(errs, field.Forbidden(p, "may not use ReadWriteOncePod with other access modes"))
	}
	return errs
}

var volumeModes = []corev1.PersistentVolumeMode{corev1.PersistentVolumeBlock, corev1.PersistentVolumeFilesystem}

func validateVolumeMode(m *corev1.PersistentVolumeMode, p *field.Path) field.ErrorList {
	if m != nil && !slices.Contains(volumeModes, *m) {
		return field.ErrorList{field.NotSupported(p, *m, volumeModes)}
	}
	return nil
}

// validateSize is ValidatePositiveQuantityValue and, for bytes,
// ValidateResourceQuantityValue.
func validateSize(q resource.Quantity, p *field.Path) field.ErrorList {
	if q.Sign() <= 0 {
		return field.ErrorList{field.Invalid(p, q.String(), "must be greater than zero")}
	}
	return nil
}

func validateClassName(n string, p *field.Path) (errs field.ErrorList) {
	for _, msg := range utilvalidation.IsDNS1123Subdomain(n) {
		errs = append(errs, field.Invalid(p, n, msg))
	}
	return errs
}

// validateClaim is ValidatePersistentVolumeClaimSpec.
func validateClaim(s *corev1.PersistentVolumeClaimSpec, p *field.Path) field.ErrorList {
	errs := validateAccessModes(s.AccessModes, p.Child("accessModes"), "at least 1 access mode is required")
	size := p.Child("resources").Key(string(corev1.ResourceStorage))
	if q, ok := s.Resources.Requests[corev1.ResourceStorage]; ok {
		errs = append(errs, validateSize(q, size)...)
	} else {
		errs = append(errs, field.Required(size, ""))
	}
	if s.StorageClassName != nil && *s.StorageClassName != "" {
		errs = append(errs, validateClassName(*s.StorageClassName, p.Child("storageClassName"))...)
	}
	errs = append(errs, validateVolumeMode(s.VolumeMode, p.Child("volumeMode"))...)
	if d := s.DataSource; d != nil {
		dp := p.Child("dataSource")
		if d.Name == "" {
			errs = append(errs, field.Required(dp.Child("name"), ""))
		}
		if d.Kind == "" {
			errs = append(errs, field.Required(dp.Child("kind"), ""))
		}
		if (d.APIGroup == nil || *d.APIGroup == "") && d.Kind != "PersistentVolumeClaim" {
			errs = append(errs, field.Invalid(dp, d.Kind, "must be 'PersistentVolumeClaim' when referencing the default apiGroup"))
		}
		if r := s.DataSourceRef; r != nil && r.Namespace == nil && (r.Name != d.Name || r.Kind != d.Kind) {
			errs = append(errs, field.Invalid(p, "dataSource", "must match dataSourceRef"))
		}
	}
	return errs
}

// validateClaimUpdate is ValidatePersistentVolumeClaimUpdate (its error goes to
// errs) and the admission plugin PersistentVolumeClaimResize (its error is returned).
func validateClaimUpdate(c *store.Client, o, was *corev1.PersistentVolumeClaim, errs *field.ErrorList) error {
	a, b := o.Spec.DeepCopy(), was.Spec.DeepCopy()
	if b.VolumeName == "" {
		b.VolumeName = a.VolumeName
	}
	if b.StorageClassName == nil {
		a.StorageClassName = nil
	}
	size, oldSize := o.Spec.Resources.Requests[corev1.ResourceStorage], was.Spec.Resources.Requests[corev1.ResourceStorage]
	bound := was.Status.Phase == corev1.ClaimBound
	if bound {
		if a.Resources.Requests != nil {
			a.Resources.Requests[corev1.ResourceStorage] = oldSize
		}
		a.VolumeAttributesClassName = b.VolumeAttributesClassName
	}
	if !equality.Semantic.DeepEqual(a, b) {
		*errs = append(*errs, field.Forbidden(field.NewPath("spec"), "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	if size.Cmp(oldSize) < 0 && size.Cmp(was.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		*errs = append(*errs, field.Forbidden(field.NewPath("spec", "resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	if size.Cmp(oldSize) <= 0 {
		return nil
	}
	// plugin/pkg/admission/storage/persistentvolume/resize/admission.go
	forbidden := func(msg string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, o.Name, fmt.Errorf("%s", msg))
	}
	if !bound {
		*errs = nil // admission comes before validation, and the size of an unbound claim is immutable anyway
		return forbidden("Only bound persistent volume claims can be expanded")
	}
	name := volumehelpers.GetPersistentVolumeClaimClass(was)
	cls, err := store.Get[storagev1.StorageClass](c, "", name)
	if err != nil || name == "" || cls.AllowVolumeExpansion == nil || !*cls.AllowVolumeExpansion {
		return forbidden("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
	}
	return nil
}

// validateVolume is ValidatePersistentVolumeSpec.
func validateVolume(s *corev1.PersistentVolumeSpec, p *field.Path) field.ErrorList {
	errs := validateAccessModes(s.AccessModes, p.Child("accessModes"), "")
	if len(s.Capacity) == 0 {
		errs = append(errs, field.Required(p.Child("capacity"), ""))
	} else if q, ok := s.Capacity[corev1.ResourceStorage]; !ok || len(s.Capacity) > 1 {
		errs = append(errs, field.NotSupported(p.Child("capacity"), fmt.Sprint(s.Capacity), []string{string(corev1.ResourceStorage)}))
	} else {
		errs = append(errs, validateSize(q, p.Child("capacity").Key(string(corev1.ResourceStorage)))...)
	}
	policies := []corev1.PersistentVolumeReclaimPolicy{corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRecycle, corev1.PersistentVolumeReclaimRetain}
	if s.PersistentVolumeReclaimPolicy != "" && !slices.Contains(policies, s.PersistentVolumeReclaimPolicy) {
		errs = append(errs, field.NotSupported(p.Child("persistentVolumeReclaimPolicy"), s.PersistentVolumeReclaimPolicy, policies))
	}
	if equality.Semantic.DeepEqual(s.PersistentVolumeSource, corev1.PersistentVolumeSource{}) {
		errs = append(errs, field.Required(p, "must specify a volume type"))
	}
	if s.CSI != nil {
		if s.CSI.Driver == "" {
			errs = append(errs, field.Required(p.Child("csi", "driver"), ""))
		}
		if s.CSI.VolumeHandle == "" {
			errs = append(errs, field.Required(p.Child("csi", "volumeHandle"), ""))
		}
	}
	if s.StorageClassName != "" {
		errs = append(errs, validateClassName(s.StorageClassName, p.Child("storageClassName"))...)
	}
	return append(errs, validateVolumeMode(s.VolumeMode, p.Child("volumeMode"))...)
}

// validateClass is ValidateStorageClass (pkg/apis/storage/validation/validation.go).
func validateClass(c *storagev1.StorageClass) (errs field.ErrorList) {
	if c.Provisioner == "" {
		errs = append(errs, field.Required(field.NewPath("provisioner"), ""))
	} else {
		for _, msg := range utilvalidation.IsQualifiedName(strings.ToLower(c.Provisioner)) {
			errs = append(errs, field.Invalid(field.NewPath("provisioner"), c.Provisioner, msg))
		}
	}
	for k := range c.Parameters {
		if k == "" {
			errs = append(errs, field.Invalid(field.NewPath("parameters"), k, "field can not be empty."))
		}
	}
	policies := []string{string(corev1.PersistentVolumeReclaimDelete), string(corev1.PersistentVolumeReclaimRetain)}
	if r := c.ReclaimPolicy; r != nil && *r != "" && !slices.Contains(policies, string(*r)) {
		errs = append(errs, field.NotSupported(field.NewPath("reclaimPolicy"), *r, policies))
	}
	modes := []string{string(storagev1.VolumeBindingImmediate), string(storagev1.VolumeBindingWaitForFirstConsumer)}
	if m := c.VolumeBindingMode; m == nil {
		errs = append(errs, field.Required(field.NewPath("volumeBindingMode"), ""))
	} else if !slices.Contains(modes, string(*m)) {
		errs = append(errs, field.NotSupported(field.NewPath("volumeBindingMode"), *m, modes))
	}
	for i, t := range c.AllowedTopologies {
		p := field.NewPath("allowedTopologies").Index(i).Child("matchLabelExpressions")
		if len(t.MatchLabelExpressions) == 0 {
			errs = append(errs, field.Required(p, ""))
		}
		for j, e := range t.MatchLabelExpressions {
			if e.Key == "" {
				errs = append(errs, field.Required(p.Index(j).Child("key"), ""))
			}
			if len(e.Values) == 0 {
				errs = append(errs, field.Required(p.Index(j).Child("values"), ""))
			}
		}
	}
	return errs
}

// validatePod is the part of ValidatePodSpec that concerns volumes, and what
// no pod can lack.
func validatePod(pod string, s *corev1.PodSpec, p *field.Path) (errs field.ErrorList) {
	volumes := map[string]corev1.Volume{}
	for i, v := range s.Volumes {
		vp := p.Child("volumes").Index(i)
		for _, msg := range utilvalidation.IsDNS1123Label(v.Name) {
			errs = append(errs, field.Invalid(vp.Child("name"), v.Name, msg))
		}
		if _, ok := volumes[v.Name]; ok {
			errs = append(errs, field.Duplicate(vp.Child("name"), v.Name))
		}
		volumes[v.Name] = v
		errs = append(errs, oneSource(v.VolumeSource, vp)...)
		if c := v.PersistentVolumeClaim; c != nil && c.ClaimName == "" {
			errs = append(errs, field.Required(vp.Child("persistentVolumeClaim", "claimName"), ""))
		}
		if v.Ephemeral != nil {
			errs = append(errs, validateEphemeral(pod, v, vp)...)
		}
	}
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(p.Child("containers"), ""))
	}
	names := map[string]bool{}
	for i, c := range slices.Concat(s.InitContainers, s.Containers) {
		cp := p.Child("initContainers").Index(i)
		if i >= len(s.InitContainers) {
			cp = p.Child("containers").Index(i - len(s.InitContainers))
		}
		if c.Name == "" {
			errs = append(errs, field.Required(cp.Child("name"), ""))
		} else if names[c.Name] {
			errs = append(errs, field.Duplicate(cp.Child("name"), c.Name))
		}
		names[c.Name] = true
		if c.Image == "" {
			errs = append(errs, field.Required(cp.Child("image"), ""))
		}
		paths := map[string]bool{}
		for j, m := range c.VolumeMounts {
			mp := cp.Child("volumeMounts").Index(j)
			if _, ok := volumes[m.Name]; !ok {
				errs = append(errs, field.NotFound(mp.Child("name"), m.Name))
			}
			switch {
			case m.MountPath == "":
				errs = append(errs, field.Required(mp.Child("mountPath"), ""))
			case paths[m.MountPath]:
				errs = append(errs, field.Invalid(mp.Child("mountPath"), m.MountPath, "must be unique"))
			}
			paths[m.MountPath] = true
			// validateLocalDescendingPath of pkg/apis/core/validation, v1.37.2.
			switch {
			case path.IsAbs(m.SubPath):
				errs = append(errs, field.Invalid(mp.Child("subPath"), m.SubPath, "must be a relative path"))
			case slices.Contains(strings.Split(m.SubPath, "/"), ".."):
				errs = append(errs, field.Invalid(mp.Child("subPath"), m.SubPath, "must not contain '..'"))
			}
		}
		for j, d := range c.VolumeDevices {
			dp := cp.Child("volumeDevices").Index(j)
			v, ok := volumes[d.Name]
			switch {
			case !ok:
				errs = append(errs, field.NotFound(dp.Child("name"), d.Name))
			case v.PersistentVolumeClaim == nil && v.Ephemeral == nil:
				errs = append(errs, field.Invalid(dp.Child("name"), d.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"))
			}
			if d.DevicePath == "" {
				errs = append(errs, field.Required(dp.Child("devicePath"), ""))
			}
			if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == d.Name }) {
				errs = append(errs, field.Invalid(dp.Child("name"), d.Name, "must not already exist in volumeMounts"))
			}
		}
	}
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		errs = append(errs, field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than or equal to 0"))
	}
	return errs
}

// oneSource refuses a second source of a volume (validateVolumeSource).
func oneSource(v corev1.VolumeSource, p *field.Path) (errs field.ErrorList) {
	sources := reflect.ValueOf(v)
	some := false
	for i := range sources.NumField() {
		if sources.Field(i).IsNil() {
			continue
		}
		if some {
			name, _, _ := strings.Cut(sources.Type().Field(i).Tag.Get("json"), ",")
			errs = append(errs, field.Forbidden(p.Child(name), "may not specify more than 1 volume type"))
		}
		some = true
	}
	return errs
}

// validateEphemeral is validateEphemeralVolumeSource, with what validateVolumeSource
// says of the claim's name.
func validateEphemeral(pod string, v corev1.Volume, p *field.Path) (errs field.ErrorList) {
	tp := p.Child("ephemeral", "volumeClaimTemplate")
	t := v.Ephemeral.VolumeClaimTemplate
	if t == nil {
		return field.ErrorList{field.Required(tp, "")}
	}
	errs = append(errs, validation.ValidateAnnotations(t.Annotations, tp.Child("metadata", "annotations"))...)
	errs = append(errs, metav1validation.ValidateLabels(t.Labels, tp.Child("metadata", "labels"))...)
	meta := reflect.ValueOf(t.ObjectMeta)
	for i := range meta.NumField() {
		if name := meta.Type().Field(i).Name; name != "Labels" && name != "Annotations" && !meta.Field(i).IsZero() {
			errs = append(errs, field.Forbidden(tp.Child("metadata", strings.ToLower(name[:1])+name[1:]), "cannot be set"))
		}
	}
	errs = append(errs, validateClaim(&t.Spec, tp.Child("spec"))...)
	if pod != "" && v.Name != "" {
		claim := pod + "-" + v.Name
		for _, msg := range validation.NameIsDNSSubdomain(claim, false) {
			errs = append(errs, field.Invalid(p.Child("name"), v.Name, fmt.Sprintf("PVC name %q: %v", claim, msg)))
		}
	}
	return errs
}

// validateSnapshot is the schema of the CRD (external-snapshotter v8.7.0
// client/config/crd/snapshot.storage.k8s.io_volumesnapshots.yaml).
func validateSnapshot(s *snapshotv1.VolumeSnapshotSpec, p *field.Path) (errs field.ErrorList) {
	if (s.Source.PersistentVolumeClaimName == nil) == (s.Source.VolumeSnapshotContentName == nil) {
		errs = append(errs, field.Invalid(p.Child("source"), "object", "exactly one of volumeSnapshotContentName and persistentVolumeClaimName must be set"))
	}
	if s.VolumeSnapshotClassName != nil && *s.VolumeSnapshotClassName == "" {
		errs = append(errs, field.Invalid(p.Child("volumeSnapshotClassName"), "string", "volumeSnapshotClassName must not be the empty string when set"))
	}
	return errs
}

func validateDeletionPolicy(d snapshotv1.DeletionPolicy, p *field.Path) field.ErrorList {
	allowed := []snapshotv1.DeletionPolicy{snapshotv1.VolumeSnapshotContentDelete, snapshotv1.VolumeSnapshotContentRetain}
	switch {
	case d == "":
		return field.ErrorList{field.Required(p, "")}
	case !slices.Contains(allowed, d):
		return field.ErrorList{field.NotSupported(p, d, allowed)}
	}
	return nil
}

func validateContent(s *snapshotv1.VolumeSnapshotContentSpec, p *field.Path) field.ErrorList {
	errs := validateDeletionPolicy(s.DeletionPolicy, p.Child("deletionPolicy"))
	if s.Driver == "" {
		errs = append(errs, field.Required(p.Child("driver"), ""))
	}
	if (s.Source.VolumeHandle == nil) == (s.Source.SnapshotHandle == nil) {
		errs = append(errs, field.Invalid(p.Child("source"), "object", "exactly one of volumeHandle and snapshotHandle must be set"))
	}
	if s.VolumeSnapshotRef.Name == "" || s.VolumeSnapshotRef.Namespace == "" {
		errs = append(errs, field.Invalid(p.Child("volumeSnapshotRef"), "object", "both spec.volumeSnapshotRef.name and spec.volumeSnapshotRef.namespace must be set"))
	}
	return errs
}
