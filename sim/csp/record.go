package csp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// The kinds of things that a virtual volume can be.
const (
	kindVolume   = "volume"
	kindSnapshot = "snapshot"
)

// record is what the provider keeps about a volume or a snapshot, on the array
// with it. Unverified: where the real one keeps it on the array; the real one
// has custom resources as well.
type record struct {
	Kind string `json:"kind"`
	// ID is the full name; a virtual volume's has 31 bytes only. A snapshot of a
	// group has its virtual volume's name.
	ID          string `json:"id,omitempty"`
	Description string `json:"desc,omitempty"`
	// Config are the parameters, as the client gave them.
	Config map[string]string `json:"cfg,omitempty"`
	// Of is the id of the volume of a snapshot, or that a volume was made of, and
	// of the volume group of a group's snapshots; Base is the id of the snapshot
	// that a volume was made of.
	Of   string `json:"of,omitempty"`
	Base string `json:"base,omitempty"`
	// Group is the snapshot group.
	Group string `json:"group,omitempty"`
	// Set and Replica name the volume set and the remote copy group that the
	// provider put the volume in.
	Set     string `json:"set,omitempty"`
	Replica string `json:"rcg,omitempty"`
	// Copy says that content is or was copied to the volume.
	Copy bool `json:"copy,omitempty"`
	// Todo: not all is done that makes the volume. Nobody sees it until then; the
	// next attempt to make it goes on.
	Todo bool `json:"todo,omitempty"`
	// Chunks is how many key/values hold Config and Description, where they are
	// too long for the comment. Their names have Side, which changes with each
	// write: what the comment names is whole, whenever a write ends.
	Chunks int `json:"chunks,omitempty"`
	Side   int `json:"side,omitempty"`
}

// maxComment and maxValue are the array's, in bytes.
const (
	maxComment = 511
	maxValue   = 511
	// maxConfig bounds what is kept of parameters and description.
	maxConfig = 16 << 10
	// maxID bounds an id: a comment has to hold it.
	maxID = 255
)

