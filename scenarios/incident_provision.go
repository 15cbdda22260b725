package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:          "provisioner-killed-after-create",
		Text:          "the provisioner dies between CreateVolume and its PersistentVolume: the claim gets the volume that was made; if the claim goes in that moment the volume is an orphan, as upstream, and is reported as one",
		Labels:        []string{"K43", "incident", "provision", "crash"},
		Incidents:     []string{"K43 kubernetes-csi/external-provisioner#486"},
		Flow:          provisionerKilled,
		Mutation:      "a provisioner that gives each attempt a new name, so that its next life can't find what the last has made",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:      "name-free-after-delete",
		Text:      "a stale provisioner creates a volume again under a name whose volume was deleted: it is a new one, and one only, and its own delete takes it away",
		Labels:    []string{"K44", "incident", "provision", "delete"},
		Incidents: []string{"K44 kubernetes-csi/external-provisioner#1469"},
		Flow:      nameFree,
		Mutation:  "a DeleteVolume that answers OK and leaves the volume",
		Mutate:    lies("DeleteVolume"),
	})
	register(Scenario{
		Name:          "same-name-other-size",
		Text:          "a volume is created again under its name: with the same size it is the same volume of the same size, with one that it does not fit it is refused, and of two at once one wins",
		Labels:        []string{"K48", "incident", "provision", "idempotent"},
		Incidents:     []string{"K48 kubernetes-csi/csi-test#94", "K48 IBM/ibm-block-csi-driver#474"},
		Flow:          sameName,
		Mutation:      "a driver to which each attempt is another name",
		MutateOptions: newNames,
	})
	register(Scenario{
		Name:      "restore-while-all-is-deleted",
		Text:      "a restore times out, and claim and snapshot are deleted while nobody knows what became of it: the create is asked again, then its volume is deleted, then the snapshot; nothing waits for another for ever",
		Labels:    []string{"K46", "incident", "restore", "delete"},
		Incidents: []string{"K46 kubernetes-csi/external-provisioner#1449", "K46 kubernetes-csi/external-snapshotter#747"},
		Flow:      restoreWhileDeleted,
		Mutation:  "a second attempt at the restore that is refused because the snapshot is going",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "not from what is going", Hop: ledger.CSI, Op: "CreateVolume", Match: fromASnapshot, Nth: 2,
				Do: fault.Error(status.Error(codes.InvalidArgument, "the snapshot is being deleted"))})
		},
	})
	register(Scenario{
		Name:     "same-zone-at-every-try",
		Text:     "the first tries to make a volume for a pod's zone are aborted: each further one asks for the very same, and the volume is where the pod can run",
		Labels:   []string{"K47", "incident", "provision", "topology"},
		Backends: []string{sim.VSphere}, // an array's volumes have no zone
		Options: func(o *sim.Options) {
			o.Nodes, o.Zones = 3, []string{"zone-a", "zone-b", "zone-c"}
		},
		Incidents: []string{"K47 kubernetes-csi/external-provisioner#1465"},
		Flow:      sameZone,
		Mutation:  "a provisioner that forgets the topology from the second try on",
		MutateOptions: func(o *sim.Options) {
			var n atomic.Int64
			o.AlterCSI = func(_ string, req any) any {
				r, ok := req.(*csi.CreateVolumeRequest)
				if !ok || n.Add(1) == 1 {
					return req
				}
				r = proto.CloneOf(r)
				r.AccessibilityRequirements = nil
				return r
			}
		},
	})
}

// fromASnapshot selects a CreateVolume that restores a snapshot.
func fromASnapshot(c fault.Call) bool { return strings.Contains(c.Request, `"snapshot_id"`) }

// restoring is fromASnapshot for what was called.
func restoring(e ledger.Entry) bool { return strings.Contains(e.Request, `"snapshot_id"`) }

