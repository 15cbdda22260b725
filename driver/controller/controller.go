// Package controller is the CSI Controller service, once for all backends: it
// checks requests as the specification says, keeps calls on one subject
// apart, and maps typed errors to codes. What is stored where is the
// Backend's.
package controller

import (
	"log/slog"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Config of the service.
type Config struct {
	// Backend is required.
	Backend Backend
	// Log; nil discards.
	Log *slog.Logger
	// DefaultBytes is the size of a volume whose request names none. 0 means
	// 10 GiB.
	DefaultBytes int64
	// MinBytes is the smallest volume that is made; a request for less gets as
	// much. 0 means Granularity.
	MinBytes int64
	// Granularity is what sizes are rounded up to, in bytes. 0 means 1 MiB.
	Granularity int64
	// MaxBytes is the largest volume. 0 means 62 TiB, the largest virtual disk
	// of vSphere.
	MaxBytes int64
	// FSTypes are the file systems that a capability may name, beside none.
	// nil means ext3, ext4, xfs and ntfs.
	FSTypes []string
}

// New returns the service. It panics without a backend.
func New(cfg Config) csi.ControllerServer {
	if cfg.Backend == nil {
		panic("controller: Config.Backend is nil")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.DefaultBytes == 0 {
		cfg.DefaultBytes = 10 << 30
	}
	if cfg.Granularity == 0 {
		cfg.Granularity = 1 << 20
	}
	if cfg.MinBytes == 0 {
		cfg.MinBytes = cfg.Granularity
	}
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 62 << 40
	}
	if cfg.FSTypes == nil {
		cfg.FSTypes = []string{"ext3", "ext4", "xfs", "ntfs"}
	}
	return &server{cfg: cfg, backend: cfg.Backend, can: cfg.Backend.Abilities(), log: cfg.Log}
}

type server struct {
	csi.UnimplementedControllerServer

	cfg      Config
	backend  Backend
	can      Abilities
	log      *slog.Logger
	inFlight InFlight
}
