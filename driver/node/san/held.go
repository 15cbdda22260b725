package san

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/node"
)

// What a volume is on the node can't be read from anywhere once it is unmounted
// (a raw block volume never is mounted), but its paths must be deleted then. So
// each volume that was ever looked for has a file, made before its first path is
// and removed after its last. What matters is in the file's name, which is there
// whole or not at all:
//
//	<state>/volumes/<first 32 hex digits of SHA-256 of the volume id>-<serial>
//
// Its content, JSON, tells people more, where paths to it are to be looked for
// when a session is new, and whether its targets are to be logged out of.
type holding struct {
	Volume   string      `json:"volume"`
	Protocol string      `json:"protocol"`
	Scope    string      `json:"scope,omitempty"`
	CHAP     SecretName  `json:"chapSecret,omitzero"` // that of its StorageClass
	Arrays   []heldArray `json:"arrays"`
}

type heldArray struct {
	LUN     int      `json:"lun"`
	Targets []string `json:"targets"`
	IPs     []string `json:"ips,omitempty"`
}

// export is what the volume was exported as.
func (h holding) export(serial string) export {
	e := export{serial: serial, protocol: h.Protocol, scope: h.Scope}
	for _, a := range h.Arrays {
		e.arrays = append(e.arrays, array{lun: a.LUN, targets: a.Targets, ips: a.IPs})
	}
	return e
}

func (h holding) targets() []string {
	var out []string
	for _, a := range h.Arrays {
		out = append(out, a.Targets...)
	}
	return out
}

func (s *SAN) holdings() string { return path.Join(s.cfg.StateDir, "volumes") }

func key(volume string) string {
	h := sha256.Sum256([]byte(volume))
	return hex.EncodeToString(h[:16])
}

// hold notes a volume. A volume that comes back with another serial number is
// noted twice, and both are let go of.
func (s *SAN) hold(v node.Volume, e export) error {
	volume := v.ID
	h := holding{Volume: volume, Protocol: e.protocol, Scope: e.scope, CHAP: SecretName{Namespace: v.Context[keyCHAPNamespace], Name: v.Context[keyCHAPSecret]}}
	for _, a := range e.arrays {
		h.Arrays = append(h.Arrays, heldArray{a.lun, a.targets, a.ips})
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	data = append(data, '\n')
	file := path.Join(s.holdings(), key(volume)+"-"+e.serial)
	if have, err := s.host.ReadFile(file); err == nil && bytes.Equal(have, data) {
		return nil
	}
	if err := s.host.MkdirAll(s.holdings(), 0o700); err != nil {
		return fmt.Errorf("note of a volume: %w", err)
	}
	if err := s.host.WriteFile(file, data, 0o600); err != nil {
		return fmt.Errorf("note of a volume: %w", err)
	}
	return nil
}

func (s *SAN) heldSerials(volume string) ([]string, error) {
	names, err := s.names(s.holdings(), key(volume)+"-")
	if err != nil {
		return nil, fmt.Errorf("notes of volumes: %w", err)
	}
	var out []string
	for _, n := range names {
		out = append(out, strings.TrimPrefix(n, key(volume)+"-"))
	}
	return out, nil
}

// heldByOthers looks for other volumes with this serial number: two volume ids may
// name one volume of the array.
func (s *SAN) heldByOthers(volume, serial string) (bool, error) {
	names, err := s.names(s.holdings(), "")
	if err != nil {
		return false, fmt.Errorf("notes of volumes: %w", err)
	}
	for _, n := range names {
		if strings.HasSuffix(n, "-"+serial) && !strings.HasPrefix(n, key(volume)+"-") {
			return true, nil
		}
	}
	return false, nil
}

// holding reads a note by its file's name.
func (s *SAN) holding(name string) holding {
	var h holding
	b, err := s.host.ReadFile(path.Join(s.holdings(), name))
	if err == nil {
		// A crash may have left it empty.
		if err = json.Unmarshal(b, &h); err == nil {
			return h
		}
	}
	s.log.Warn("note of a volume", "file", name, "err", err)
	return holding{}
}

// scanHeld looks for paths to the volumes that are held, behind sessions that
// are new: their login didn't scan, and a volume that was staged while a port was
// down is to have its path when the port is back.
func (s *SAN) scanHeld(ctx context.Context, fresh []string) error {
	names, err := s.names(s.holdings(), "")
	if err != nil {
		return fmt.Errorf("notes of volumes: %w", err)
	}
	behind := map[string]export{}
	for _, n := range names {
		_, serial, _ := strings.Cut(n, "-")
		e := s.holding(n).export(serial)
		for i := range e.arrays {
			e.arrays[i].targets = slices.DeleteFunc(e.arrays[i].targets, func(t string) bool { return !slices.Contains(fresh, t) })
		}
		e.arrays = slices.DeleteFunc(e.arrays, func(a array) bool { return len(a.targets) == 0 })
		if e.protocol == iSCSI && len(e.arrays) > 0 {
			behind[n] = e
		}
	}
	return s.scanNoted(ctx, behind)
}

// scanNoted scans for volumes by their notes, and for none that has left the node
// meanwhile. It needs the turn.
func (s *SAN) scanNoted(ctx context.Context, by map[string]export) error {
	var errs []error
	for _, note := range sorted(by) {
		give, err := s.notes.take(ctx)
		if err != nil {
			return err
		}
		if _, err := s.host.Stat(path.Join(s.holdings(), note)); err == nil {
			e := by[note]
			before, err := s.look(e.serial, e.luns(), false)
			if err == nil {
				err = s.scan(e)
				s.strip(e, before)
			}
			errs = append(errs, err)
		}
		give()
	}
	return errors.Join(errs...)
}

func (s *SAN) drop(volume, serial string) error {
	err := s.host.Remove(path.Join(s.holdings(), key(volume)+"-"+serial))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note of a volume: %w", err)
	}
	return nil
}

// Held implements node.Backend.
func (s *SAN) Held(volume string) (device string, held bool, err error) {
	serials, err := s.heldSerials(volume)
	if err != nil || len(serials) == 0 {
		return "", false, err
	}
	for _, serial := range serials {
		m, ok, err := s.mapOf(serial)
		if err != nil {
			return "", true, err
		}
		if ok {
			return m.node(), true, nil
		}
	}
	return "", true, nil
}