func provisionerKilled(ctx context.Context, l *sim.Lab) error {
	const provisioner = "csi-provisioner"
	c, lost := claim("data", "fast", "256Mi"), claim("lost", "fast", "256Mi")
	orphan := ""
	return steps(
		func() error {
			l.Inject(fault.Rule{Name: "dies after CreateVolume", Hop: ledger.CSI, Op: "CreateVolume", Component: provisioner, Phase: fault.After, Nth: 1, Do: fault.Crash(provisioner)})
			return l.Create(ctx, c)
		},
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return backendVolumes(l, 1) },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },

		func() error {
			l.Inject(fault.Rule{Name: "dies, and the claim goes", Hop: ledger.CSI, Op: "CreateVolume", Component: provisioner, Phase: fault.After, Nth: 1,
				Do: fault.Func("delete the claim", func(ctx context.Context, _ fault.Call) error {
					err := l.Client().Delete(ctx, lost)
					l.Crash(provisioner)
					return errors.Join(err, fault.ErrCrashed)
				})})
			return l.Create(ctx, lost)
		},
		func() error { return l.Gone(ctx, lost) },
		func() error {
			vs := l.World(ctx, false).Volumes
			if len(vs) != 1 {
				return fmt.Errorf("the backend has %d volumes: %w", len(vs), errUnexpected)
			}
			orphan = vs[0].ID
			for _, o := range l.Orphans(ctx) {
				if strings.Contains(o, orphan) {
					l.Note("reported: %s", o)
					return nil
				}
			}
			return fmt.Errorf("volume %s belongs to nobody and is not reported: %w", orphan, errUnexpected)
		},
		// Somebody cleans up.
		func() error { return l.As("admin").DeleteVolume(ctx, orphan) },
		func() error { return l.Empty(ctx) },
	)
}

func nameFree(ctx context.Context, l *sim.Lab) error {
	stale := l.As("stale-provisioner")
	const name, size = "pvc-11111111-2222-3333-4444-555555555555", 256 << 20
	c := claim("data", "fast", "256Mi")
	create := func() (*csi.Volume, error) { return stale.CreateVolume(ctx, name, size, 0) }
	firstID := ""
	return steps(
		func() error { return l.Create(ctx, c) }, // of somebody else, all the time
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error {
			v, err := create()
			firstID = v.GetVolumeId()
			return err
		},
		func() error { return stale.DeleteVolume(ctx, firstID) },
		func() error { return backendVolumes(l, 1) },
		func() error {
			v, err := create()
			if err != nil {
				return err
			}
			if err := backendVolumes(l, 2); err != nil {
				return err
			}
			// The id of a volume on an array is its name; elsewhere the delete of the
			// first, repeated, is not one of the second.
			if l.Backend() == sim.VSphere {
				if v.GetVolumeId() == firstID {
					return fmt.Errorf("the volume that was deleted has come back as %s: %w", firstID, errUnexpected)
				}
				if err := stale.DeleteVolume(ctx, firstID); err != nil {
					return err
				}
				if err := backendVolumes(l, 2); err != nil {
					return err
				}
			}
			return stale.DeleteVolume(ctx, v.GetVolumeId())
		},
		func() error { return backendVolumes(l, 1) },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}

func sameName(ctx context.Context, l *sim.Lab) error {
	const mib = 1 << 20
	caller := l.As("second-provisioner")
	const one, two = "pvc-aaaaaaaa-0000-0000-0000-000000000001", "pvc-aaaaaaaa-0000-0000-0000-000000000002"
	var v *csi.Volume
	var ids []string
	return steps(
		func() (err error) { v, err = caller.CreateVolume(ctx, one, 300*mib+1, 0); return err },
		func() error {
			if v.GetCapacityBytes() < 300*mib+1 {
				return fmt.Errorf("the volume has %d bytes: %w", v.GetCapacityBytes(), errUnexpected)
			}
			again, err := caller.CreateVolume(ctx, one, 300*mib+1, 0)
			if err != nil {
				return step(err, "the same again")
			}
			if again.GetVolumeId() != v.GetVolumeId() || again.GetCapacityBytes() != v.GetCapacityBytes() {
				return fmt.Errorf("the same again gave %s with %d bytes after %s with %d: %w", again.GetVolumeId(), again.GetCapacityBytes(), v.GetVolumeId(), v.GetCapacityBytes(), errUnexpected)
			}
			return nil
		},
		func() error {
			_, err := caller.CreateVolume(ctx, one, 600*mib, 0)
			return refusedWith(err, "the name with a larger size", codes.AlreadyExists)
		},
		func() error {
			_, err := caller.CreateVolume(ctx, one, 257*mib, 270*mib)
			return refusedWith(err, "the name with a smaller limit", codes.AlreadyExists)
		},
		func() error { return backendVolumes(l, 1) },
		func() error {
			sizes := []int64{256 * mib, 512 * mib} // and limits: the larger would do for the smaller
			vs, errs := make([]*csi.Volume, 2), make([]error, 2)
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() {
					vs[i], errs[i] = l.As(fmt.Sprintf("provisioner-%d", i+1)).CreateVolume(ctx, two, sizes[i], sizes[i])
				})
			}
			wg.Wait()
			won := 0
			for i, err := range errs {
				if err != nil {
					if err := refusedWith(err, "the second of two creates", codes.AlreadyExists, codes.Aborted); err != nil {
						return err
					}
					continue
				}
				won++
				ids = append(ids, vs[i].GetVolumeId())
				if vs[i].GetCapacityBytes() < sizes[i] {
					return fmt.Errorf("%d bytes were asked for, %d given: %w", sizes[i], vs[i].GetCapacityBytes(), errUnexpected)
				}
			}
			if won != 1 {
				return fmt.Errorf("of two creates of one name %d were answered OK (%v): %w", won, errs, errUnexpected)
			}
			return backendVolumes(l, 2)
		},
		func() error { return caller.DeleteVolume(ctx, v.GetVolumeId()) },
		func() error { return caller.DeleteVolume(ctx, ids[0]) },
		func() error { return l.Empty(ctx) },
	)
}

