package scenarios

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:     "file-volume-life",
		Text:     "a share of an array's file service is mounted on two nodes at once, whose pods read each other's files; it grows under them, loses a node and is given to nobody but those that have it",
		Labels:   []string{"file", "attach", "expand", "node-loss"},
		Backends: onArray,
		Flow:     fileVolumeLife,
		Mutation: "a ControllerUnpublishVolume that answers OK and leaves the share open for the lost node",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "detach lies", Hop: ledger.CSI, Op: "ControllerUnpublishVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "file-share-removed-by-hand",
		Text:     "an administrator ends the export of a share that pods have mounted: they get stale handles, a pod that starts anew shares it again, and the other one's mount works again with the same data",
		Labels:   []string{"file", "stage", "behind-the-back"},
		Backends: onArray,
		Flow:     fileShareRemoved,
		Mutation: "a NodeUnstageVolume that answers OK and leaves the stale mount",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unstage lies", Hop: ledger.CSI, Op: "NodeUnstageVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:     "file-publish-reply-lost",
		Text:     "the reply to each first publish and unpublish of a share is lost after it was done, by the provider and by the driver: it is for each of its nodes once, and for nobody in the end",
		Labels:   []string{"file", "attach", "fault"},
		Backends: onArray,
		Flow:     filePublishReplyLost,
		Mutation: "a driver that takes a publish which is asked for again for one that is in conflict",
		Mutate: func(l *sim.Lab) {
			var asked atomic.Int64
			l.Inject(fault.Rule{Name: "a conflict", Hop: ledger.CSI, Op: "ControllerPublishVolume", Match: func(fault.Call) bool { return asked.Add(1) > 1 },
				Do: fault.Error(status.Error(codes.AlreadyExists, "the volume is published for the node already"))})
		},
	})
	register(Scenario{
		Name:     "file-server-silent",
		Text:     "a node is cut off from the file service while a pod writes: the write waits, as on a hard mount, and is done when the server answers again; the other node goes on",
		Labels:   []string{"file", "fault"},
		Backends: onArray,
		Flow:     fileServerSilent,
		Mutation: "nodes whose mounts give up, as soft ones do",
		Mutate:   func(l *sim.Lab) { l.MutateSoftMounts() },
	})
}

// shared is a claim for a share that several nodes mount, of a class of its own.
func shared(l *sim.Lab, name, size string) (*storagev1.StorageClass, *corev1.PersistentVolumeClaim) {
	yes := true
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "files"}, Provisioner: l.DriverName(), AllowVolumeExpansion: &yes,
		Parameters: l.Parameters(map[string]string{"accessProtocol": "nfs"}), MountOptions: []string{"vers=4.1"}}
	return class, claim(name, "files", size, mode(corev1.ReadWriteMany))
}

// sharing provisions a share and runs a pod on each of two nodes with it.
func sharing(ctx context.Context, l *sim.Lab, size string) (c *corev1.PersistentVolumeClaim, err error) {
	if err := l.CanMountShares(); err != nil {
		return nil, sim.Skip("file volumes: %v", err)
	}
	class, c := shared(l, "files", size)
	a := l.Nodes()[0]
	return c, steps(
		func() error { return l.Create(ctx, class, c) },
		func() error { _, err := l.Bound(ctx, "files"); return err },
		func() error {
			return l.Create(ctx, tolerateNothing(pod("one", a, c)), tolerateNothing(pod("two", l.OtherNode(a), c)))
		},
		func() error { _, err := l.Running(ctx, "one"); return err },
		func() error { _, err := l.Running(ctx, "two"); return err },
	)
}

// eachOther lets two pods write and read each other's files.
func eachOther(ctx context.Context, l *sim.Lab, one, two, file string) error {
	return steps(
		func() error { return l.Write(ctx, one, "/files/"+file+"-1", "by "+one+", "+file) },
		func() error { return l.Expect(ctx, two, "/files/"+file+"-1", "by "+one+", "+file) },
		func() error { return l.Write(ctx, two, "/files/"+file+"-2", "by "+two+", "+file) },
		func() error { return l.Expect(ctx, one, "/files/"+file+"-2", "by "+two+", "+file) },
	)
}

// attachedTo checks which nodes have a VolumeAttachment that is attached.
func attachedTo(ctx context.Context, l *sim.Lab, want ...string) error {
	var got []string
	for _, a := range l.World(ctx, false).Attachments {
		if a.Attached {
			got = append(got, a.Node)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("attached to %q, expected is %q: %w", got, want, errUnexpected)
	}
	return nil
}

// letGo says whether a node's kubelet has unstaged what it found after a reboot.
func letGo(l *sim.Lab, node string) bool {
	for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "NodeUnstageVolume"), ledger.Ended(ledger.OK)) {
		if e.Node == node {
			return true
		}
	}
	return false
}

