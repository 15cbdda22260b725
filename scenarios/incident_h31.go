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
		Name:      "hosts-are-kept",
		Text:      "the storage provider is told to delete no hosts: neither array of a pair loses the host of a node that has no volume any more, its sessions go on, and the next volume needs no login",
		Labels:    []string{"detach", "attach", "replication", "session"},
		Incidents: []string{"H31 hpe-storage/csi-driver release notes v2.5.0 (CON-3080), v3.0.0 (CON-3161)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays, o.KeepHosts = 2, true },
		Flow:      hostsKept,
		Mutation:  "a provider that does not know the option",
		MutateOptions: func(o *sim.Options) {
			o.KeepHosts = false
		},
	})
	register(Scenario{
		Name:      "chap-password-changed",
		Text:      "the CHAP password is changed while a volume is in use: the pod that has it goes on, and the next pods, on this node and on another, come in with the new one",
		Labels:    []string{"session", "stage", "attach"},
		Incidents: []string{"H32 hpe-storage/csi-driver release notes v1.3.0 (CON-1260), v1.4.0 (CON-1569, CON-1630), v2.5.0 (CON-3099)"},
		Backends:  onArray,
		Flow:      chapChanged,
		Mutation:  "a node that keeps the credentials it has noted",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "credentials are not noted", Hop: ledger.Host, Op: "exec iscsiadm", Do: fault.Skip(),
				Match: func(c fault.Call) bool { return strings.Contains(c.Request, "auth.password") }})
		},
	})
}

func hostsKept(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, next := claim("data", "replicated", "256Mi"), claim("next", "replicated", "256Mi")
	arrays := l.SAN().Arrays()
	in := map[string]int{}
	hosts := func() (n int) {
		for _, x := range arrays {
			n += len(x.Hosts())
		}
		return n
	}
	logins := func() (n int) {
		for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.Host, "exec iscsiadm")) {
			if strings.Contains(e.Request, "--login") {
				n++
			}
		}
		return n
	}
	had := 0
	return steps(
		func() error { return l.Create(ctx, replicated(l), c, next) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "next"); return err },
		func() error { return l.Create(ctx, pod("app", a, c)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "on both arrays") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error {
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.WSAPI, "DELETE /hosts/{name}")) {
				return fmt.Errorf("%v: no host is to be deleted: %w", e, errUnexpected)
			}
			if n := hosts(); n != 2 {
				return fmt.Errorf("the two arrays have %d hosts for %s: %w", n, a, errUnexpected)
			}
			for _, x := range arrays {
				if in[x.Name()] = l.SAN().LoggedIn(a, x.Name()); in[x.Name()] == 0 {
					return fmt.Errorf("%s is logged in at no port of %s: %w", a, x.Name(), errUnexpected)
				}
			}
			had = logins()
			return nil
		},
		func() error { return l.Create(ctx, pod("app", a, next)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/next/a", "without a login") },
		func() error {
			if n := logins(); n != had {
				return fmt.Errorf("%s logged in %d times more: %w", a, n-had, errUnexpected)
			}
			for _, x := range arrays {
				if n := l.SAN().LoggedIn(a, x.Name()); n != in[x.Name()] {
					return fmt.Errorf("%s is logged in at %d ports of %s, before at %d: %w", a, n, x.Name(), in[x.Name()], errUnexpected)
				}
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "next") },
		func() error { return l.Empty(ctx) },
		func() error {
			if n := hosts(); n != 2 {
				return fmt.Errorf("the two arrays have %d hosts for %s at the end: %w", n, a, errUnexpected)
			}
			return nil
		},
	)
}

func chapChanged(ctx context.Context, l *sim.Lab) error {
	if l.Options().Protocol != "iscsi" {
		return sim.Skip("CHAP is iSCSI's")
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: sim.Namespace, Name: "chap"},
		Data: map[string][]byte{"chapUser": []byte("initiator"), "chapPassword": []byte("the-first-one")}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "chap"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "chapSecretName": "chap", "chapSecretNamespace": sim.Namespace,
			"csi.storage.k8s.io/node-stage-secret-name": "chap", "csi.storage.k8s.io/node-stage-secret-namespace": sim.Namespace})}
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	used, here, there := claim("used", "chap", "256Mi"), claim("here", "chap", "256Mi"), claim("there", "chap", "256Mi")
	ports := 0
	return steps(
		func() error { return l.Create(ctx, secret, class, used, here, there) },
		func() error { return l.Create(ctx, pod("app", a, used)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/used/a", "with the first") },
		func() error {
			ports = l.SAN().LoggedIn(a, l.SAN().Arrays()[0].Name())
			_, err := store.Modify(ctx, l.Client(), sim.Namespace, "chap", func(s *corev1.Secret) error {
				s.Data["chapPassword"] = []byte("the-second-one")
				return nil
			})
			return err
		},
		func() error { return l.Create(ctx, pod("other", b, there)) },
		func() error { _, err := l.Running(ctx, "other"); return err },
		func() error { return l.Write(ctx, "other", "/there/a", "with the second") },
		func() error { return l.Create(ctx, pod("beside", a, here)) },
		func() error { _, err := l.Running(ctx, "beside"); return err },
		func() error { return l.Write(ctx, "beside", "/here/a", "over sessions that were there") },
		func() error {
			if n := l.SAN().LoggedIn(a, l.SAN().Arrays()[0].Name()); n != ports {
				return fmt.Errorf("%s is logged in at %d ports, before the change at %d: %w", a, n, ports, errUnexpected)
			}
			return l.Write(ctx, "app", "/used/b", "still with the first")
		},
		func() error { return l.Expect(ctx, "app", "/used/a", "with the first") },
		func() error { return l.Check(ctx) },
		// All volumes leave the node, and come back with the new password alone.
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "beside") },
		func() error { return l.Detached(ctx, l.PVName("used")) },
		func() error { return l.Detached(ctx, l.PVName("here")) },
		func() error { return l.Create(ctx, pod("app", b, used)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/used/b", "still with the first") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "other") },
		func() error { return l.DeletePVC(ctx, "used") },
		func() error { return l.DeletePVC(ctx, "here") },
		func() error { return l.DeletePVC(ctx, "there") },
		func() error { return l.Empty(ctx) },
	)
}
