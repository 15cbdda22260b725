package san

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// What a volume is on the node can't be read from anywhere once it is unmounted
// (a raw block volume never is mounted), but its paths must be deleted then. So
// each volume that was ever looked for has a file, made before its first path is
// and removed after its last. What matters is in the file's name, which is there
// whole or not at all:
//
//	<state>/volumes/<first 32 hex digits of SHA-256 of the volume id>-<serial>
//
// Its content, JSON, tells people more, and which targets to log out of.
type holding struct {
	Volume   string   `json:"volume"`
	Protocol string   `json:"protocol"`
	Targets  []string `json:"targets,omitempty"` // of the volume alone
}

func (s *SAN) holdings() string { return path.Join(s.cfg.StateDir, "volumes") }

func key(volume string) string {
	h := sha256.Sum256([]byte(volume))
	return hex.EncodeToString(h[:16])
}

// hold notes a volume. A volume that comes back with another serial number is
// noted twice, and both are let go of.
func (s *SAN) hold(volume string, e export) error {
	have, err := s.heldSerials(volume)
	if err != nil {
		return err
	}
	for _, serial := range have {
		if serial == e.serial {
			return nil
		}
	}
	h := holding{Volume: volume, Protocol: e.protocol}
	if e.scope == "volume" && e.protocol == iSCSI {
		h.Targets = e.targets()
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := s.host.MkdirAll(s.holdings(), 0o700); err != nil {
		return fmt.Errorf("note of a volume: %w", err)
	}
	if err := s.host.WriteFile(path.Join(s.holdings(), key(volume)+"-"+e.serial), append(data, '\n'), 0o600); err != nil {
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

func (s *SAN) holding(volume, serial string) holding {
	var h holding
	b, err := s.host.ReadFile(path.Join(s.holdings(), key(volume)+"-"+serial))
	if err == nil {
		// A crash may have left it empty.
		if err = json.Unmarshal(b, &h); err == nil {
			return h
		}
	}
	s.log.Warn("note of a volume", "volume", volume, "err", err)
	return holding{}
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
	b, err := s.look()
	if err != nil {
		return "", true, err
	}
	for _, serial := range serials {
		if m, ok := b.byUUID(mapUUID(serial)); ok {
			return m.node(), true, nil
		}
	}
	return "", true, nil
}
