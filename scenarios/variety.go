package scenarios

import (
	"context"
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csilab/csilab/sim"
)

// variety is what the users of a lab can have besides volumes of one node on one
// backend.
type variety struct {
	shares bool // of files, for several nodes
	copies bool // of other claims
	pairs  bool // volumes on two arrays at once
}

// varietyOf is what a lab has.
func varietyOf(l *sim.Lab) (v variety) {
	if l.Backend() == sim.HPE {
		v = variety{shares: l.CanMountShares() == nil, copies: true, pairs: len(l.SAN().Arrays()) > 1}
	}
	return v
}

// classes makes the classes for it.
func (v variety) classes(ctx context.Context, l *sim.Lab) error {
	yes := true
	class := func(name string, parameters map[string]string) error {
		return l.Create(ctx, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: l.DriverName(), AllowVolumeExpansion: &yes, Parameters: l.Parameters(parameters)})
	}
	return steps(
		func() error {
			if !v.shares {
				return nil
			}
			return class("files", map[string]string{"accessProtocol": "nfs"})
		},
		func() error {
			if !v.pairs {
				return nil
			}
			return class("replicated", map[string]string{"csi.storage.k8s.io/fstype": "ext4", "replicationDevices": "pair", "oneRcgPerPvc": "true"})
		},
	)
}

// draw decides what a new claim is for, and its class. Of what a lab has not
// nothing is drawn.
func (v variety) draw(r *rand.Rand) (kind, class string) {
	switch {
	case v.shares && r.IntN(5) == 0:
		return "share", "files"
	case v.pairs && r.IntN(2) == 0:
		return "pair", "replicated"
	}
	return "create", "fast"
}

// shareMiB is the size that a share begins with: the smallest that the file
// service has.
const shareMiB = 1024

// copy makes a claim for a copy of another's volume, and waits until it is whole:
// the source stays as it is meanwhile.
func (u *user) copy(ctx context.Context, from *owned) error {
	u.made++
	name := fmt.Sprintf("%s-c%d", u.name, u.made)
	change := []func(*corev1.PersistentVolumeClaim){fromClaim(from.claim.Name)}
	o := &owned{size: from.size, content: from.content, file: "/" + name + "/a"}
	held := "a"
	if isBlockClaim(from.claim) {
		change = append(change, block)
		o.file, held = "/dev/"+name, ""
	}
	o.claim = claim(name, "fast", fmt.Sprintf("%dMi", o.size), change...)
	u.begin("copy", "%s", "copies "+from.claim.Name+" to "+name)
	if err := u.l.Create(ctx, o.claim); err != nil {
		return err
	}
	u.have = append(u.have, o)
	if _, err := u.l.Bound(ctx, name); err != nil {
		return err
	}
	u.l.Expects(name, map[string]string{held: o.content})
	return u.start(ctx, o)
}

// visit reads a share from a second pod, which may be on another node, while the
// first has it.
func (u *user) visit(ctx context.Context, o *owned) error {
	u.made++
	first := o.pod
	o.pod = fmt.Sprintf("%s-p%d", u.name, u.made)
	u.begin("visit", "%s", "visits "+o.claim.Name+" with "+o.pod)
	return steps(
		func() error { return u.l.Create(ctx, pod(o.pod, "", o.claim)) },
		func() error {
			return u.again(ctx, o, func(ctx context.Context) error { _, err := u.l.Running(ctx, o.pod); return err })
		},
		func() error { return u.reads(ctx, o) },
		func() error { return u.stop(ctx, o) },
		func() error { o.pod = first; return u.reads(ctx, o) },
	)
}