func restoreWhileDeleted(ctx context.Context, l *sim.Lab) error {
	src := claim("source", "fast", "256Mi")
	restored := claim("restored", "fast", "256Mi", fromSnapshot("cut"))
	return steps(
		func() error { return startWriter(ctx, l, "app", "", src, "of the source") },
		func() error { _, err := l.TakeSnapshot(ctx, "cut", "source", "snap"); return err },
		func() error {
			// The backend works on the restore, and does not let go of its source.
			l.Inject(fault.Rule{Name: "the snapshot is being restored", Hop: ledger.CSI, Op: "DeleteSnapshot", MayNotFire: true,
				Match: func(fault.Call) bool {
					return len(csiCalls(l, "CreateVolume", succeeded, restoring)) == 0
				},
				Do: fault.Error(status.Error(codes.FailedPrecondition, "the snapshot is being restored"))})
			l.Inject(fault.Rule{Name: "the restore times out, and all is deleted", Hop: ledger.CSI, Op: "CreateVolume", Phase: fault.After, Match: fromASnapshot, Nth: 1,
				Do: fault.Func("delete claim and snapshot", func(ctx context.Context, _ fault.Call) error {
					for _, err := range []error{l.Client().Delete(ctx, restored), l.Client().Delete(ctx, snapshotOf("cut", "source"))} {
						if err != nil && !apierrors.IsNotFound(err) {
							return err
						}
					}
					return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
				})})
			return l.Create(ctx, restored)
		},
		func() error { return l.Gone(ctx, restored) },
		func() error { return l.Gone(ctx, snapshotOf("cut", "source")) },
		func() error {
			return l.Until(ctx, "only the source is left on the backend", func() bool {
				w := l.World(ctx, false)
				return len(w.Volumes) == 1 && len(w.Snapshots) == 0
			})
		},
		func() error {
			creates := len(csiCalls(l, "CreateVolume", restoring))
			if creates < 2 {
				return fmt.Errorf("the restore whose end nobody knew was asked for %d times: %w", creates, errUnexpected)
			}
			return l.Expect(ctx, "app", "/source/a", "of the source")
		},
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"source"}) },
	)
}

func sameZone(ctx context.Context, l *sim.Lab) error {
	node := l.Nodes()[1]
	c := claim("late", "late", "256Mi")
	p := pod("app", "", c)
	p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": node}
	return steps(
		func() error {
			l.Inject(fault.Rule{Name: "aborted", Hop: ledger.CSI, Op: "CreateVolume", First: 2, Do: fault.Error(status.Error(codes.Aborted, "an operation is under way"))})
			return l.Create(ctx, c, p)
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error {
			es := csiCalls(l, "CreateVolume")
			if len(es) < 3 {
				return fmt.Errorf("CreateVolume was called %d times: %w", len(es), errUnexpected)
			}
			for _, e := range es[1:] {
				if e.Request != es[0].Request {
					return fmt.Errorf("the tries differ:\n%s\n%s: %w", es[0].Request, e.Request, errUnexpected)
				}
			}
			zone, err := l.VolumeZone("late")
			if err == nil && zone != l.Zone(node) {
				err = fmt.Errorf("the volume is in %q, its pod's node in %q: %w", zone, l.Zone(node), errUnexpected)
			}
			return err
		},
		func() error {
			name := csiCalls(l, "CreateVolume")[0].Volume
			_, err := l.As("second-provisioner").CreateVolumeIn(ctx, name, 256<<20, 0, l.Zone(l.Nodes()[0]))
			return refusedWith(err, "the name in another zone", codes.AlreadyExists)
		},
		func() error { return l.Write(ctx, "app", "/late/a", "in the zone") },
		func() error { return backendVolumes(l, 1) },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"app"}, []string{"late"}) },
	)
}
