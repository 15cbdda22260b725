package hpe

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
)

// CreateVolume implements controller.Backend.
func (b *Backend) CreateVolume(ctx context.Context, r controller.CreateVolume) (controller.Volume, error) {
	p, err := b.parameters(ctx, r)
	if err == nil {
		err = checkSource(p, r)
	}
	if err != nil {
		return controller.Volume{}, err
	}
	s, err := b.session(ctx)
	if err != nil {
		return controller.Volume{}, err
	}
	v, found, err := s.VolumeNamed(ctx, r.Name)
	if err != nil {
		return controller.Volume{}, fail(ctx, err, nil, "looking for volume %s", r.Name)
	}
	if !found {
		if v, err = b.makeVolume(ctx, s, r, p); err != nil {
			return controller.Volume{}, err
		}
	}
	if err := fits(v, r); err != nil {
		return controller.Volume{}, err
	}
	// Also right after it was made: a volume that is still being copied isn't
	// the one that was asked for.
	if v, err = b.settle(ctx, s, v); err != nil {
		return controller.Volume{}, err
	}
	if r.Source != "" {
		b.forgetCloneSnapshot(ctx, s, r.Source, r.Name)
	}
	// A storage network reaches wherever it is asked for: as upstream, the
	// volume is for what the request names.
	return controller.Volume{ID: v.ID, Bytes: int64(v.Size), Context: contextOf(p, r.Access, v.Config), Snapshot: r.Snapshot, Source: r.Source, Segments: r.Requisite}, nil
}

// makeVolume makes the volume of a name that wasn't there.
func (b *Backend) makeVolume(ctx context.Context, s *csp.Session, r controller.CreateVolume, p map[string]string) (v csp.Volume, err error) {
	q := csp.Volume{Name: r.Name, Size: csp.Bytes(r.Bytes), Description: p[paramDescription], Config: configOf(p, r.Access.Shared)}
	switch {
	case r.Snapshot != "":
		if q.Base, err = b.fromSnapshot(ctx, s, r, &q); err != nil {
			return v, err
		}
		q.Clone = true
	case r.Source != "":
		if q.Base, err = b.fromVolume(ctx, s, r, &q); err != nil {
			return v, err
		}
		q.Clone = true
	}
	v, err = s.CreateVolume(ctx, q)
	if err == nil {
		if v.ID == "" {
			return v, controller.Errorf(controller.Unavailable, "volume %s: the provider's reply has no id", r.Name)
		}
		if size := int64(v.Size); r.LimitBytes > 0 && size > r.LimitBytes {
			// By how much an array rounds up, only it knows.
			if err := s.DeleteVolume(ctx, v.ID); err != nil {
				return v, fail(ctx, err, nil, "volume %s, which has %d bytes: more than the limit of %d", r.Name, size, r.LimitBytes)
			}
			return v, controller.Errorf(controller.OutOfRange, "capacity_range.limit_bytes %d: the array rounds %d bytes up to %d", r.LimitBytes, r.Bytes, size)
		}
		return v, nil
	}
	if csp.Unknown(err) || csp.StatusOf(err) == http.StatusConflict {
		// It may be there: made by this call, whose reply is lost, or by another.
		if v, found, lookup := s.VolumeNamed(ctx, r.Name); lookup == nil && found {
			return v, nil
		}
	}
	special := kinds{http.StatusConflict: controller.AlreadyExists, http.StatusNotFound: controller.Invalid}
	if q.Base != "" {
		special[http.StatusNotFound] = controller.NotFound
	}
	return v, fail(ctx, err, special, "volume %s", r.Name)
}

// fromSnapshot returns the base of a volume from a snapshot.
func (b *Backend) fromSnapshot(ctx context.Context, s *csp.Session, r controller.CreateVolume, q *csp.Volume) (base string, err error) {
	snap, err := s.Snapshot(ctx, r.Snapshot)
	if csp.StatusOf(err) == http.StatusNotFound {
		return "", controller.Errorf(controller.NotFound, "source snapshot %q doesn't exist", r.Snapshot)
	}
	if err != nil {
		return "", fail(ctx, err, nil, "source snapshot %s", r.Snapshot)
	}
	if err := sourceSize(r, q, int64(snap.Size), "snapshot "+r.Snapshot); err != nil {
		return "", err
	}
	if snap.Volume != "" {
		parent, err := s.Volume(ctx, snap.Volume)
		switch {
		case err == nil:
			inherit(parent, q)
		case csp.StatusOf(err) != http.StatusNotFound:
			return "", fail(ctx, err, nil, "volume %s of source snapshot %s", snap.Volume, r.Snapshot)
		}
	}
	return snap.ID, nil
}