// ascii is JSON of printable ASCII only, as a comment has to be.
func ascii(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and maps of them can be marshalled
	}
	var out strings.Builder
	for _, r := range string(b) {
		switch {
		case r < 0x7f:
			out.WriteRune(r)
		case r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	return out.String()
}

// chunkKey names a key/value of a record.
func (r record) chunkKey(i int) string { return fmt.Sprintf("csp-record-%d-%d", r.Side, i) }

// encode writes a record as a comment, and as values where it is too long for
// one.
func (r record) encode() (comment string, values []string, err error) {
	if r.Chunks = 0; len(r.ID) > maxID {
		return "", nil, refuse(http.StatusBadRequest, "name has %d bytes, allowed are %d", len(r.ID), maxID)
	}
	comment = ascii(r)
	if len(comment) <= maxComment {
		return comment, nil, nil
	}
	long := ascii(record{Config: r.Config, Description: r.Description})
	if len(long) > maxConfig {
		return "", nil, refuse(http.StatusBadRequest, "config and description have %d bytes, allowed are %d", len(long), maxConfig)
	}
	for rest := range slices.Chunk([]byte(long), maxValue) {
		values = append(values, string(rest))
	}
	r.Config, r.Description, r.Chunks = nil, "", len(values)
	if comment = ascii(r); len(comment) > maxComment {
		return "", nil, refuse(http.StatusBadRequest, "name, group and source have %d bytes together, allowed are %d", len(comment), maxComment)
	}
	return comment, values, nil
}

// decodeRecord reads a comment; false where it is nobody's or someone else's.
func decodeRecord(comment string) (record, bool) {
	if !strings.HasPrefix(comment, `{"kind":`) {
		return record{}, false
	}
	var r record
	if json.Unmarshal([]byte(comment), &r) != nil || r.Kind != kindVolume && r.Kind != kindSnapshot {
		return record{}, false
	}
	return r, true
}

// fill reads what of a record is not in its comment.
func (r *record) fill(ctx context.Context, a *wsapi.Client, name string) error {
	if r.Chunks == 0 {
		return nil
	}
	values, err := a.Values(ctx, name)
	if err == nil {
		r.read(values)
	}
	return err
}

// read takes over what key/values hold of a record.
func (r *record) read(values map[string]string) {
	if r.Chunks == 0 {
		return
	}
	var long strings.Builder
	for i := range r.Chunks {
		long.WriteString(values[r.chunkKey(i)])
	}
	var x record
	if json.Unmarshal([]byte(long.String()), &x) != nil {
		r.Todo = true // made halfway
		return
	}
	r.Config, r.Description = x.Config, x.Description
}

// save writes a record to a virtual volume that is there.
func save(ctx context.Context, a *wsapi.Client, name string, r record) error {
	r.Side = 1 - r.Side
	comment, values, err := r.encode()
	if err != nil {
		return err
	}
	for i, v := range values {
		if err := a.SetValue(ctx, name, r.chunkKey(i), v); err != nil {
			return err
		}
	}
	return a.ModifyVolume(ctx, name, wsapi.VolumeChange{Comment: &comment})
}

// item is a volume or a snapshot: a virtual volume with its record.
type item struct {
	vv wsapi.Volume
	record
}

// id is that of the API.
func (i item) id() string {
	if i.ID == "" {
		return i.vv.Name
	}
	return i.ID
}

// maxName is how long a virtual volume's name may be.
const maxName = 31

func legal(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case (c == '-' || c == '.') && i > 0:
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

// short is a name of at most n bytes that stands for a longer one, made
// different from others by a hash.
func short(kind, id string, n int) string {
	h := sha256.Sum256([]byte(kind + "/" + id))
	tail := "." + hex.EncodeToString(h[:5])
	s := legal(id)
	return s[:min(len(s), n-len(tail))] + tail
}

// names are those that the virtual volume of an id may have: its first 31 bytes
// as HPE's provider has it, or a name of its own where another volume has that
// one.
func names(kind, id string) []string {
	own := short(kind, id, maxName)
	if len(id) <= maxName {
		if legal(id) == id {
			return []string{id, own}
		}
		return []string{own}
	}
	if first := id[:maxName]; legal(first) == first {
		return []string{first, own}
	}
	return []string{own}
}

// find looks a volume or a snapshot up. It is nil where there is none.
func find(ctx context.Context, a *wsapi.Client, kind, id string) (*item, error) {
	var static *item
	for i, n := range names(kind, id) {
		vv, err := a.Volume(ctx, n)
		if wsapi.NotFound(err) {
			continue
		}
		if err != nil {
			return nil, failed("looking for "+kind+" "+clip(id), err)
		}
		r, ok := decodeRecord(vv.Comment)
		x := &item{vv, r}
		if ok && r.Kind == kind && x.id() == id {
			if err := x.fill(ctx, a, n); err != nil {
				return nil, failed("reading "+kind+" "+clip(id), err)
			}
			return x, nil
		}
		// A copy that still runs and has no record is what an attempt has left whose
		// answer was lost: the next one finds it by its mark.
		if !ok && i == 0 && kind == kindVolume && vv.CopyType != wsapi.PhysicalCopy && provisionedByHand.MatchString(id) {
			static = &item{vv, record{Kind: kind, ID: id}}
		}
	}
	return static, nil
}

// provisionedByHand are ids of volumes that an administrator may have made or
// renamed on the array for a PersistentVolume of his own (static provisioning):
// the virtual volume has the first 31 bytes of it, and no record.
var provisionedByHand = regexp.MustCompile("^pvc-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")

// list lists all volumes or snapshots, in the array's order.
func list(ctx context.Context, a *wsapi.Client, kind string) ([]item, error) {
	all, err := a.Volumes(ctx)
	if err != nil {
		return nil, failed("listing "+kind+"s", err)
	}
	var out []item
	for _, vv := range all {
		r, ok := decodeRecord(vv.Comment)
		if !ok || r.Kind != kind || r.Todo {
			continue
		}
		if err := r.fill(ctx, a, vv.Name); err != nil && !wsapi.NotFound(err) {
			return nil, failed("listing "+kind+"s", err)
		}
		if !r.Todo {
			out = append(out, item{vv, r})
		}
	}
	return out, nil
}

// create makes the virtual volume of something new: mk makes it with a name and
// a comment. One that is there already with this record was made by an attempt
// whose answer was lost.
func create(ctx context.Context, a *wsapi.Client, r record, mk func(name, comment string) error) (name string, err error) {
	comment, values, err := r.encode()
	if err != nil {
		return "", err
	}
	if len(values) > 0 { // seen by nobody until they are written
		r.Todo = true
		if comment, _, err = r.encode(); err != nil {
			return "", err
		}
	}
	for _, n := range names(r.Kind, r.ID) {
		err = mk(n, comment)
		if wsapi.Is(err, wsapi.CodeVolumeThere) {
			vv, gerr := a.Volume(ctx, n)
			if gerr != nil {
				return "", gerr
			}
			if x, ok := decodeRecord(vv.Comment); !ok || x.Kind != r.Kind || x.ID != r.ID {
				continue
			}
			err = nil
		}
		if err == nil && len(values) > 0 {
			for i, v := range values {
				if err := a.SetValue(ctx, n, r.chunkKey(i), v); err != nil {
					return "", err
				}
			}
		}
		return n, err
	}
	return "", err
}

func mergeConfig(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}
