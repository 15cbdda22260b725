package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/hpev1"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "duplicate-initiator",
		Text:      "two nodes have the same initiator name, as cloned machines do: the second is refused with the name of the first, and taken once the first is gone",
		Labels:    []string{"registration", "attach"},
		Incidents: []string{"H14 hpe-storage/csi-driver#502 (CON-2683)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.SameInitiator = true },
		NotReady:  true,
		Flow:      duplicateInitiator,
		Mutation:  "a registration that lets the second node in",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "no node is known", Hop: ledger.Kube, Op: "create hpenodeinfos", Do: fault.Skip()})
			l.Inject(fault.Rule{Name: "no host is known", Hop: ledger.CSP, Op: "POST /hosts", Do: fault.Skip(), MayNotFire: true})
		},
	})
	register(Scenario{
		Name:      "initiator-changed",
		Text:      "two nodes have the same initiator name until the second gets one of its own: it is taken then; later the first gets another adapter: the array's host that stands for it has the new name alone, and each node has its volume",
		Labels:    []string{"registration", "attach", "stage"},
		Incidents: []string{"H14 hpe-storage/csi-driver#502 (CON-2683)"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.SameInitiator, o.KeepHosts = true, true },
		NotReady:  true,
		Flow:      initiatorChanged,
		Mutation:  "a node that goes on telling the initiator name that it registered first",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the new name is not written", Hop: ledger.Kube, Op: "update hpenodeinfos", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "chap",
		Text:     "nodes and array authenticate each other by CHAP: a password that the array does not take is told as an event, the right one lets the pod run",
		Labels:   []string{"attach", "stage", "access"},
		Backends: onArray,
		Flow:     withCHAP,
		Mutation: "an iscsiadm that answers OK and logs in nowhere",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the login lies", Hop: ledger.Host, Op: "exec iscsiadm", Do: fault.Skip()})
		},
	})
}

// refusedFor waits until the driver has told a kubelet or sidecar something.
func refusedFor(ctx context.Context, l *sim.Lab, op, text string) error {
	return l.Until(ctx, fmt.Sprintf("%s is refused with %q", op, text), func() bool {
		for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, op)) {
			if strings.Contains(e.Error, text) {
				return true
			}
		}
		return false
	})
}

