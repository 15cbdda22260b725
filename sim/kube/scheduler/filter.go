package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"

	"github.com/csilab/csilab/sim/kube/podstatus"
	"github.com/csilab/csilab/sim/kube/store"
)

// Why a node does not fit: the texts of k8s v1.37.2 pkg/scheduler/framework/plugins.
const (
	reasonUnschedulable = "node(s) were unschedulable"                                                                                       // nodeunschedulable/node_unschedulable.go:52
	reasonTaint         = "node(s) had untolerated taint(s)"                                                                                 // tainttoleration/taint_toleration.go:133
	reasonAffinity      = "node(s) didn't match Pod's node affinity/selector"                                                                // nodeaffinity/node_affinity.go:65
	reasonRWOP          = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod" // volumerestrictions/volume_restrictions.go:61
	reasonLimit         = "node(s) exceed max volume count"                                                                                  // nodevolumelimits/csi.go:45
	reasonBind          = "node(s) didn't find available persistent volumes to bind"                                                         // volumebinding/binder.go:64
	reasonVolumeNode    = "node(s) didn't match PersistentVolume's node affinity"                                                            // volumebinding/binder.go:66
	reasonSpace         = "node(s) did not have enough free storage"                                                                         // volumebinding/binder.go:68
	reasonNoVolume      = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"                                        // volumebinding/binder.go:70
	reasonUnbound       = "pod has unbound immediate PersistentVolumeClaims"                                                                 // volumebinding/volume_binding.go:372
)

// misfit is why one node does not fit.
type misfit struct {
	reasons []string
	// preemptable: another pod's end could help. Priorities aren't modelled, so
	// it only changes the message.
	preemptable bool
}

// decide chooses a node. s.mu is held.
func (s *Scheduler) decide(p *corev1.Pod) (*assumption, string) {
	nodes := store.List[corev1.Node](s.c, "")
	if len(nodes) == 0 {
		return nil, "no nodes available to schedule pods" // scheduler.go:65
	}
	claims, err := s.claims(p)
	if err != nil {
		return nil, fitError(len(nodes), err.Error(), nil)
	}
	rwop := s.rwopConflict(p, claims)

	type candidate struct {
		*assumption
		avoid, prefer int64
		pods          int
	}
	var fits []candidate
	misfits := make([]misfit, 0, len(nodes))
	for _, n := range nodes {
		existing := s.podsOn(n.Name)
		a, bad := s.filter(p, claims, rwop, n, existing)
		if bad != nil {
			misfits = append(misfits, *bad)
			continue
		}
		fits = append(fits, candidate{a, avoided(p, n), preferred(p, n), len(existing)})
	}
	if len(fits) == 0 {
		return nil, fitError(len(nodes), "", misfits)
	}
	return slices.MinFunc(fits, func(x, y candidate) int { // nodes come sorted by name: the first of equals wins
		return cmp.Or(cmp.Compare(x.avoid, y.avoid), cmp.Compare(y.prefer, x.prefer), cmp.Compare(x.pods, y.pods))
	}).assumption, ""
}

// filter runs the filters in the order of the default plugins; the first that
// says no gives the reason (apis/config/v1/default_plugins.go:30).
func (s *Scheduler) filter(p *corev1.Pod, cl podClaims, rwop bool, n *corev1.Node, existing []*corev1.Pod) (*assumption, *misfit) {
	no := func(reasons ...string) (*assumption, *misfit) { return nil, &misfit{reasons: reasons} }
	if n.Spec.Unschedulable && !tolerates(p, &corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}) {
		return no(reasonUnschedulable)
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerates(p, &t) {
			return no(reasonTaint)
		}
	}
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(n); !ok || err != nil {
		return no(reasonAffinity)
	}
	if rwop {
		return nil, &misfit{reasons: []string{reasonRWOP}, preemptable: true}
	}
	if reason := s.limits(p, n, existing); reason != "" {
		return nil, &misfit{reasons: []string{reason}, preemptable: true}
	}
	a, reasons := s.fitVolumes(cl, n)
	if len(reasons) > 0 {
		return no(reasons...)
	}
	return a, nil
}

func tolerates(p *corev1.Pod, t *corev1.Taint) bool {
	return corev1helpers.TolerationsTolerateTaint(klog.Logger{}, p.Spec.Tolerations, t, false)
}

// avoided counts the PreferNoSchedule taints that the pod does not tolerate.
func avoided(p *corev1.Pod, n *corev1.Node) (count int64) {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule && !tolerates(p, &t) {
			count++
		}
	}
	return count
}

// preferred is the weight of the preferred node affinity that the node meets.
func preferred(p *corev1.Pod, n *corev1.Node) int64 {
	if a := p.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		if terms, err := nodeaffinity.NewPreferredSchedulingTerms(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution); err == nil {
			return terms.Score(n)
		}
	}
	return 0
}

// podsOn are the pods that run on a node or will. s.mu is held.
func (s *Scheduler) podsOn(node string) []*corev1.Pod {
	pods := slices.DeleteFunc(store.SeeBy[corev1.Pod](s.c, store.PodsByNode, node), podstatus.Ended)
	for key, st := range s.pods {
		if st.assumed == nil || st.assumed.node != node {
			continue
		}
		ns, name := store.SplitKey(key)
		if p, err := store.See[corev1.Pod](s.c, ns, name); err == nil && string(p.UID) == st.uid && p.Spec.NodeName == "" {
			pods = append(pods, p)
		}
	}
	return pods
}

