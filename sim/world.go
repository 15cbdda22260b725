package sim

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csilab/csilab/sim/invariant"
	"github.com/csilab/csilab/sim/kube/store"
)

// World is the lab from all sides, now. What only a quiet lab must have right
// (sizes, what is read back) is looked at where quiet says so.
func (l *Lab) World(ctx context.Context, quiet bool) *invariant.World {
	w := &invariant.World{Quiet: quiet, Unit: l.facts().unit}
	byPath := map[string]string{} // staging path -> volume id
	pvVolume := map[string]string{}
	for _, pv := range store.List[corev1.PersistentVolume](l.user, "") {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != l.DriverName() {
			continue
		}
		id := pv.Spec.CSI.VolumeHandle
		pvVolume[pv.Name] = id
		byPath[fmt.Sprintf("%s/plugins/kubernetes.io/csi/%s/%x/globalmount", kubeletRoot, l.DriverName(), sha256.Sum256([]byte(id)))] = id
		size := pv.Spec.Capacity[corev1.ResourceStorage]
		w.PVs = append(w.PVs, invariant.PV{Name: pv.Name, VolumeID: id,
			MultiWriter: slices.Contains(pv.Spec.AccessModes, corev1.ReadWriteMany),
			Bytes:       size.Value(), Static: pv.Annotations["pv.kubernetes.io/provisioned-by"] == ""})
	}
	for _, c := range store.List[corev1.PersistentVolumeClaim](l.user, "") {
		if pvVolume[c.Spec.VolumeName] == "" || c.Status.Phase != corev1.ClaimBound {
			continue
		}
		size := c.Status.Capacity[corev1.ResourceStorage]
		w.Claims = append(w.Claims, invariant.Claim{Key: store.Key(c), PV: c.Spec.VolumeName, Bytes: size.Value(), Asked: c.Spec.Resources.Requests.Storage().Value(), Growing: growing(c)})
	}
	for _, c := range store.List[snapshotv1.VolumeSnapshotContent](l.user, "") {
		if c.Status != nil && c.Status.SnapshotHandle != nil {
			w.Contents = append(w.Contents, invariant.SnapshotContent{Name: c.Name, SnapshotID: *c.Status.SnapshotHandle})
		}
	}
	for _, a := range store.List[storagev1.VolumeAttachment](l.user, "") {
		if a.Spec.Attacher != l.DriverName() || a.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		w.Attachments = append(w.Attachments, invariant.Attachment{Name: a.Name, VolumeID: pvVolume[*a.Spec.Source.PersistentVolumeName],
			Node: a.Spec.NodeName, Attached: a.Status.Attached, Deleting: a.DeletionTimestamp != nil, Serial: l.publishedAs(a.Status.AttachmentMetadata)})
	}
	for _, p := range store.List[corev1.Pod](l.user, "") {
		if p.Spec.NodeName == "" {
			continue
		}
		pod := invariant.Pod{Key: store.Key(p), UID: string(p.UID), Node: p.Spec.NodeName,
			Ended: p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed}
		for _, v := range p.Spec.Volumes {
			claim := store.ClaimName(p, &v)
			if claim == "" {
				continue
			}
			if c, err := store.Get[corev1.PersistentVolumeClaim](l.user, p.Namespace, claim); err == nil && store.Usable(p, &v, c) == nil && pvVolume[c.Spec.VolumeName] != "" {
				pod.VolumeIDs = append(pod.VolumeIDs, pvVolume[c.Spec.VolumeName])
			}
		}
		w.Pods = append(w.Pods, pod)
	}
	for _, v := range l.backend.volumes() {
		w.Volumes = append(w.Volumes, invariant.Volume{ID: v.id, Name: v.name, Unmanaged: !v.ours, Retained: l.isRetained(v.id), Bytes: v.bytes})
	}
	for _, s := range l.backend.snapshots() {
		w.Snapshots = append(w.Snapshots, invariant.Snapshot{ID: s.id, VolumeID: s.volume, Unmanaged: !s.ours, Retained: l.isRetained(s.id)})
	}
	w.Exports = l.backend.exports()
	for _, n := range l.nodes {
		node := invariant.Node{Name: n.Name, Fenced: n.fenced()}
		if !node.Fenced {
			n.look(&node, byPath, pvVolume, quiet)
		}
		w.Nodes = append(w.Nodes, node)
	}
	l.seen.into(w)
	w.Leaks = l.backend.leaks()
	if quiet {
		w.Reads = l.readBack(ctx)
	}
	w.Healing = l.healed()
	return w
}

