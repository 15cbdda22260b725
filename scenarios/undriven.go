package scenarios

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/csilab/csilab/sim/kube/admission"
	"github.com/csilab/csilab/sim/kube/store"
)

// own begins the names of the objects that a drive makes itself.
const own = "csilab-"

// undriven are what a cluster would take and a drive can't take through a life.
func undriven(manifests []admission.Manifest) (problems admission.Problems) {
	retained := map[string]bool{}
	for _, m := range manifests {
		if c, ok := m.Object.(*storagev1.StorageClass); ok && c.ReclaimPolicy != nil && *c.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
			retained[c.Name] = true
		}
	}
	for _, m := range manifests {
		var errs field.ErrorList
		switch o := m.Object.(type) {
		case *corev1.Pod:
			errs = append(ownName(o), undrivenVolumes(o, retained)...)
		case *corev1.PersistentVolumeClaim:
			errs = ownName(o)
			// pkg/api/persistentvolumeclaim/util.go:46 of v1.37.2; the gate is off by default.
			if r := o.Spec.DataSourceRef; r != nil && r.Namespace != nil && *r.Namespace != "" {
				errs = append(errs, field.Forbidden(field.NewPath("spec", "dataSourceRef", "namespace"), "without the feature gate CrossNamespaceVolumeDataSource, which is alpha, an API server drops the whole dataSourceRef, and the volume is empty"))
			}
		}
		if len(errs) > 0 {
			problems = append(problems, m.Refused(apierrors.NewInvalid(m.Object.GetObjectKind().GroupVersionKind().GroupKind(), m.Object.GetName(), errs))...)
		}
	}
	return problems
}

func ownName(o store.Object) field.ErrorList {
	for _, at := range []struct{ field, name string }{{"name", o.GetName()}, {"generateName", o.GetGenerateName()}} {
		if strings.HasPrefix(at.name, own) {
			return field.ErrorList{field.Invalid(field.NewPath("metadata", at.field), at.name, "csilab gives names that begin with "+own+" to the objects that it makes itself")}
		}
	}
	return nil
}

func undrivenVolumes(p *corev1.Pod, retained map[string]bool) (errs field.ErrorList) {
	for i, v := range p.Spec.Volumes {
		if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
			continue
		}
		spec, at := v.Ephemeral.VolumeClaimTemplate.Spec, field.NewPath("spec", "volumes").Index(i).Child("ephemeral", "volumeClaimTemplate", "spec")
		if c := spec.StorageClassName; c != nil && retained[*c] {
			errs = append(errs, field.Invalid(at.Child("storageClassName"), *c, "csilab drives no ephemeral volume of a class with reclaimPolicy Retain: nobody would remove the volume"))
		}
		const early = "csilab creates pods before snapshots, and drives no ephemeral volume from one or from a claim"
		if spec.DataSource != nil {
			errs = append(errs, field.Forbidden(at.Child("dataSource"), early))
		}
		if spec.DataSourceRef != nil {
			errs = append(errs, field.Forbidden(at.Child("dataSourceRef"), early))
		}
	}
	return errs
}