func duplicateInitiator(ctx context.Context, l *sim.Lab) error {
	first, second := "", ""
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	if l.Options().Host == "real" {
		return refusedByArray(ctx, l)
	}
	return steps(
		func() error {
			return l.Until(ctx, "a node is registered", func() bool {
				for _, n := range l.Nodes() {
					if l.Registered(n) {
						first, second = n, l.OtherNode(n)
					}
				}
				return first != ""
			})
		},
		func() error { return refusedFor(ctx, l, "NodeGetInfo", first) },
		func() error {
			if l.Registered(second) {
				return fmt.Errorf("%s is registered with the initiator of %s: %w", second, first, errUnexpected)
			}
			return nil
		},
		func() error { return l.Create(ctx, one, two, pod("app", first, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/one/a", "on the first") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		// The first machine is taken away, with what the cluster knows of it.
		func() error { return l.PowerOff(ctx, first) },
		func() error { return l.DeleteNode(ctx, first) },
		func() error {
			return l.Delete(ctx, &hpev1.HPENodeInfo{ObjectMeta: metav1.ObjectMeta{Name: first}})
		},
		func() error {
			return l.Until(ctx, second+" is registered", func() bool { return l.Registered(second) })
		},
		func() error { return l.Create(ctx, pod("app", second, one, two)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/one/a", "on the first") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "one") },
		func() error { return l.DeletePVC(ctx, "two") },
		func() error { return l.Empty(ctx) },
	)
}

// refusedByArray is the same where nodes know nothing of each other: both
// register, and the array takes an initiator for one host only.
func refusedByArray(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	other := pod("other", b, two)
	return steps(
		func() error { return l.NodesReady(ctx) },
		func() error { return l.Create(ctx, one, two, pod("app", a, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Create(ctx, other) },
		func() error { return l.HasEvent(ctx, other, "FailedAttachVolume", "") },
		func() error { return noteEvent(l, "refused by the array", other, "FailedAttachVolume") },
		func() error { return l.Write(ctx, "app", "/one/a", "on the first") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { _, err := l.Running(ctx, "other"); return err },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "other") },
		func() error { return l.DeletePVC(ctx, "one") },
		func() error { return l.DeletePVC(ctx, "two") },
		func() error { return l.Empty(ctx) },
	)
}

// rename gives a node other initiators, for which it is powered off, and waits
// until its driver has registered with them: what is attached before goes to the
// names that it had.
func rename(ctx context.Context, l *sim.Lab, node string) error {
	var from uint64
	return steps(
		func() error { return l.PowerOff(ctx, node) },
		func() error { return l.ChangeInitiators(ctx, node) },
		func() error { from = now(l); return l.PowerOn(ctx, node) },
		func() error {
			return l.Until(ctx, node+" has registered", func() bool {
				return slices.ContainsFunc(l.Ledger.Entries(ledger.OnHop(ledger.Registration, "NotifyRegistrationStatus"), ledger.After(from), ledger.About(node), ledger.Ended(ledger.OK)),
					func(e ledger.Entry) bool { return strings.Contains(e.Request, `"plugin_registered":true`) })
			})
		},
		func() error { return l.NodesReady(ctx) },
	)
}

func initiatorChanged(ctx context.Context, l *sim.Lab) error {
	first, second := l.Nodes()[0], l.Nodes()[1]
	one, two := claim("one", "fast", "256Mi"), claim("two", "fast", "256Mi")
	return steps(
		func() error {
			// Nodes that know nothing of each other register both (refusedByArray).
			if l.Options().Host == "real" {
				return l.NodesReady(ctx)
			}
			if err := l.Until(ctx, "a node is registered", func() bool { return l.Registered(first) || l.Registered(second) }); err != nil {
				return err
			}
			if l.Registered(second) {
				first, second = second, first
			}
			return refusedFor(ctx, l, "NodeGetInfo", first)
		},
		func() error { return l.Create(ctx, one, two, pod("app", first, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/one/a", "on the first") },
		// The second gets a name of its own. What the first has goes on.
		func() error { return rename(ctx, l, second) },
		func() error { return l.Create(ctx, pod("other", second, two)) },
		func() error { _, err := l.Running(ctx, "other"); return err },
		func() error { return l.Write(ctx, "other", "/two/a", "on the second") },
		func() error { return l.Expect(ctx, "app", "/one/a", "on the first") },
		func() error { return l.Check(ctx) },
		// The first gets another adapter, while the array keeps the host with the old
		// name and exports nothing to it.
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("one")) },
		func() error { return rename(ctx, l, first) },
		func() error { return l.Create(ctx, pod("app", first, one)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/one/a", "on the first") },
		func() error { return hostIs(l, first) },
		func() error { return hostIs(l, second) },
		func() error { return l.Expect(ctx, "other", "/two/a", "on the second") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"app", "other"}, []string{"one", "two"}) },
	)
}

// hostIs checks that the array's host of a node has its initiators and no other.
func hostIs(l *sim.Lab, node string) error {
	h, ok := l.ArrayHost(node)
	var has []string
	for _, n := range append(h.ISCSINames, h.FCWWNs...) {
		has = append(has, strings.ToLower(n))
	}
	slices.Sort(has)
	if want := slices.Sorted(slices.Values(l.Initiators(node))); !ok || !slices.Equal(has, want) {
		return fmt.Errorf("the array's host %q of %s has the initiators %q, the node has %q: %w", h.Name, node, has, want, errUnexpected)
	}
	return nil
}

func withCHAP(ctx context.Context, l *sim.Lab) error {
	if l.Options().Protocol != "iscsi" {
		return sim.Skip("CHAP is iSCSI's")
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: sim.Namespace, Name: "chap"},
		Data: map[string][]byte{"chapUser": []byte("initiator"), "chapPassword": []byte("short")}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "chap"}, Provisioner: l.DriverName(),
		Parameters: l.Parameters(map[string]string{"csi.storage.k8s.io/fstype": "ext4", "chapSecretName": "chap", "chapSecretNamespace": sim.Namespace,
			// A driver that is a process of its own has the secrets of its calls only.
			"csi.storage.k8s.io/node-stage-secret-name": "chap", "csi.storage.k8s.io/node-stage-secret-namespace": sim.Namespace})}
	c := claim("data", "chap", "256Mi")
	app := pod("app", l.Nodes()[0], c)
	return steps(
		func() error { return l.Create(ctx, secret, class, c, app) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { return l.HasEvent(ctx, app, "FailedAttachVolume", "12") },
		func() error { return noteEvent(l, "with a password that is too short", app, "FailedAttachVolume") },
		func() error {
			_, err := store.Modify(ctx, l.Client(), sim.Namespace, "chap", func(s *corev1.Secret) error {
				s.Data["chapPassword"] = []byte("long-enough-1")
				return nil
			})
			return err
		},
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Write(ctx, "app", "/data/a", "behind a password") },
		func() error {
			h, ok := l.ArrayHost(l.Nodes()[0])
			if !ok || h.CHAPName != "initiator" {
				return fmt.Errorf("the array's host has CHAP name %q: %w", h.CHAPName, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.Empty(ctx) },
	)
}
