package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/exec"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

func init() {
	register(Scenario{
		Name:      "unstage-failed-then-published",
		Text:      "an unstage unmounts and then fails, and a new pod comes to the same node: its volume is staged again before it is published, and a publish of what is not staged is refused",
		Labels:    []string{"K26", "incident", "stage", "publish"},
		Incidents: []string{"K26 kubernetes/kubernetes#86360"},
		Flow:      unstageFailed,
		Mutation:  "a NodePublishVolume that binds the plain directory at the staging path",
		Mutate:    bindsAnything,
	})
	register(Scenario{
		Name:          "kubelet-restarted-before-unstage",
		Text:          "kubelet dies between NodeUnpublish and NodeUnstage: it finds the volume again and unstages it before it is detached, a filesystem and a block volume",
		Labels:        []string{"K28", "incident", "stage", "crash", "kubelet", "block"},
		Incidents:     []string{"K28 kubernetes/kubernetes#121937"},
		Flow:          killedBeforeUnstage,
		Mutation:      "a kubelet that finds only volumes with a pod directory at its restart (kubernetes#121937)",
		MutateOptions: func(o *sim.Options) { o.ForgetfulKubelets = true },
	})
	register(Scenario{
		Name:      "unreadable-is-not-blank",
		Text:      "the probe of a device with data finds nothing, as when it can't read: the stage fails and is tried again, nothing is formatted, and the data is there when the device can be read",
		Labels:    []string{"K34", "incident", "stage", "mkfs"},
		Incidents: []string{"K34 kubernetes/kubernetes#142243", "K34 hetznercloud/csi-driver#1346"},
		Flow:      unreadable,
		Mutation:  "a stage that formats what blkid finds nothing on",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "formats at once", Hop: ledger.Host, Op: "exec blkid", Component: "driver@" + l.OtherNode(l.Nodes()[0]), Phase: fault.After,
				Do: fault.Func("mkfs", func(_ context.Context, c fault.Call) error {
					words := strings.Fields(c.Request)
					out, err := l.Host(c.Node).Exec().Command("mkfs.ext4", "-F", words[len(words)-1]).CombinedOutput()
					if err != nil {
						return fmt.Errorf("%w: %s", err, out)
					}
					return nil
				})})
		},
	})
	register(Scenario{
		Name:      "read-only-after-an-error",
		Text:      "the kernel makes a staged filesystem read-only after an error: a second pod is refused rather than started on it, and once all have gone the volume is staged anew and writable",
		Labels:    []string{"K38", "incident", "stage", "publish"},
		Incidents: []string{"K38 ydb-platform/nbs#2936", "K38 longhorn/longhorn#7843"},
		Flow:      turnedReadOnly,
		Mutation:  "a NodePublishVolume that does not look at what is staged",
		Mutate:    bindsAnything,
	})
	register(Scenario{
		Name:      "staging-directory-vanishes",
		Text:      "the staging directory is removed right before the driver mounts on it: the stage fails or makes it again, nothing is mounted anywhere else, and the pod starts with its data",
		Labels:    []string{"K25", "incident", "stage"},
		Incidents: []string{"K25 kubernetes/kubernetes#82426"},
		Flow:      stagingVanishes,
		Mutation:  "a stage that answers OK without a mount, and a publish that binds the directory",
		Mutate: func(l *sim.Lab) {
			var n atomic.Int64
			l.Inject(fault.Rule{Name: "stage lies", Hop: ledger.CSI, Op: "NodeStageVolume", Do: fault.Skip(), Match: func(fault.Call) bool { return n.Add(1) > 1 }})
			bindsAnything(l)
		},
	})
	register(Scenario{
		Name:      "block-unstage-cut-short",
		Text:      "the unstage of a block volume is done and reported as failed: the driver has left kubelet the path by which it asks again, and nothing stays on the node",
		Labels:    []string{"K31", "incident", "stage", "block"},
		Incidents: []string{"K31 kubernetes/kubernetes#129825"},
		Flow:      blockUnstageCutShort,
		Mutation:  "an unstage that removes its path first and then fails",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "the path goes first", Hop: ledger.CSI, Op: "NodeUnstageVolume", Nth: 1,
				Do: fault.Func("remove the path", func(_ context.Context, c fault.Call) error {
					if err := l.Host(c.Node).Remove(requestField(c.Request, "staging_target_path")); err != nil {
						return err
					}
					return status.Error(codes.Internal, "the device is busy")
				})})
		},
	})
	register(Scenario{
		Name:      "unstage-of-nothing",
		Text:      "an unstage is asked for where there is nothing to unstage: no path, a plain directory, one already unstaged, another volume's path; it is OK where nothing of the volume is left, and touches nobody else's",
		Labels:    []string{"K32", "incident", "stage", "idempotent"},
		Incidents: []string{"K32 NetApp/trident#443", "K32 kubernetes-sigs/aws-ebs-csi-driver#175"},
		Flow:      unstageOfNothing,
		Mutation:  "a NodeUnstageVolume that wants its path to be there",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "wants a path", Hop: ledger.CSI, Op: "NodeUnstageVolume",
				Do: fault.Func("look for the path", func(_ context.Context, c fault.Call) error {
					if _, err := l.Host(c.Node).Stat(requestField(c.Request, "staging_target_path")); err != nil {
						return status.Error(codes.NotFound, err.Error())
					}
					return nil
				})})
		},
	})
	register(Scenario{
		Name:      "failed-stage-leaves-no-mount",
		Text:      "a stage fails right after its mount, and when it grows the filesystem: after each answer nothing is mounted, for kubelet does not unstage what failed for good",
		Labels:    []string{"K40", "incident", "stage"},
		Incidents: []string{"K40 GoogleCloudPlatform/gcs-fuse-csi-driver#1576"},
		Flow:      failedStage,
		Mutation:  "a stage that leaves its mount when a later step fails",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "leaves its mount", Hop: ledger.Host, Op: "Unmount", Component: "driver@" + l.Nodes()[0], Do: fault.Skip(),
				Match: func(c fault.Call) bool {
					return strings.Contains(c.Request, "/globalmount") && l.PVName("data") != "" && staging(l)
				}})
		},
	})
}

