package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// leftover is a device with data and without a format: somebody's, or what a
// mkfs of ours that was killed has left. It is ErrNotBlank.
type leftover struct {
	device string
	offset int
}

func (l leftover) Error() string {
	return fmt.Sprintf("%v: %s has data at offset %d", ErrNotBlank, l.device, l.offset)
}

func (leftover) Unwrap() error { return ErrNotBlank }

// intents are files that say of which volumes a mkfs of this node's was begun
// and has not ended: such a volume was blank, no pod has seen it, and a mkfs
// that was killed half way may be repeated. mke2fs writes its superblock last,
// so that nothing on the device tells it. A file that is lost, or the volume on
// another node, is a device that is refused: never the other way round.
type intents struct {
	host Host
	dir  string // "": none are kept
}

func (i intents) file(volume string) string {
	h := sha256.Sum256([]byte(volume))
	return path.Join(i.dir, hex.EncodeToString(h[:16]))
}

// begin notes that a mkfs of a volume begins.
func (i intents) begin(volume string) error {
	if i.dir == "" {
		return nil
	}
	if err := i.host.MkdirAll(i.dir, 0o700); err != nil {
		return fmt.Errorf("note of a mkfs: %w", err)
	}
	if err := i.host.WriteFile(i.file(volume), []byte(volume+"\n"), 0o600); err != nil {
		return fmt.Errorf("note of a mkfs: %w", err)
	}
	return nil
}

// begun says whether one did that has not ended.
func (i intents) begun(volume string) bool {
	if i.dir == "" {
		return false
	}
	_, err := i.host.Stat(i.file(volume))
	return err == nil
}

// end notes that a volume has a filesystem.
func (i intents) end(volume string) error {
	if i.dir == "" {
		return nil
	}
	if err := i.host.Remove(i.file(volume)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note of a mkfs: %w", err)
	}
	return nil
}
