package store

import (
	"cmp"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Index names a way to find objects of a kind without a scan, as an informer's
// indexer does.
type Index string

// The indexes. What a value looks like is said at each.
const (
	PodsByNode        Index = "pods by spec.nodeName"         // a node's name; "" for pods without one
	PodsByClaim       Index = "pods by claim"                 // namespace/name of a claim that the pod names; whether it Uses it is another question
	ClaimsByClass     Index = "claims by storageClassName"    // a class's name; "" for none
	ClaimsByOwner     Index = "claims by owner"               // a uid
	ClaimsByVolume    Index = "claims by spec.volumeName"     // a PersistentVolume's name
	VolumesByClaim    Index = "volumes by spec.claimRef"      // namespace/name; "" for volumes without a claimRef
	VolumesByHandle   Index = "volumes by CSI handle"         // VolumeKey(driver, handle)
	AttachmentsByNode Index = "attachments by spec.nodeName"  // a node's name
	AttachmentsByPV   Index = "attachments by spec.source PV" // a PersistentVolume's name
	EventsByObject    Index = "events by involvedObject.uid"  // a uid
)

// VolumeKey is the value of a CSI volume in VolumesByHandle. It is also the
// name by which kubelet and the attach/detach controller know a volume in a
// node's status, "kubernetes.io/csi/<driver>^<handle>": k8s v1.37.2
// pkg/volume/util/util.go GetUniqueVolumeName, pkg/volume/csi/csi_plugin.go
// GetVolumeName and volNameSep.
func VolumeKey(driver, handle string) string { return "kubernetes.io/csi/" + driver + "^" + handle }

type indexer struct {
	kind   string
	values func(Object) []string
}

func index[T any, P ptr[T]](f func(P) []string) indexer {
	return indexer{infoOf(reflect.TypeFor[T]()).kind, func(o Object) []string { return f(o.(P)) }}
}

var indexers = map[Index]indexer{}

func init() {
	indexers[PodsByNode] = index(func(p *corev1.Pod) []string { return []string{p.Spec.NodeName} })
	indexers[PodsByClaim] = index(ClaimKeys)
	indexers[ClaimsByClass] = index(func(c *corev1.PersistentVolumeClaim) []string {
		if c.Spec.StorageClassName == nil {
			return []string{""}
		}
		return []string{*c.Spec.StorageClassName}
	})
	indexers[ClaimsByOwner] = index(func(c *corev1.PersistentVolumeClaim) (uids []string) {
		for _, r := range c.OwnerReferences {
			uids = append(uids, string(r.UID))
		}
		return uids
	})
	indexers[ClaimsByVolume] = index(func(c *corev1.PersistentVolumeClaim) []string { return []string{c.Spec.VolumeName} })
	indexers[VolumesByClaim] = index(func(v *corev1.PersistentVolume) []string {
		if v.Spec.ClaimRef == nil {
			return []string{""}
		}
		return []string{key(v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name)}
	})
	indexers[VolumesByHandle] = index(func(v *corev1.PersistentVolume) []string {
		if v.Spec.CSI == nil {
			return nil
		}
		return []string{VolumeKey(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)}
	})
	indexers[AttachmentsByNode] = index(func(a *storagev1.VolumeAttachment) []string { return []string{a.Spec.NodeName} })
	indexers[AttachmentsByPV] = index(func(a *storagev1.VolumeAttachment) []string {
		if a.Spec.Source.PersistentVolumeName == nil {
			return nil
		}
		return []string{*a.Spec.Source.PersistentVolumeName}
	})
	indexers[EventsByObject] = index(func(e *corev1.Event) []string { return []string{string(e.InvolvedObject.UID)} })
}

// indexSet is index -> value -> keys of objects.
type indexSet map[Index]map[string]map[string]struct{}

// move takes old out of the indexes of its kind and puts next in; either may be nil.
func (s indexSet) move(kind string, old, next Object) {
	for name, ix := range indexers {
		if ix.kind != kind {
			continue
		}
		if old != nil {
			for _, v := range ix.values(old) {
				delete(s[name][v], Key(old))
				if len(s[name][v]) == 0 {
					delete(s[name], v)
				}
			}
		}
		if next != nil {
			for _, v := range ix.values(next) {
				if s[name] == nil {
					s[name] = map[string]map[string]struct{}{}
				}
				if s[name][v] == nil {
					s[name][v] = map[string]struct{}{}
				}
				s[name][v][Key(next)] = struct{}{}
			}
		}
	}
}

// ListBy returns copies of the objects that an index holds under a value, by
// key. Its cost depends on how many those are only. It panics when the index
// is of another kind.
func ListBy[T any, P ptr[T]](c *Client, ix Index, value string) []P {
	out := SeeBy[T, P](c, ix, value)
	for i, o := range out {
		out[i] = o.DeepCopyObject().(P)
	}
	return out
}

// SeeBy is ListBy without the copies: the objects are shared and must not be
// changed.
func SeeBy[T any, P ptr[T]](c *Client, ix Index, value string) []P {
	k := kindOfIndex[T](ix)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.expire()
	var out []P
	if v := c.s.cuts[c.actor]; v != nil {
		for _, o := range v.known.listBy(ix, value) {
			out = append(out, o.(P))
		}
	} else {
		for ky := range c.s.indexes[ix][value] {
			out = append(out, c.s.objects[k.kind][ky].(P))
		}
	}
	slices.SortFunc(out, func(a, b P) int { return cmp.Compare(Key(a), Key(b)) })
	return out
}
