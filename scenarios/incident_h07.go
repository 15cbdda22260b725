package scenarios

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/mount-utils"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
)

func init() {
	register(Scenario{
		Name:      "node-returns-with-stale-mounts",
		Text:      "a kubelet is down while one of its volumes moves to another node: when it is back, what is left of that volume is taken off the node, the volumes that are still attached are not touched, and the pod can come back",
		Labels:    []string{"unstage", "node-loss", "kubelet"},
		Incidents: []string{"H07 hpe-storage/csi-driver#355, #67, release notes v2.4.0 (CON-2508), v2.2.0 (CON-2643)"},
		Flow:      staleMounts,
		Mutation:  "a NodeUnstageVolume that answers OK and leaves the dead mount",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "unstage lies", Hop: ledger.CSI, Op: "NodeUnstageVolume", Do: fault.Skip()})
		},
	})
	register(Scenario{
		Name:      "foreign-lun-of-the-same-number",
		Text:      "a node has a LUN of another array that is none of Kubernetes', at the number that a volume gets: staging and unstaging the volume scans and deletes nothing of it",
		Labels:    []string{"stage", "unstage", "lun"},
		Incidents: []string{"H08 hpe-storage/csi-driver release notes v3.2.0 (CON-4742); hpe-storage/common-host-libs#223, #232"},
		Backends:  onArray,
		Options:   func(o *sim.Options) { o.Arrays = 2 },
		Flow:      foreignLUN,
		Mutation:  "a NodeUnstageVolume that deletes all disks at the LUN of its volume, whoever they are",
		Mutate: func(l *sim.Lab) {
			l.Inject(fault.Rule{Name: "all disks at the LUN go", Hop: ledger.CSI, Op: "NodeUnstageVolume", Phase: fault.After, OnlySuccess: true,
				Do: fault.Func("delete all disks", func(_ context.Context, c fault.Call) error {
					h := l.Host(c.Node)
					disks, err := h.ReadDir("/sys/block")
					if err != nil {
						return err
					}
					for _, d := range disks {
						if real, err := h.EvalSymlinks("/sys/block/" + d.Name() + "/device"); err == nil && strings.Contains(real, "/target") && strings.HasPrefix(d.Name(), "sd") {
							if err := h.WriteFile("/sys/block/"+d.Name()+"/device/delete", []byte("1"), 0o200); err != nil {
								return err
							}
						}
					}
					return nil
				})})
		},
	})
}

// clings lets a pod stay on its node whatever becomes of that.
func clings(p *corev1.Pod) *corev1.Pod {
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	return p
}

func staleMounts(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	b := l.OtherNode(a)
	moves, keeps := claim("moves", "fast", "256Mi"), claim("keeps", "fast", "256Mi")
	return steps(
		func() error { return l.Create(ctx, moves, keeps) },
		func() error { _, err := l.Bound(ctx, "moves"); return err },
		func() error { _, err := l.Bound(ctx, "keeps"); return err },
		func() error { return l.Create(ctx, pod("app", a, moves), clings(pod("anchor", a, keeps))) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { _, err := l.Running(ctx, "anchor"); return err },
		func() error { return l.Write(ctx, "app", "/moves/a", "on the first node") },
		func() error { return l.Write(ctx, "anchor", "/keeps/a", "all the time") },
		func() error { l.Forget(a); return l.StopComponent("kubelet@" + a) },
		func() error { return l.NotReady(ctx, a) },
		func() error { return l.ForceDeletePod(ctx, "app") },
		func() error { return l.Gone(ctx, pod("app", a)) },
		func() error { return l.Create(ctx, pod("app", b, moves)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/moves/a", "on the first node") },
		func() error { return l.Write(ctx, "app", "/moves/a", "on the other node") },
		func() error { return l.StartComponent("kubelet@" + a) },
		func() error { return l.NodesReady(ctx) },
		// What it has of the volume leads nowhere any more, and goes.
		func() error {
			staging, pv := fmt.Sprintf("%x", sha256.Sum256([]byte(l.VolumeID("moves")))), l.PVName("moves")
			return l.Until(ctx, "the stale mounts on "+a+" are gone", func() bool {
				ms, err := l.Host(a).Mounter().List()
				return err == nil && !slices.ContainsFunc(ms, func(m mount.MountPoint) bool {
					return strings.Contains(m.Path, staging) || strings.Contains(m.Path, pv)
				})
			})
		},
		func() error { l.Remember(a); return l.Check(ctx) },
		func() error { return l.Expect(ctx, "anchor", "/keeps/a", "all the time") },
		func() error { return l.Write(ctx, "anchor", "/keeps/b", "still") },
		func() error {
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.CSI, "NodeUnstageVolume", "NodeUnpublishVolume"), ledger.About(l.VolumeID("keeps"))) {
				return fmt.Errorf("%v: its volume is attached, and its pod runs: %w", e, errUnexpected)
			}
			return nil
		},
		func() error { return l.Expect(ctx, "app", "/moves/a", "on the other node") },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.Detached(ctx, l.PVName("moves")) },
		func() error { return l.Create(ctx, pod("app", a, moves)) },
		func() error { _, err := l.Running(ctx, "app"); return err },
		func() error { return l.Expect(ctx, "app", "/moves/a", "on the other node") },
		func() error { return l.Check(ctx) },
		func() error { return l.DeletePod(ctx, "app") },
		func() error { return l.DeletePod(ctx, "anchor") },
		func() error { return l.DeletePVC(ctx, "moves") },
		func() error { return l.DeletePVC(ctx, "keeps") },
		func() error { return l.Empty(ctx) },
	)
}