// rwopConflict says whether a ReadWriteOncePod claim of the pod is used by a
// pod that has a node, whichever (volume_restrictions.go:242). s.mu is held.
func (s *Scheduler) rwopConflict(p *corev1.Pod, cl podClaims) bool {
	for _, c := range cl.all {
		if !slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod) {
			continue
		}
		for _, q := range store.SeeBy[corev1.Pod](s.c, store.PodsByClaim, store.Key(c)) {
			if q.UID == p.UID || podstatus.Ended(q) {
				continue
			}
			st := s.pods[store.Key(q)]
			if q.Spec.NodeName != "" || st != nil && st.assumed != nil {
				return true
			}
		}
	}
	return false
}

// limits counts volumes against what the drivers on the node allow: those of
// pods there, of attachments that no such pod explains, and of this pod
// (nodevolumelimits/csi.go:256). s.mu is held.
func (s *Scheduler) limits(p *corev1.Pod, n *corev1.Node, existing []*corev1.Pod) string {
	wanted := s.csiVolumes(p)
	if len(wanted) == 0 {
		return ""
	}
	csiNode, err := store.See[storagev1.CSINode](s.c, "", n.Name)
	if err != nil {
		csiNode = &storagev1.CSINode{}
	}
	limit, installed := map[string]int{}, map[string]bool{}
	for _, d := range csiNode.Spec.Drivers {
		installed[d.Name] = true
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			limit[d.Name] = int(*d.Allocatable.Count)
		}
	}
	for _, driver := range wanted {
		d, err := store.See[storagev1.CSIDriver](s.c, "", driver)
		if err == nil && d.Spec.PreventPodSchedulingIfMissing != nil && *d.Spec.PreventPodSchedulingIfMissing && !installed[driver] {
			return driver + " CSI driver is not installed on the node"
		}
	}
	if len(limit) == 0 {
		return ""
	}
	used := map[string]string{}
	for _, q := range existing {
		for v, driver := range s.csiVolumes(q) {
			used[v] = driver
		}
	}
	for _, va := range store.SeeBy[storagev1.VolumeAttachment](s.c, store.AttachmentsByNode, n.Name) {
		if va.Spec.Source.PersistentVolumeName == nil {
			continue
		}
		if pv, err := store.See[corev1.PersistentVolume](s.c, "", *va.Spec.Source.PersistentVolumeName); err == nil && pv.Spec.CSI != nil {
			used[store.VolumeKey(va.Spec.Attacher, pv.Spec.CSI.VolumeHandle)] = va.Spec.Attacher
		}
	}
	count, more := map[string]int{}, map[string]int{}
	for _, driver := range used {
		count[driver]++
	}
	for v, driver := range wanted {
		// The original looks only at pods here: a volume that is attached
		// without a pod, and that this one wants, counts twice.
		if !s.usedByPod(existing, v) {
			more[driver]++
		}
	}
	for driver, m := range more {
		if l, ok := limit[driver]; ok && count[driver]+m > l {
			return reasonLimit
		}
	}
	return ""
}

func (s *Scheduler) usedByPod(pods []*corev1.Pod, volume string) bool {
	for _, p := range pods {
		if _, ok := s.csiVolumes(p)[volume]; ok {
			return true
		}
	}
	return false
}

// csiVolumes are the volumes of a pod by driver; a claim that is not bound
// counts for the provisioner of its class (csi.go:400-560).
func (s *Scheduler) csiVolumes(p *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, k := range store.ClaimKeys(p) {
		ns, name := store.SplitKey(k)
		c, err := store.See[corev1.PersistentVolumeClaim](s.c, ns, name)
		if err != nil || !store.Uses(p, c) {
			continue
		}
		if c.Spec.VolumeName != "" {
			if pv, err := store.See[corev1.PersistentVolume](s.c, "", c.Spec.VolumeName); err == nil {
				if pv.Spec.CSI != nil {
					out[store.VolumeKey(pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle)] = pv.Spec.CSI.Driver
				}
				continue
			}
		}
		if cls, err := store.See[storagev1.StorageClass](s.c, "", volumehelpers.GetPersistentVolumeClaimClass(c)); err == nil {
			out["unbound "+k] = cls.Provisioner
		}
	}
	return out
}

// fitError is the message of framework/types.go FitError, with what preemption
// adds (framework/preemption/preemption.go:145, defaultpreemption/default_preemption.go:350).
func fitError(nodes int, preFilter string, misfits []misfit) string {
	head := fmt.Sprintf("0/%d nodes are available:", nodes)
	histogram := func(reasons map[string]int) string {
		var out []string
		for r, n := range reasons {
			out = append(out, fmt.Sprintf("%d %s", n, r))
		}
		slices.Sort(out)
		return " " + strings.Join(out, ", ") + "."
	}
	why, preemption := map[string]int{}, map[string]int{}
	for _, m := range misfits {
		for _, r := range m.reasons {
			why[r]++
		}
		if m.preemptable {
			preemption["No preemption victims found for incoming pod"]++
		} else {
			preemption["Preemption is not helpful for scheduling"]++
		}
	}
	if preFilter != "" {
		preemption["Preemption is not helpful for scheduling"] = nodes
		return head + " " + preFilter + ". preemption: " + head + histogram(preemption)
	}
	return head + histogram(why) + " preemption: " + head + histogram(preemption)
}
