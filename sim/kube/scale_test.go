package kube_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/kube/store"
)

func TestManyVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var nodes []string
		for i := range 5 {
			nodes = append(nodes, fmt.Sprintf("n%02d", i))
		}
		w := newWorld(t, nodes...)
		w.class(storagev1.VolumeBindingWaitForFirstConsumer)
		const n = 100
		for i := range n {
			w.claim(fmt.Sprint("c", i))
			w.pod(fmt.Sprint("p", i), fmt.Sprint("c", i))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		running := 0
		for _, p := range store.List[corev1.Pod](w.c, "") {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != n {
			t.Errorf("%d of %d pods run", running, n)
		}
	})
}