// foreign is a volume of an array that no driver knows, at a node.
type foreign struct {
	array  *san.Array
	node   host.Host
	volume array.Volume
	host   string
}

const foreignName = "backup-store"

// foreignAt makes one, exports it to a node at a LUN, and lets the node find it.
func foreignAt(l *sim.Lab, on *san.Array, node string, lun int) (*foreign, error) {
	f := &foreign{array: on, node: l.Host(node), host: "backup-" + node}
	initiator, ok := l.ArrayHost(node)
	if !ok {
		return nil, fmt.Errorf("%s has no host on the first array: %w", node, errUnexpected)
	}
	err := on.Change(func(now time.Time) ([]array.ContentOp, error) {
		spec := array.VolumeSpec{Name: foreignName, CPG: san.DefaultCPG, SizeMiB: 256, Provisioning: array.Thin}
		p, err := on.Core().PlanCreateVolume(spec)
		if err != nil {
			return nil, err
		}
		if f.volume, err = on.Core().CreateVolume(now, spec); err != nil {
			return nil, err
		}
		if _, err = on.Core().CreateHost(now, array.HostSpec{Name: f.host, FCWWNs: initiator.FCWWNs, ISCSINames: initiator.ISCSINames}); err != nil {
			return p.Ops, err
		}
		_, err = on.Core().CreateVLUN(now, array.VLUNSpec{Volume: foreignName, Host: f.host, LUN: lun})
		return p.Ops, err
	})
	if err != nil {
		return nil, err
	}
	if l.Options().Protocol == "iscsi" {
		if err := loginAt(l, on, node); err != nil {
			return f, err
		}
	}
	hosts, err := f.node.ReadDir("/sys/class/scsi_host")
	if err != nil {
		return f, err
	}
	for _, h := range hosts {
		if err := f.node.WriteFile("/sys/class/scsi_host/"+h.Name()+"/scan", []byte(fmt.Sprintf("- - %d", lun)), 0o200); err != nil {
			return f, err
		}
	}
	return f, nil
}

// loginAt logs a node in at all ports of an array, as an administrator does.
func loginAt(l *sim.Lab, on *san.Array, node string) error {
	for _, p := range on.Ports() {
		if p.Protocol != array.ISCSI {
			continue
		}
		for _, args := range [][]string{{"-m", "discovery", "-t", "st", "-p", p.Address, "-o", "new"},
			{"-m", "node", "--targetname", strings.ToLower(p.ISCSIName), "-p", p.Address, "--login"}} {
			if out, err := l.Host(node).Exec().Command("iscsiadm", args...).CombinedOutput(); err != nil {
				return step(err, "iscsiadm %s: %s", strings.Join(args, " "), out)
			}
		}
	}
	return nil
}

// device is its multipath map.
func (f *foreign) device() (string, error) {
	return f.node.EvalSymlinks("/dev/disk/by-id/dm-uuid-mpath-3" + strings.ToLower(f.volume.WWN))
}

// paths are the disks of its map, each with its SCSI host.
func (f *foreign) paths() (out []string, err error) {
	dev, err := f.device()
	if err != nil {
		return nil, err
	}
	var slaves []fs.DirEntry
	if slaves, err = f.node.ReadDir("/sys/block/" + path.Base(dev) + "/slaves"); err != nil {
		return nil, err
	}
	for _, s := range slaves {
		real, err := f.node.EvalSymlinks("/sys/block/" + s.Name() + "/device")
		if err != nil {
			return nil, err
		}
		out = append(out, s.Name()+" at "+real)
	}
	return append(out, dev), nil
}