// staging says whether a stage is under way.
func staging(l *sim.Lab) bool {
	return len(csiCalls(l, "NodeStageVolume", func(e ledger.Entry) bool { return e.Outcome == ledger.Pending })) > 0
}

// notMounted requires that nothing is mounted at a path of a node.
func notMounted(l *sim.Lab, node, path string) error {
	ms, err := l.Host(node).Mounter().List()
	if err != nil {
		return err
	}
	for _, m := range ms {
		if m.Path == path {
			return fmt.Errorf("%s is mounted at %s on %s: %w", m.Device, path, node, errUnexpected)
		}
	}
	return nil
}

func unstageFailed(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	const probe = "/var/lib/kubelet/probe"
	kubelet := l.As("kubelet@" + a)
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of the first pod") },
		func() error {
			l.Inject(fault.Rule{Name: "unmounted, then failed", Hop: ledger.CSI, Op: "NodeUnstageVolume", Phase: fault.After, Nth: 1,
				Do: fault.Func("a new pod comes", func(ctx context.Context, _ fault.Call) error {
					if err := l.Create(ctx, pod("next", a, c)); err != nil {
						return err
					}
					return status.Error(codes.Internal, "unmounted, and then something failed")
				})})
			return l.DeletePod(ctx, "app")
		},
		func() error {
			return l.Until(ctx, "the next pod is there", func() bool { _, err := l.Pod("next"); return err == nil })
		},
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Expect(ctx, "next", "/data/a", "of the first pod") },
		func() error {
			failed := csiCalls(l, "NodeUnstageVolume")[0]
			published := csiCalls(l, "NodePublishVolume", succeeded, ledger.After(failed.Seq))
			staged := csiCalls(l, "NodeStageVolume", succeeded, ledger.After(failed.Seq))
			if len(staged) == 0 || len(published) == 0 || published[0].Seq < staged[0].Seq {
				return fmt.Errorf("after the failed unstage the volume was published without a stage: %w", errUnexpected)
			}
			return nil
		},
		func() error { return l.Write(ctx, "next", "/data/b", "of the next pod") },
		func() error { return l.Check(ctx) },
		// Attached, and unstaged.
		func() error {
			return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before,
				func() error { return l.DeletePod(ctx, "next") },
				func() error {
					return steps(
						func() error {
							return refusedWith(kubelet.NodePublish(ctx, "data", a, probe), "a publish of what is not staged", codes.FailedPrecondition)
						},
						func() error { return notMounted(l, a, probe) },
					)
				})
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return startReader(ctx, l, "last", l.OtherNode(a), c, "of the first pod") },
		func() error { return l.Expect(ctx, "last", "/data/b", "of the next pod") },
		func() error { return allGone(ctx, l, []string{"last"}, []string{"data"}) },
	)
}