// growing is the condition of a claim that says that its size changes.
func growing(c *corev1.PersistentVolumeClaim) string {
	for _, x := range c.Status.Conditions {
		switch x.Type {
		case corev1.PersistentVolumeClaimResizing, corev1.PersistentVolumeClaimFileSystemResizePending,
			corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
			if x.Status == corev1.ConditionTrue {
				return string(x.Type)
			}
		}
	}
	return ""
}

// look reads disks, mounts and directories of a node, and their sizes.
func (n *Node) look(node *invariant.Node, byPath, pvVolume map[string]string, sizes bool) {
	node.Disks = n.host.Disks()
	if sizes {
		node.Sizes = n.sizes(node.Disks)
	}
	serial := n.serials()
	ms, _ := n.host.Mounter().List()
	for _, m := range ms {
		im := invariant.Mount{Path: m.Path, Serial: serial(m.Device), ReadOnly: slices.Contains(m.Opts, "ro"), FSType: m.Type}
		im.VolumeID, im.Staging = byPath[m.Path], byPath[m.Path] != ""
		if rest, ok := strings.CutPrefix(m.Path, kubeletRoot+"/pods/"); ok {
			// pods/<uid>/volumes/kubernetes.io~csi/<pv>/mount
			if parts := strings.Split(rest, "/"); len(parts) >= 5 && parts[1] == "volumes" {
				im.VolumeID = pvVolume[parts[3]]
			}
		}
		if im.Serial == "" {
			im.VolumeID = "" // a bind mount of a device node: its device is the root's
		}
		im.Cut = im.VolumeID != "" && n.lab.seen.isCut(n.Name, im.VolumeID)
		switch {
		case !sizes || !im.Staging || im.VolumeID == "":
		case isShare(im.Serial):
			if im.FSBytes = n.shareSize(m.Path, im.Serial); im.FSBytes > 0 {
				node.Sizes[im.Serial], _ = n.lab.bytesOf(im.VolumeID)
			}
		default:
			if u, err := n.host.Statfs(m.Path); err == nil {
				im.FSBytes = u.TotalBytes
			}
			if err := n.lab.supportsGrowOn(n, m.Type); err != nil {
				if node.CantGrow == nil {
					node.CantGrow = map[string]string{}
				}
				node.CantGrow[m.Type] = err.Error()
			}
		}
		node.Mounts = append(node.Mounts, im)
	}
	es, _ := n.host.ReadDir(kubeletRoot + "/pods")
	for _, e := range es {
		for _, kind := range []string{"volumes", "volumeDevices"} {
			vs, _ := n.host.ReadDir(kubeletRoot + "/pods/" + e.Name() + "/" + kind + "/kubernetes.io~csi")
			if len(vs) > 0 && !slices.Contains(node.PodDirs, e.Name()) {
				node.PodDirs = append(node.PodDirs, e.Name())
			}
		}
	}
}

// Retain says that a volume or snapshot outlives its object by policy.
func (l *Lab) Retain(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.retained = append(l.retained, id)
}

func (l *Lab) isRetained(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.retained, id)
}

// sizes are what the devices of disks show, in bytes, by serial.
func (n *Node) sizes(disks []string) map[string]int64 {
	out := map[string]int64{}
	for _, d := range disks {
		if b, err := n.host.DeviceSize(byID(d)); err == nil {
			out[d] = b
		}
	}
	return out
}

// byID is the path by which a node finds a disk.
func byID(serial string) string { return "/dev/disk/by-id/wwn-0x" + serial }
