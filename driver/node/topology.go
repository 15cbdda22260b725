package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// TopologyPrefix starts the keys of this driver's topology; a category of
// vSphere tags follows. A category may have another label as its key instead
// (section TopologyCategory of csi-vsphere.conf).
const TopologyPrefix = "topology.csi.vmware.com/"

// ParseTopology reads the segments from a file as the Downward API writes
// labels: lines of key="value" (the value quoted as a Go string) or key=value.
// Topology are the keys with TopologyPrefix and those in labels. Blank lines,
// comments (#) and other keys are skipped, since such a file holds all labels of
// a pod. Errors name the line.
func ParseTopology(data string, labels ...string) (map[string]string, error) {
	segments := map[string]string{}
	n := 0
	for line := range strings.Lines(data) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("line %d is %q, must be key=value or key=\"value\"", n, line)
		}
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if strings.HasPrefix(v, `"`) {
			u, err := strconv.Unquote(v)
			if err != nil {
				return nil, fmt.Errorf("line %d: value %s is not a quoted string", n, v)
			}
			v = u
		}
		category, ok := strings.CutPrefix(k, TopologyPrefix)
		if !ok {
			if !slices.Contains(labels, k) {
				continue
			}
			category = path.Base(k)
		}
		// CSI spec, Topology: a segment's name and value are like those of labels,
		// 63 characters at most.
		if !isName(category) {
			return nil, fmt.Errorf("line %d: key %q must be %s<category>, with a category of 1 to 63 letters, digits, '-', '_' and '.'", n, k, TopologyPrefix)
		}
		if !isName(v) {
			return nil, fmt.Errorf("line %d: value of %s is %q, must be 1 to 63 letters, digits, '-', '_' and '.'", n, k, v)
		}
		if have, ok := segments[k]; ok && have != v {
			return nil, fmt.Errorf("line %d: %s is %q and %q", n, k, have, v)
		}
		segments[k] = v
	}
	// The driver takes five categories at most (vSphere documentation, topology).
	if len(segments) > 5 {
		return nil, fmt.Errorf("has %d topology keys, at most 5 are allowed", len(segments))
	}
	if len(segments) == 0 {
		return nil, fmt.Errorf("has no topology key: none with %s", strings.Join(append([]string{TopologyPrefix}, labels...), ", nor "))
	}
	return segments, nil
}

func isName(s string) bool {
	if s == "" || len(s) > 63 {
		return false
	}
	for i, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9':
		case (c == '-' || c == '_' || c == '.') && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return true
}

// TopologyFile reads the segments from a file of the node, and waits for the
// file (or for one that is right) up to wait, as the upstream driver waits for
// its CSINodeTopology object. watch may be nil.
func TopologyFile(host interface {
	ReadFile(string) ([]byte, error)
}, file string, labels []string, wait time.Duration, watch func(ctx context.Context, dir string) (<-chan struct{}, error)) func(context.Context) (map[string]string, error) {
	read := func() (map[string]string, error) {
		data, err := host.ReadFile(file)
		if err != nil {
			return nil, err
		}
		segments, err := ParseTopology(string(data), labels...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return segments, nil
	}
	return func(ctx context.Context) (map[string]string, error) {
		segments, err := read()
		if err == nil {
			return segments, nil
		}
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		var changed <-chan struct{}
		if watch != nil {
			if changed, err = watch(ctx, path.Dir(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
		// A directory that isn't there yet can't be watched, and an event may come
		// before the file is whole.
		t := time.NewTicker(time.Second)
		defer t.Stop()
		for {
			if segments, err = read(); err == nil {
				return segments, nil
			}
			select {
			case _, open := <-changed:
				if !open {
					changed = nil
				}
			case <-t.C:
			case <-ctx.Done():
				return nil, fmt.Errorf("waited %s: %w", wait, err)
			}
		}
	}
}
