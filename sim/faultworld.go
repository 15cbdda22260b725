package sim

import (
	"context"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/kube/store"
	"github.com/csilab/csilab/sim/ledger"
)

// What kinds of faults act on: the lab is the world of its interceptor. Most of
// their methods are verbs of the lab; here are those that only they need.

// needs are what the kinds want that some labs have not.
var needs = map[string]func(*Lab) bool{
	"vlun-removed":   (*Lab).hasArrays,
	"lun-renumbered": (*Lab).hasArrays,
	"stale-device":   (*Lab).hasArrays,

	"host-entry-removed": (*Lab).hasArrays,

	"vm-moved":              (*Lab).hasVCenter,
	"vm-deleted":            (*Lab).hasVCenter,
	"datastore-maintenance": (*Lab).hasVCenter,
	"account-locked":        (*Lab).hasVCenter,
	"volume-unregistered":   (*Lab).hasVCenter,

	"certificate-changed": func(l *Lab) bool { return l.hasVCenter() && !l.opts.Bubble },
	"io-error":            (*Lab).hasOpenDisks,
	"wrong-device":        (*Lab).hasOpenDisks,
	"device-blank":        (*Lab).hasOpenDisks,
	"device-silent":       (*Lab).hasOpenDisks,
	"storage-cut":         (*Lab).hasOpenDisks,
}

func (l *Lab) hasArrays() bool  { return l.opts.Backend == HPE }
func (l *Lab) hasVCenter() bool { return l.opts.Backend == VSphere }

// hasOpenDisks: the disks of real nodes on vSphere are loop devices on files,
// which nobody stands before.
func (l *Lab) hasOpenDisks() bool { return l.hasArrays() || l.opts.Host != "real" || l.opts.Bubble }

// Lacks says why a kind of fault can't be done here, for after "this lab"; "" if
// it can.
func (l *Lab) Lacks(kind string) string {
	if has := needs[kind]; has == nil || has(l) {
		return ""
	}
	hosts := l.opts.Host
	if l.opts.Bubble {
		hosts = "memory, in a bubble"
	}
	return "has the backend " + l.opts.Backend + " and hosts of kind " + hosts + ", which have no like of it"
}

// ChangePassword rotates the driver's password; heal deploys the driver with the
// new one.
func (l *Lab) ChangePassword(ctx context.Context, password string) (heal func(), err error) {
	if err := l.RotatePassword(ctx, password); err != nil {
		return nil, err
	}
	return l.redeployed(ctx), nil
}

// ChangeCertificate replaces the certificates of all vCenters; heal deploys the
// driver with their thumbprints.
func (l *Lab) ChangeCertificate(ctx context.Context) (heal func(), err error) {
	if err := l.ReplaceCertificates(); err != nil {
		return nil, err
	}
	return l.redeployed(ctx), nil
}

func (l *Lab) redeployed(ctx context.Context) func() {
	return func() {
		if err := l.Redeploy(context.WithoutCancel(ctx)); err != nil {
			l.log.Debug("redeploy", "err", err)
		}
	}
}

// RemoveVLUN ends a volume's exports to a node by hand.
func (l *Lab) RemoveVLUN(ctx context.Context, volume, node string) error {
	if _, err := l.onHPE("to remove a VLUN"); err != nil {
		return err
	}
	return l.PullVolume(ctx, volume, node)
}

// ResolveSnapshot finds the id of the snapshot that a call is about: the id
// itself, its VolumeSnapshot (namespace/name) or that one's content, or its id
// within the volume.
func (l *Lab) ResolveSnapshot(subject string) (id string, ok bool) {
	if subject == "" {
		return "", false
	}
	all := l.backend.snapshots()
	is := func(id string) bool { return slices.ContainsFunc(all, func(s snapshot) bool { return s.id == id }) }
	if is(subject) {
		return subject, true
	}
	if id := l.SnapshotHandle(subject); is(id) {
		return id, true
	}
	if c, err := store.Get[snapshotv1.VolumeSnapshotContent](l.user, "", subject); err == nil && c.Status != nil && c.Status.SnapshotHandle != nil && is(*c.Status.SnapshotHandle) {
		return *c.Status.SnapshotHandle, true
	}
	for _, s := range all {
		if strings.HasSuffix(s.id, "+"+subject) { // CNS names it within its volume
			return s.id, true
		}
	}
	return "", false
}

// TakesPart says whether a component makes or answers a call.
func (l *Lab) TakesPart(component string, c fault.Call) bool {
	switch to := l.Callee(c); {
	case component == c.Component:
		return true
	case c.Hop == ledger.VCenter:
		return strings.HasPrefix(component, "vcenter")
	case c.Hop == ledger.WSAPI:
		_, isArray := l.SAN().Array(strings.TrimSuffix(component, ":0"))
		return isArray
	default:
		return component == to
	}
}

// FaultWorld is what faults of a lab with these options act on, to judge a plan
// before there is a lab: its hops and nodes, and a world that tells which kinds it
// lacks. Nothing of it runs.
func (o Options) FaultWorld() (world any, hops []ledger.Hop, nodes []string) {
	l := &Lab{opts: o.WithDefaults()}
	return l, l.Hops(), l.opts.nodeNames()
}
