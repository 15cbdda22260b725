package sim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim/invariant"
)

// The exports of a volume are those of all that are its own: of one on one array
// and of a pair, before and after a node has it.
func TestExportsOfAVolumeAreItsShareOfAll(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := Start(ctx, Options{Backend: HPE, Host: "memory", Arrays: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(l.NodesReady(ctx))
	ok(l.Apply(ctx, l.Classes()))
	ok(l.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "replicated"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true"})}))
	seen := 0
	same := func() {
		t.Helper()
		order := func(a, b invariant.Export) int {
			return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Serial, b.Serial))
		}
		all := l.backend.exports()
		for _, v := range append(l.backend.volumes(), volume{id: "nobody's"}) {
			want := slices.DeleteFunc(slices.Clone(all), func(e invariant.Export) bool { return e.VolumeID != v.id })
			got := l.backend.exportsOf(v.id)
			slices.SortFunc(want, order)
			slices.SortFunc(got, order)
			if !slices.Equal(got, want) {
				t.Errorf("exports of %s: %v, among all %v", v.id, got, want)
			}
			seen += len(got)
		}
	}
	same()
	for name, class := range map[string]string{"one": "fast", "two": "fast", "pair": "replicated"} {
		ok(l.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: %s
  resources: {requests: {storage: 256Mi}}
`, name, class)))
		_, err := l.Bound(ctx, name)
		ok(err)
		same()
		ok(l.Apply(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  containers: [{name: app, image: app, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
`, name, name)))
		_, err = l.Running(ctx, name)
		ok(err)
		same()
	}
	if seen < 6 {
		t.Errorf("%d exports were seen", seen)
	}
}
