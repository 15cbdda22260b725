package cns

import (
	"fmt"
	"slices"
)

// Limits of the key/value pairs of a disk. Unverified: the real ones.
const (
	MaxValues   = 256
	MaxKeyBytes = 256
	MaxValBytes = 4096
)

// mergeValues sets and deletes keys. The result is sorted by key.
func mergeValues(old, set []Label, remove []string) ([]Label, error) {
	seen := map[string]bool{}
	for _, kv := range set {
		switch {
		case kv.Key == "" || len(kv.Key) > MaxKeyBytes:
			return nil, &Error{Kind: InvalidArgument, Field: "metadata", Value: kv.Key, Reason: fmt.Sprintf("allowed are keys of 1 to %d bytes", MaxKeyBytes)}
		case len(kv.Value) > MaxValBytes:
			return nil, &Error{Kind: InvalidArgument, Field: "metadata", Value: kv.Key, Reason: fmt.Sprintf("allowed are values of %d bytes", MaxValBytes)}
		case seen[kv.Key]:
			// "keys must be unique within the list" (VSLM API reference).
			return nil, &Error{Kind: InvalidArgument, Field: "metadata", Value: kv.Key, Reason: "given twice"}
		}
		seen[kv.Key] = true
	}
	var out []Label
	for _, kv := range old {
		if !seen[kv.Key] && !slices.Contains(remove, kv.Key) {
			out = append(out, kv)
		}
	}
	for _, kv := range set {
		if slices.Contains(remove, kv.Key) { // Unverified: which of the two would win
			return nil, &Error{Kind: InvalidArgument, Field: "deleteKeys", Value: kv.Key, Reason: "set and deleted in one call"}
		}
		out = append(out, kv)
	}
	if len(out) > MaxValues {
		return nil, &Error{Kind: InvalidArgument, Field: "metadata", Value: fmt.Sprint(len(out)), Reason: fmt.Sprintf("allowed are %d keys", MaxValues)}
	}
	slices.SortFunc(out, func(a, b Label) int { return compare(a.Key, b.Key) })
	return out, nil
}

// UpdateValues sets and deletes key/value pairs; deleting a key that isn't
// there passes. Errors: NotFound, InvalidArgument.
func (c *Core) UpdateValues(id string, set []Label, remove []string) (Disk, error) {
	v, ok := c.disk(id)
	if !ok {
		return Disk{}, noDisk(id)
	}
	values, err := mergeValues(v.Values, set, remove)
	if err != nil {
		return Disk{}, err
	}
	v.Values = values
	return v.Disk.clone(), nil
}

// AttachTag attaches a tag; one that is attached already passes. Errors:
// NotFound, InvalidArgument (empty).
func (c *Core) AttachTag(id string, t Tag) error {
	v, ok := c.disk(id)
	if !ok {
		return noDisk(id)
	}
	if t.Category == "" || t.Name == "" {
		return &Error{Kind: InvalidArgument, Field: "tag", Value: t.Category + "/" + t.Name, Reason: "category or name is empty"}
	}
	if !slices.Contains(v.Tags, t) {
		v.Tags = append(v.Tags, t)
		add(c.byTag, t, v)
	}
	return nil
}

// DetachTag detaches a tag. Errors: NotFound (the disk, or the tag on it).
func (c *Core) DetachTag(id string, t Tag) error {
	v, ok := c.disk(id)
	if !ok {
		return noDisk(id)
	}
	i := slices.Index(v.Tags, t)
	if i < 0 {
		return &Error{Kind: NotFound, Field: "tag", Value: t.Category + "/" + t.Name, Reason: "not on the disk"}
	}
	v.Tags = slices.Delete(v.Tags, i, i+1)
	drop(c.byTag, t, v)
	return nil
}

// Tagged returns the ids of the disks that have a tag, sorted.
func (c *Core) Tagged(t Tag) []string {
	return sortedSet(c.byTag[t])
}
