package scenarios

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "published-by-an-older-version",
		Text:      "a volume was published by an older driver: the node's host has another name on the array and nothing that tells whose it is, and the protocol is spelled in capitals; the new one unpublishes it, publishes it again, and refuses words that no version knew",
		Labels:    []string{"upgrade", "detach", "attach"},
		Incidents: []string{"H38 hpe-storage/csi-driver release notes v3.0.1 (CON-4186, CON-4216), v3.1.0 (CON-4431, CON-4439, CON-4448)"},
		Backends:  onArray,
		Flow:      olderVersion,
		Mutation:  "a driver that takes protocol names in small letters only",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "protocol unknown", Hop: ledger.CSI, Op: "ControllerPublishVolume", Do: fault.Func("compare", func(_ context.Context, c fault.Call) error {
				if strings.Contains(c.Request, `"accessProtocol":"`+strings.ToUpper(l.Options().Protocol)) {
					return errUnexpected
				}
				return nil
			})})
		},
	})
}

func olderVersion(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	old, next := claim("old", "shouted", "256Mi"), claim("next", "shouted", "256Mi")
	class := func(name string, more map[string]string) *storagev1.StorageClass {
		p := map[string]string{"csi.storage.k8s.io/fstype": "ext4", "accessProtocol": strings.ToUpper(l.Options().Protocol)}
		for k, v := range more {
			p[k] = v
		}
		return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: l.DriverName(), Parameters: l.Parameters(p)}
	}
	refused := func(parameter, value string) error {
		name := strings.ToLower(parameter)
		c := claim(name, name, "256Mi")
		return steps(
			func() error { return l.Create(ctx, class(name, map[string]string{parameter: value}), c) },
			func() error { return l.HasEvent(ctx, c, "ProvisioningFailed", "InvalidArgument") },
			func() error { return noteEvent(l, parameter, c, "ProvisioningFailed") },
			func() error { return l.Delete(ctx, c) },
		)
	}
	restart := func() error {
		n := l.Starts("csp")
		l.Crash("csp")
		return l.Restarted(ctx, "csp", n)
	}
	return steps(
		func() error { return l.Create(ctx, class("shouted", nil), old, next) },
		func() error { _, err := l.Bound(ctx, "old"); return err },
		func() error { _, err := l.Bound(ctx, "next"); return err },
		// The older driver kept the word as it was.
		func() error {
			_, err := store.Modify(ctx, l.Client(), "", l.PVName("old"), func(pv *corev1.PersistentVolume) error {
				pv.Spec.CSI.VolumeAttributes["accessProtocol"] = strings.ToUpper(l.Options().Protocol)
				return nil
			})
			return err
		},
		func() error { return l.Create(ctx, pod("app", a, old)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/old/a", "of the older version") },
		// As it named hosts.
		func() error { return l.RenameArrayHost(a, a, true) },
		restart,
		func() error { return l.Expect(ctx, "app", "/old/a", "of the older version") },
		func() error { return l.Create(ctx, pod("second", a, next)) },
		func() error { _, err := l.Running(ctx, "second"); return err },
		func() error {
			if hs := l.SAN().Arrays()[0].Hosts(); len(hs) != 1 {
				return fmt.Errorf("the array has %d hosts for %s: %w", len(hs), a, errUnexpected)
			}
			return nil
		},
		func() error { return l.DeletePod(ctx, "second") },
		func() error { return l.Detached(ctx, l.PVName("next")) },
		// Once more, with nothing known of the host when it is to be unpublished.
		func() error { return l.RenameArrayHost(a, "by-another-name", true) },
		restart,
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("old")) },
		func() error {
			if left, err := exportsLeft(l, "old"); err != nil || left != "" {
				return fmt.Errorf("unpublished, and exported to %q (%v): %w", left, err, errUnexpected)
			}
			return nil
		},
		func() error { return l.Create(ctx, pod("app", b, old)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/old/a", "of the older version") },
		func() error { return l.Check(ctx) },
		func() error { return refused("accessProtocol", "carrier-pigeon") },
		func() error { return refused("replicationPolicy", "sometimes") },
		func() error { return refused("targetScope", "galaxy") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "old") },
		func() error { return l.DeletePVC(ctx, "next") },
		func() error { return l.Empty(ctx) },
	)
}