func killedBeforeUnstage(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	var flows []func() error
	for _, c := range []*corev1.PersistentVolumeClaim{claim("files", "fast", "256Mi"), claim("raw", "fast", "256Mi", block)} {
		var from uint64
		flows = append(flows,
			func() error { return startWriter(ctx, l, "app", a, c, "before the restart") },
			func() error {
				from = now(l)
				before := l.Starts("kubelet@" + a)
				rule := l.Inject(fault.Rule{Name: "kubelet dies before the unstage", Hop: ledger.CSI, Op: "NodeUnpublishVolume", Component: "kubelet@" + a, Phase: fault.After, Nth: 1, Do: fault.Crash("")})
				defer l.Disarm(rule)
				return steps(
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return l.Restarted(ctx, "kubelet@"+a, before) },
					func() error { return l.Detached(ctx, l.PVName(c.Name)) })
			},
			func() error { return unstagedFirst(l, from) },
			func() error { return startReader(ctx, l, "next", a, c, "before the restart") },
			func() error { return l.Check(ctx) },
			func() error { return allGone(ctx, l, []string{"next"}, []string{c.Name}) },
		)
	}
	return steps(flows...)
}

// formatted are the mkfs on a node so far.
func formatted(l *sim.Lab, node string) int {
	return len(l.Ledger.Entries(ledger.OnHop(ledger.Host), func(e ledger.Entry) bool { return e.Node == node && strings.HasPrefix(e.Op, "exec mkfs") }))
}

func unreadable(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	c := claim("data", "fast", "256Mi")
	next := pod("next", b, c)
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "not to be formatted") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error {
			// blkid exits with 2 for nothing found and for could not read alike.
			rule := l.Inject(fault.Rule{Name: "the probe reads nothing", Hop: ledger.Host, Op: "exec blkid", Component: "driver@" + b, Phase: fault.After,
				Do: fault.Error(exec.CodeExitError{Err: errors.New("exit status 2"), Code: 2})})
			defer l.Disarm(rule)
			return steps(
				func() error { return l.Create(ctx, next) },
				func() error {
					return first(ctx,
						func(ctx context.Context) error { _, err := l.Running(ctx, "next"); return err }, "a pod runs on a device that could not be read",
						func(ctx context.Context) error { return l.HasEvent(ctx, next, "FailedMount", "") })
				},
				func() error { return noteEvent(l, "while the probe reads nothing", next, "FailedMount") },
			)
		},
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Expect(ctx, "next", "/data/a", "not to be formatted") },
		func() error {
			if n := formatted(l, b); n > 0 {
				return fmt.Errorf("a device with data was formatted %d times: %w", n, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func turnedReadOnly(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	next := pod("next", a, c)
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "before the error") },
		func() error {
			out, err := l.Host(a).Exec().Command("mount", "-o", "remount,ro", l.StagingPath("data")).CombinedOutput()
			if err != nil {
				return fmt.Errorf("remount read-only: %w: %s", err, out)
			}
			return nil
		},
		func() error {
			if err := l.Write(ctx, "app", "/data/b", "after the error"); err == nil {
				return step(errUnexpected, "a pod writes to a filesystem that has turned read-only")
			}
			return nil
		},
		func() error { return l.Create(ctx, next) },
		func() error {
			return first(ctx,
				func(ctx context.Context) error { _, err := l.Running(ctx, "next"); return err }, "a pod runs on a filesystem that has turned read-only",
				func(ctx context.Context) error { return l.HasEvent(ctx, next, "FailedMount", "read-only") })
		},
		func() error { return noteEvent(l, "on the read-only filesystem", next, "FailedMount") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "next") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return startReader(ctx, l, "last", a, c, "before the error") },
		func() error { return l.Write(ctx, "last", "/data/b", "writable again") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"last"}, []string{"data"}) },
	)
}

func stagingVanishes(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	var rule *fault.Armed
	var dir string
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "written before") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error {
			dir = l.StagingPath("data")
			rule = l.Inject(fault.Rule{Name: "the directory goes", Hop: ledger.Host, Op: "Mount", Component: "driver@" + a, Nth: 1, MayNotFire: true,
				Do: fault.Func("remove it", func(context.Context, fault.Call) error { return l.Host(a).Remove(dir) })})
			return l.Create(ctx, pod("next", a, c))
		},
		func() error { _, err := l.Running(ctx, "next"); return err },
		func() error { return l.Expect(ctx, "next", "/data/a", "written before") },
		func() error {
			if rule.Fired() != 1 {
				return fmt.Errorf("the staging directory was never removed: %w", errUnexpected)
			}
			// Staging and publish mount, and no other.
			ms, err := l.Host(a).Mounter().List()
			if err != nil {
				return err
			}
			n := 0
			for _, m := range ms {
				if strings.HasPrefix(m.Path, "/var/lib/kubelet/") {
					n++
				}
			}
			if n != 2 {
				return fmt.Errorf("there are %d mounts below kubelet's directory: %v: %w", n, ms, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}

func blockUnstageCutShort(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("raw", "fast", "256Mi", block)
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "of a block volume") },
		func() error {
			l.Inject(fault.Rule{Name: "done, and reported as failed", Hop: ledger.CSI, Op: "NodeUnstageVolume", Phase: fault.After, Nth: 1,
				Do: fault.Error(status.Error(codes.Internal, "something failed at the end"))})
			return l.DeletePod(ctx, "app")
		},
		func() error { return l.Detached(ctx, l.PVName("raw")) },
		func() error {
			if len(csiCalls(l, "NodeUnstageVolume", succeeded)) == 0 {
				return fmt.Errorf("kubelet never asked again for the unstage: its path was gone: %w", errUnexpected)
			}
			if d := l.Host(a).Disks(); len(d) > 0 {
				return fmt.Errorf("disks %q are left on %s: %w", d, a, errUnexpected)
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return startReader(ctx, l, "next", a, c, "of a block volume") },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"raw"}) },
	)
}