// fromVolume returns the base of a clone of a volume: a snapshot that is made
// for it, under a name that a second try finds again.
func (b *Backend) fromVolume(ctx context.Context, s *csp.Session, r controller.CreateVolume, q *csp.Volume) (base string, err error) {
	source, err := s.Volume(ctx, r.Source)
	if csp.StatusOf(err) == http.StatusNotFound {
		return "", controller.Errorf(controller.NotFound, "source volume %q doesn't exist", r.Source)
	}
	if err != nil {
		return "", fail(ctx, err, nil, "source volume %s", r.Source)
	}
	if err := settled(source); err != nil {
		return "", err
	}
	if err := notFiles(source, "volume_content_source.volume"); err != nil {
		return "", err
	}
	if err := sourceSize(r, q, int64(source.Size), "volume "+r.Source); err != nil {
		return "", err
	}
	inherit(source, q)
	name := cloneSnapshot(r.Name)
	snap, err := b.makeSnapshot(ctx, s, csp.Snapshot{Name: name, Volume: source.ID, Description: name})
	return snap.ID, err
}

// inherit gives a copy the provisioning type of its source, as upstream does
// since 2025 (CON-4206): a system makes copies of one kind only. It calls
// deduplicated volumes tdvv, and wants reduce.
func inherit(source csp.Volume, q *csp.Volume) {
	t, _ := source.Config["provisioning_type"].(string)
	switch t {
	case "":
	case "tdvv":
		q.Config["provisioning_type"] = "reduce"
	default:
		q.Config["provisioning_type"] = t
	}
}

func sourceSize(r controller.CreateVolume, q *csp.Volume, size int64, what string) error {
	switch {
	case r.Bytes == 0:
		q.Size = csp.Bytes(size)
	case r.Bytes < size:
		if r.LimitBytes > 0 && r.LimitBytes < size {
			return controller.Errorf(controller.OutOfRange, "capacity_range.limit_bytes %d: source %s has %d", r.LimitBytes, what, size)
		}
		// A volume may be larger than asked for.
		q.Size = csp.Bytes(size)
	}
	return nil
}

// fits compares a volume that has the name with the request.
func fits(v csp.Volume, r controller.CreateVolume) error {
	size := int64(v.Size)
	if size < r.MinBytes || r.LimitBytes > 0 && size > r.LimitBytes {
		return controller.Errorf(controller.AlreadyExists, "volume %s exists with %d bytes, asked for are %d to %d (0: no limit)", r.Name, size, r.MinBytes, r.LimitBytes)
	}
	if r.Snapshot != "" && v.Base != "" && v.Base != r.Snapshot {
		return controller.Errorf(controller.AlreadyExists, "volume %s exists from snapshot %s, asked for is one from %s", r.Name, v.Base, r.Snapshot)
	}
	return nil
}

// settled refuses a volume that the provider still works on.
func settled(v csp.Volume) error {
	switch state := v.Background(); {
	case state == "":
		return nil
	case strings.Contains(strings.ToLower(state), "fail"):
		// Unverified: what a provider says of a copy that failed.
		return controller.Errorf(controller.Internal, "volume %s: the provider's work on it has ended with %q", v.Name, state)
	default:
		return controller.Errorf(controller.Aborted, "volume %s: the provider still works on it: %s", v.Name, state)
	}
}

// settle waits a little for the provider's work on a volume: a copy of a small
// volume is done before a caller would ask again. Then it says Aborted, so that
// the caller does.
func (b *Backend) settle(ctx context.Context, s *csp.Session, v csp.Volume) (csp.Volume, error) {
	until := time.NewTimer(max(0, b.cfg.CopyWait))
	defer until.Stop()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		err := settled(v)
		if err == nil || controller.KindOf(err) != controller.Aborted || b.cfg.CopyWait < 0 {
			return v, err
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-until.C:
			again.Stop()
			return v, err
		case <-ctx.Done():
			again.Stop()
			return v, err
		}
		now, lookup := s.Volume(ctx, v.ID)
		if lookup != nil {
			return v, err // what was known last
		}
		v = now
	}
}

