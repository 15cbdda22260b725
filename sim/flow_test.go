package sim_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
)

// bounded is the test's context with a bound: far above what a wait takes.
func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	class := "fast"
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: sim.Namespace},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}
}

// pod has a claim mounted at /<claim>.
func pod(name, node, pvc string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: sim.Namespace},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "app", Image: "registry.k8s.io/pause:3.10",
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/" + pvc}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: pvc}}}},
		},
	}
}

// start makes a pod with a claim, and the claim when it is not there, and
// waits until the pod runs.
func start(ctx context.Context, t testing.TB, lab *sim.Lab, name, node, pvc string) *corev1.Pod {
	t.Helper()
	if _, err := lab.PVC(pvc); err != nil {
		must(t, lab.Create(ctx, claim(pvc)))
	}
	must(t, lab.Create(ctx, pod(name, node, pvc)))
	p, err := lab.Running(ctx, name)
	must(t, err)
	return p
}

// end deletes pod and claim and requires that nothing is left.
func end(ctx context.Context, t testing.TB, lab *sim.Lab, name, pvc string) {
	t.Helper()
	must(t, lab.DeletePod(ctx, name))
	must(t, lab.DeletePVC(ctx, pvc))
	must(t, lab.Empty(ctx))
}
