package sim_test

import (
	"context"
	"testing"
	"time"

	"github.com/csilab/csilab/sim"
)

// TestProvisionOnArray: claims, snapshots, restores and growth pass driver,
// storage provider and array, and leave nothing.
func TestProvisionOnArray(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := sim.Start(ctx, sim.Options{Backend: sim.HPE, Host: "memory"})
	must(t, err)
	defer l.Close()
	must(t, l.Apply(ctx, l.Classes()))
	must(t, l.Apply(ctx, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: fast
  resources: {requests: {storage: 300Mi}}
`))
	_, err = l.Bound(ctx, "data")
	must(t, err)
	must(t, l.BackendSize(ctx, "data", "300Mi"))
	_, err = l.TakeSnapshot(ctx, "cut", "data", "snap")
	must(t, err)
	must(t, l.Apply(ctx, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: fast
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: cut}
  resources: {requests: {storage: 512Mi}}
`))
	_, err = l.Bound(ctx, "restored")
	must(t, err)
	if n := l.BackendVolumes(); n != 2 {
		t.Errorf("the array has %d volumes", n)
	}
	must(t, l.Check(ctx))
	must(t, l.DeletePVC(ctx, "restored"))
	must(t, l.DeleteSnapshot(ctx, "cut"))
	must(t, l.DeletePVC(ctx, "data"))
	must(t, l.Empty(ctx))
}