func unstageOfNothing(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, other := claim("data", "fast", "256Mi"), claim("other", "fast", "256Mi")
	kubelet := l.As("kubelet@" + a)
	const plain = "/var/lib/kubelet/probe"
	ok := func(what, path string) func() error {
		return func() error { return step(kubelet.NodeUnstage(ctx, "data", a, path), "unstage of %s", what) }
	}
	return steps(
		func() error { return startWriter(ctx, l, "user", a, other, "of the other volume") },
		func() error { return startWriter(ctx, l, "app", a, c, "of the volume") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return ok("a path that is gone", l.StagingPath("data"))() },
		ok("a path that never was", "/var/lib/kubelet/none"),
		func() error { return l.Host(a).MkdirAll(plain, 0o750) },
		ok("a plain directory", plain),
		ok("a plain directory, again", plain),
		func() error {
			if err := l.Host(a).Remove(plain); err != nil && !errors.Is(err, syscall.ENOENT) {
				return err
			}
			return nil
		},
		// The other volume's mount is not this one's.
		func() error {
			return refusedWith(kubelet.NodeUnstage(ctx, "data", a, l.StagingPath("other")), "the unstage of another volume's path", codes.FailedPrecondition, codes.InvalidArgument, codes.Internal)
		},
		func() error { return l.Expect(ctx, "user", "/other/a", "of the other volume") },
		func() error { return l.Write(ctx, "user", "/other/b", "and still writable") },
		func() error { return l.Check(ctx) },
		// Once more while it is attached here again, and unstaged.
		func() error { return startReader(ctx, l, "app", a, c, "of the volume") },
		func() error {
			return midway(ctx, l, ledger.CSI, "ControllerUnpublishVolume", fault.Before,
				func() error { return l.DeletePod(ctx, "app") },
				ok("what was just unstaged", l.StagingPath("data")))
		},
		func() error { return l.Detached(ctx, l.PVName("data")) },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"user"}, []string{"data", "other"}) },
	)
}

func failedStage(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c := claim("data", "fast", "256Mi")
	driver := "driver@" + a
	var mu sync.Mutex
	var seen error
	failing := func(r fault.Rule) func() error {
		return func() error {
			p := pod("waits", a, c)
			r.Hop, r.Component = ledger.Host, driver
			rule := l.Inject(r)
			defer l.Disarm(rule)
			dir := l.StagingPath("data")
			look := l.Inject(fault.Rule{Name: "look at the mounts", Hop: ledger.CSI, Op: "NodeStageVolume", Phase: fault.After,
				Do: fault.Func("look", func(context.Context, fault.Call) error {
					mu.Lock()
					defer mu.Unlock()
					seen = errors.Join(seen, notMounted(l, a, dir))
					return nil
				})})
			defer l.Disarm(look)
			return steps(
				func() error { return l.Create(ctx, p) },
				func() error { return l.HasEvent(ctx, p, "FailedMount", "") },
				func() error { return noteEvent(l, r.Name, p, "FailedMount") },
				func() error { return l.DeletePod(ctx, "waits") },
				func() error { mu.Lock(); defer mu.Unlock(); return seen },
				func() error { return l.Detached(ctx, l.PVName("data")) },
			)
		}
	}
	return steps(
		func() error { return startWriter(ctx, l, "app", a, c, "written before") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("data")) },
		failing(fault.Rule{Name: "the mount is done and fails", Op: "Mount", Phase: fault.After, Do: fault.Error(syscall.EIO)}),
		failing(fault.Rule{Name: "the filesystem can't be grown", Op: "exec resize2fs", Do: fault.Error(syscall.EIO)}),
		func() error { return l.Check(ctx) },
		func() error { return startReader(ctx, l, "next", a, c, "written before") },
		func() error { return l.Check(ctx) },
		func() error { return allGone(ctx, l, []string{"next"}, []string{"data"}) },
	)
}
