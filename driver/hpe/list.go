package hpe

import (
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
)

// A provider has no pages, so a page is cut here from the whole list, sorted. A
// token names the last entry that was seen, so that the next page begins after
// it whatever came or went meanwhile.
const tokenPrefix = "after:"

func encodeToken(last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(tokenPrefix + last))
}

func page[T any](all []T, key func(T) string, p controller.Page) (out []T, next string, err error) {
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(key(a), key(b)) })
	if p.Token != "" {
		raw, err := base64.RawURLEncoding.DecodeString(p.Token)
		after, ok := strings.CutPrefix(string(raw), tokenPrefix)
		if err != nil || !ok {
			return nil, "", controller.Errorf(controller.Aborted, "starting_token %.64q: not one of this driver", p.Token)
		}
		i, found := slices.BinarySearchFunc(all, after, func(x T, k string) int { return strings.Compare(key(x), k) })
		if found {
			i++
		}
		all = all[i:]
	}
	if p.Max > 0 && len(all) > p.Max {
		all = all[:p.Max]
		next = encodeToken(key(all[p.Max-1]))
	}
	return all, next, nil
}

// everywhere returns the sessions of all accounts: that of the request or the
// configuration, and those seen so far. None at all is no list: an empty one
// would say that there are no volumes.
func (b *Backend) everywhere(ctx context.Context) ([]*csp.Session, error) {
	if len(controller.SecretsOf(ctx)) > 0 {
		s, err := b.session(ctx)
		return []*csp.Session{s}, err
	}
	secret, err := b.secret(ctx)
	if err != nil {
		return nil, err
	}
	if len(secret) > 0 {
		// Makes it known.
		if _, err := b.session(ctx); err != nil {
			return nil, err
		}
	}
	known := b.providers.known()
	if len(known) == 0 {
		return nil, controller.Errorf(controller.Unavailable, "no storage system is known yet: no request has named one and no Secret is configured")
	}
	return known, nil
}

// Volumes implements controller.Backend.
func (b *Backend) Volumes(ctx context.Context, p controller.Page) ([]controller.Volume, string, error) {
	sessions, err := b.everywhere(ctx)
	if err != nil {
		return nil, "", err
	}
	// Two accounts may see the same system.
	seen := map[string]bool{}
	var all []controller.Volume
	for _, s := range sessions {
		vs, err := s.Volumes(ctx)
		if err != nil {
			return nil, "", fail(ctx, err, nil, "volumes of %s", s.Account())
		}
		for _, v := range vs {
			if v.ID != "" && !seen[v.ID] {
				seen[v.ID] = true
				all = append(all, controller.Volume{ID: v.ID, Bytes: int64(v.Size)})
			}
		}
	}
	return page(all, func(v controller.Volume) string { return v.ID }, p)
}

// Snapshots implements controller.Backend.
func (b *Backend) Snapshots(ctx context.Context, f controller.SnapshotFilter, p controller.Page) ([]controller.Snapshot, string, error) {
	sessions, err := b.everywhere(ctx)
	if err != nil {
		return nil, "", err
	}
	seen := map[string]bool{}
	var all []controller.Snapshot
	for _, s := range sessions {
		xs, err := snapshotsOf(ctx, s, f)
		if err != nil {
			return nil, "", fail(ctx, err, nil, "snapshots of %s", s.Account())
		}
		for _, x := range xs {
			if x.ID == "" || seen[x.ID] || strings.HasPrefix(x.Name, clonePrefix) || f.Volume != "" && x.Volume != f.Volume {
				continue
			}
			seen[x.ID] = true
			all = append(all, b.snapshot(x, 0))
		}
	}
	return page(all, func(x controller.Snapshot) string { return x.ID }, p)
}

func snapshotsOf(ctx context.Context, s *csp.Session, f controller.SnapshotFilter) ([]csp.Snapshot, error) {
	if f.ID == "" {
		return s.Snapshots(ctx, f.Volume)
	}
	x, err := s.Snapshot(ctx, f.ID)
	if csp.StatusOf(err) == http.StatusNotFound {
		return nil, nil
	}
	return []csp.Snapshot{x}, err
}