// DeleteVolume implements controller.Backend.
func (b *Backend) DeleteVolume(ctx context.Context, id string) error {
	s, err := b.session(ctx)
	if err != nil {
		return err
	}
	v, err := s.Volume(ctx, id)
	switch {
	case csp.StatusOf(err) == http.StatusNotFound:
		return b.deleted(ctx, s, id)
	case err != nil:
		return fail(ctx, err, nil, "volume %s", id)
	case v.Published && isFiles(v):
		if err := b.unshare(ctx, s, id); err != nil {
			return err
		}
	case v.Published:
		return controller.Errorf(controller.InUse, "volume %s is still published", id)
	}
	snaps, err := s.HasSnapshots(ctx, id)
	if err != nil {
		return fail(ctx, err, nil, "snapshots of volume %s", id)
	}
	if len(snaps) > 0 {
		if err := b.deleteCloneSnapshots(ctx, s, id, snaps); err != nil {
			return err
		}
	}
	if err := b.leaving(ctx, id, v.Group); err != nil {
		return err
	}
	if err := s.DeleteVolume(ctx, id); err != nil {
		return fail(ctx, err, kinds{http.StatusBadRequest: controller.InUse, http.StatusNotFound: controller.Internal}, "volume %s", id)
	}
	return b.deleted(ctx, s, id)
}

// Volume implements controller.Backend.
func (b *Backend) Volume(ctx context.Context, id string) (controller.Volume, error) {
	s, err := b.session(ctx)
	if err != nil {
		return controller.Volume{}, err
	}
	v, err := s.Volume(ctx, id)
	if csp.StatusOf(err) == http.StatusNotFound {
		return controller.Volume{}, notFound(id)
	}
	if err != nil {
		return controller.Volume{}, fail(ctx, err, nil, "volume %s", id)
	}
	return controller.Volume{ID: v.ID, Bytes: int64(v.Size), Files: isFiles(v)}, nil
}

// Expand implements controller.Backend.
func (b *Backend) Expand(ctx context.Context, id string, size int64) (int64, error) {
	s, err := b.session(ctx)
	if err != nil {
		return 0, err
	}
	v, err := s.Volume(ctx, id)
	if csp.StatusOf(err) == http.StatusNotFound {
		return 0, notFound(id)
	}
	if err != nil {
		return 0, fail(ctx, err, nil, "volume %s", id)
	}
	if int64(v.Size) >= size {
		return int64(v.Size), nil
	}
	if err := settled(v); err != nil {
		return 0, err
	}
	got, err := s.ChangeVolume(ctx, csp.Volume{ID: id, Size: csp.Bytes(size), Group: v.Group})
	if err == nil && int64(got.Size) >= size {
		return int64(got.Size), nil
	}
	// It may have grown: in an attempt whose reply is lost, after which a second
	// is refused for not growing it.
	if v, lookup := s.Volume(ctx, id); lookup == nil && int64(v.Size) >= size {
		return int64(v.Size), nil
	}
	if err == nil {
		return 0, controller.Errorf(controller.Internal, "volume %s has %d bytes after it was grown to %d", id, got.Size, size)
	}
	return 0, fail(ctx, err, kinds{http.StatusNotFound: controller.NotFound, http.StatusBadRequest: controller.OutOfRange}, "growing volume %s to %d bytes", id, size)
}

// mutable are the parameters that can be changed on a volume that exists,
// hpe.md 2.1.
var mutable = []string{"compression", "cpg", "description", "provisioningType", "snapCpg"}

// ModifyVolume implements controller.Modifier.
func (b *Backend) ModifyVolume(ctx context.Context, id string, p map[string]string) error {
	for k := range p {
		if !slices.Contains(mutable, k) {
			return controller.Errorf(controller.Invalid, "mutable_parameters: %s can't be changed, allowed: %s", k, strings.Join(mutable, ", "))
		}
	}
	if err := checkParameters(p, controller.Access{}); err != nil {
		return err
	}
	s, err := b.session(ctx)
	if err != nil {
		return err
	}
	v, err := s.Volume(ctx, id)
	if csp.StatusOf(err) == http.StatusNotFound {
		return notFound(id)
	}
	if err != nil {
		return fail(ctx, err, nil, "volume %s", id)
	}
	q := csp.Volume{ID: id, Group: v.Group, Config: map[string]any{}}
	for k, want := range p {
		switch has, _ := v.Config[snake(k)].(string); {
		case k == paramDescription && v.Description != want:
			q.Description = want
		case k != paramDescription && has != want:
			q.Config[snake(k)] = want
		}
	}
	if q.Description == "" && len(q.Config) == 0 {
		return nil
	}
	if _, err := s.ChangeVolume(ctx, q); err != nil {
		// The volume was there: what isn't is a CPG, say.
		return fail(ctx, err, kinds{http.StatusNotFound: controller.Invalid}, "changing volume %s to %v", id, p)
	}
	return nil
}