// remove takes it off the node and the array.
func (f *foreign) remove(iscsi bool) error {
	dev, err := f.device()
	if err != nil {
		return err
	}
	slaves, err := f.node.ReadDir("/sys/block/" + path.Base(dev) + "/slaves")
	if err != nil {
		return err
	}
	name, err := f.node.ReadFile("/sys/block/" + path.Base(dev) + "/dm/name")
	if err != nil {
		return err
	}
	if out, err := f.node.Exec().Command("multipath", "-f", strings.TrimSpace(string(name))).CombinedOutput(); err != nil {
		return step(err, "multipath -f: %s", out)
	}
	for _, s := range slaves {
		if err := f.node.WriteFile("/sys/block/"+s.Name()+"/device/delete", []byte("1"), 0o200); err != nil {
			return err
		}
	}
	if iscsi {
		for _, p := range f.array.Ports() {
			if p.Protocol != array.ISCSI {
				continue
			}
			for _, op := range [][]string{{"--logout"}, {"--op", "delete"}} {
				args := append([]string{"-m", "node", "--targetname", strings.ToLower(p.ISCSIName)}, op...)
				if out, err := f.node.Exec().Command("iscsiadm", args...).CombinedOutput(); err != nil {
					return step(err, "%v: %s", op, out)
				}
			}
		}
	}
	if err := f.array.RemoveVLUN(foreignName, f.host); err != nil {
		return err
	}
	if err := f.array.Change(func(now time.Time) ([]array.ContentOp, error) { return nil, f.array.Core().DeleteHost(now, f.host) }); err != nil {
		return err
	}
	return f.array.DeleteVolume(foreignName)
}

func foreignLUN(ctx context.Context, l *sim.Lab) error {
	a := l.Nodes()[0]
	c, anchor := claim("data", "fast", "256Mi"), claim("anchor", "fast", "256Mi")
	var f *foreign
	var before []string
	content := "of a backup, not of Kubernetes"
	same := func() error {
		now, err := f.paths()
		if err != nil {
			return step(err, "the foreign LUN")
		}
		if !slices.Equal(now, before) {
			return fmt.Errorf("the foreign LUN is %v, before it was %v: %w", now, before, errUnexpected)
		}
		got, err := f.node.ReadAt(now[len(now)-1], 0, len(content))
		if err == nil && string(got) != content {
			err = fmt.Errorf("the foreign LUN holds %q: %w", got, errUnexpected)
		}
		return err
	}
	return steps(
		func() error { return l.Create(ctx, c, anchor) },
		func() error { _, err := l.Bound(ctx, "data"); return err },
		func() error { _, err := l.Bound(ctx, "anchor"); return err },
		func() error { return l.Create(ctx, pod("anchor", a, anchor)) },
		func() error { _, err := l.Running(ctx, "anchor"); return err },
		func() error {
			n, err := lun(l, "anchor", a)
			if err != nil {
				return err
			}
			// The next volume's.
			f, err = foreignAt(l, l.SAN().Arrays()[1], a, n+1)
			return err
		},
		func() (err error) {
			if err := l.Until(ctx, "the node has a map of the foreign LUN", func() bool { _, err := f.device(); return err == nil }); err != nil {
				return err
			}
			before, err = f.paths()
			if err != nil {
				return err
			}
			return f.node.WriteAt(before[len(before)-1], 0, []byte(content), true)
		},
		func() error { return same() },
		func() error {
			for i := range 2 {
				err := steps(
					func() error { return l.Create(ctx, pod("app", a, c)) },
					func() error { _, err := l.Running(ctx, "app"); return err },
					func() error {
						x, err := lun(l, "data", a)
						y, yerr := lun(l, "anchor", a)
						if err == nil && yerr == nil && x != y+1 {
							err = fmt.Errorf("the volume has LUN %d, the foreign one %d: %w", x, y+1, errUnexpected)
						}
						return err
					},
					func() error { return l.Write(ctx, "app", "/data/a", "of Kubernetes") },
					func() error { return step(same(), "staged, round %d", i) },
					func() error { return l.DeletePod(ctx, "app") },
					func() error { return l.Detached(ctx, l.PVName("data")) },
					func() error { return step(same(), "unstaged, round %d", i) },
				)
				if err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			if l.Options().Protocol != "iscsi" {
				return nil // all arrays are behind the same adapters
			}
			for _, e := range l.Ledger.Entries(ledger.OnHop(ledger.Host, "WriteFile")) {
				for _, p := range before[:len(before)-1] {
					_, real, _ := strings.Cut(p, " at ")
					for part := range strings.SplitSeq(real, "/") {
						if strings.HasPrefix(part, "host") && strings.Contains(e.Request, "/scsi_host/"+part+"/scan") && strings.HasPrefix(e.Component, "driver@") {
							return fmt.Errorf("%v: there is nothing of the volume behind %s: %w", e, part, errUnexpected)
						}
					}
				}
			}
			return nil
		},
		func() error { return l.Check(ctx) },
		func() error { return f.remove(l.Options().Protocol == "iscsi") },
		func() error { return l.DeletePod(ctx, "anchor") },
		func() error { return l.DeletePVC(ctx, "data") },
		func() error { return l.DeletePVC(ctx, "anchor") },
		func() error { return l.Empty(ctx) },
	)
}