func fileVolumeLife(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, err := sharing(ctx, l, "1Gi")
	if err != nil {
		return err
	}
	const taint = "node.kubernetes.io/out-of-service"
	return steps(
		func() error { return attachedTo(ctx, l, a, b) },
		func() error { return exportedTo(ctx, l, "files", a, b) },
		func() error { return eachOther(ctx, l, "one", "two", "first") },
		func() error { return l.Create(ctx, pod("beside", a, c)) },
		func() error { _, err := l.Running(ctx, "beside"); return err },
		func() error { return eachOther(ctx, l, "beside", "two", "second") },
		func() error { return l.Check(ctx) },
		func() error { return expand(ctx, l, "two", "files", "/files/first-1", "2Gi", false) },
		func() error { return filesystemSize(l, ctx, "one", "/files", "2Gi") },
		func() error { return filesystemSize(l, ctx, "two", "/files", "2Gi") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "beside") },
		func() error { return exportedTo(ctx, l, "files", a, b) },
		// A node is lost: the share is closed to it, and stays open to the other.
		func() error { return l.PowerOff(ctx, a) },
		func() error { return l.Taint(ctx, a, taint, corev1.TaintEffectNoExecute) },
		func() error { return l.Gone(ctx, pod("one", a)) },
		func() error {
			return l.Until(ctx, "the share is for "+b+" alone", func() bool { return slices.Equal(l.ExportedTo("files"), []string{b}) })
		},
		func() error { return l.Expect(ctx, "two", "/files/first-1", "by one, first") },
		func() error { return l.Write(ctx, "two", "/files/alone", "on the node that is left") },
		func() error { return l.Check(ctx) },
		func() error { return l.PowerOn(ctx, a) },
		func() error { return l.Untaint(ctx, a, taint) },
		func() error { return l.NodesReady(ctx) },
		// A kubelet that has found a volume on its disk which was detached meanwhile
		// never says that it is in use, as the real one's code reads: a pod that comes
		// before it has let go of it would lose it to a detach too early.
		func() error { return l.Until(ctx, a+" has let go of the volume", func() bool { return letGo(l, a) }) },
		func() error { return l.Create(ctx, pod("again", a, c)) },
		func() error { _, err := l.Running(ctx, "again"); return err },
		func() error { return l.Expect(ctx, "again", "/files/alone", "on the node that is left") },
		func() error { return eachOther(ctx, l, "again", "two", "third") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "again") },
		func() error {
			return l.Until(ctx, "the share is for "+b+" alone", func() bool { return slices.Equal(l.ExportedTo("files"), []string{b}) })
		},
		func() error { return l.Expect(ctx, "two", "/files/third-1", "by again, third") },
		func() error { return removed(ctx, l, []string{"two"}, []string{"files"}) },
	)
}

func fileShareRemoved(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c, err := sharing(ctx, l, "512Mi")
	if err != nil {
		return err
	}
	stale := func(pod string) error {
		_, err := l.Read(ctx, pod, "/files/first-1", 1)
		if err == nil || !strings.Contains(err.Error(), "stale") {
			return fmt.Errorf("pod %s reads with %v, expected is a stale handle: %w", pod, err, errUnexpected)
		}
		return nil
	}
	return steps(
		func() error { return eachOther(ctx, l, "one", "two", "first") },
		func() error { return l.PullVolume(ctx, l.VolumeID("files"), a) },
		func() error { return exportedTo(ctx, l, "files") },
		func() error { return stale("one") },
		func() error { return stale("two") },
		// A mount that is stale can be taken off, and the publish for the new pod shares
		// the volume again, with the node that never left too.
		func() error { return l.DeletePod(ctx, "one") },
		func() error {
			return l.Until(ctx, "the volume is taken from "+a, func() bool { return attachedTo(ctx, l, b) == nil })
		},
		func() error { return l.Create(ctx, pod("anew", a, c)) },
		func() error { _, err := l.Running(ctx, "anew"); return err },
		func() error { return l.Expect(ctx, "anew", "/files/first-2", "by two, first") },
		func() error { return eachOther(ctx, l, "anew", "two", "second") },
		func() error { return exportedTo(ctx, l, "files", a, b) },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"anew", "two"}, []string{"files"}) },
	)
}

func filePublishReplyLost(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	on := l.Operations()
	var armed []*fault.Armed
	lose := func(hop ledger.Hop, op string) {
		armed = append(armed, l.Inject(fault.Rule{Name: "reply lost: " + op, Hop: hop, Op: op, Phase: fault.After, Nth: 1, Do: fault.Drop()}))
	}
	if err := l.CanMountShares(); err != nil {
		return sim.Skip("file volumes: %v", err)
	}
	lose(l.StorageHop(), on.Attach)
	lose(ledger.CSI, "ControllerPublishVolume")
	lose(l.StorageHop(), on.Detach)
	lose(ledger.CSI, "ControllerUnpublishVolume")
	return steps(
		func() error { _, err := sharing(ctx, l, "512Mi"); return err },
		func() error { return exportedTo(ctx, l, "files", a, b) },
		func() error { return eachOther(ctx, l, "one", "two", "first") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"one", "two"}, []string{"files"}) },
		func() error {
			for _, r := range armed {
				if r.Fired() == 0 {
					return step(errUnexpected, "a reply that was to be lost came through")
				}
			}
			return nil
		},
	)
}

func fileServerSilent(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	if _, err := sharing(ctx, l, "512Mi"); err != nil {
		return err
	}
	var heal func()
	wrote := make(chan error, 1)
	return steps(
		func() error { return eachOther(ctx, l, "one", "two", "first") },
		func() (err error) { heal, err = l.CutStorage(a); return err },
		func() error {
			go func() { wrote <- l.Write(ctx, "one", "/files/late", "waited for its server") }()
			t := time.NewTimer(2 * time.Second)
			defer t.Stop()
			select {
			case err := <-wrote:
				return fmt.Errorf("the write ended with %v while the server is silent: %w", err, errUnexpected)
			case <-t.C:
				return nil
			}
		},
		func() error { return l.Write(ctx, "two", "/files/meanwhile", "of the other node") },
		func() error { heal(); return <-wrote },
		func() error { return l.Expect(ctx, "two", "/files/late", "waited for its server") },
		func() error { return l.Expect(ctx, "one", "/files/meanwhile", "of the other node") },
		func() error { return l.Check(ctx) },
		func() error { return removed(ctx, l, []string{"one", "two"}, []string{"files"}) },
	)
}
