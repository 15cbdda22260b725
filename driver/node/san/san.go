// Package san is a node of a storage area network: which host it is to the
// arrays, and which of its multipath devices is the volume that the controller
// exported to it, over iSCSI or Fibre Channel.
//
// A volume is known by its serial number (its WWN) and by nothing else. A LUN
// number says where to look for it: arrays give the number of a volume that is
// gone to the next one, and Linux keeps a SCSI device, with the identity that it
// had when it was found, until somebody deletes it. I/O over such a stale device
// reaches the other volume. Therefore each path is asked again who it is before
// it is used, paths that lead elsewhere are deleted, and a volume that leaves the
// node takes its map and its paths with it ([SAN.Release]).
package san

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"time"

	"k8s.io/utils/exec"

	"github.com/csilab/csilab/driver/node"
)

// Host is what is read, written and run of the operating system.
type Host interface {
	Stat(path string) (fs.FileInfo, error)
	ReadDir(path string) ([]fs.DirEntry, error)
	ReadFile(path string) ([]byte, error)
	WriteFile(path string, data []byte, perm fs.FileMode) error
	MkdirAll(path string, perm fs.FileMode) error
	Remove(path string) error
	EvalSymlinks(path string) (string, error)
	DeviceSize(path string) (int64, error)
	Exec() exec.Interface
}

// Config of a node.
type Config struct {
	Host Host // required
	// NodeName is the node's name in the cluster; required.
	NodeName string
	// Cluster holds what nodes know of each other; nil: there is none, and the
	// node id tells all that the controller needs.
	Cluster Cluster
	// CHAP names the Secret with the credentials of volumes that don't name one;
	// zero: none.
	CHAP SecretName
	// StateDir keeps the node's id and which volumes it holds over restarts and
	// boots; "": DefaultStateDir.
	StateDir string
	// Wait for a device to appear; 0: 30 s, below the two minutes that kubelet
	// gives a call (k8s v1.37, pkg/volume/csi/csi_plugin.go, csiTimeout).
	Wait time.Duration
	Log  *slog.Logger // nil discards
}

// DefaultStateDir is upstream's, which its manifests mount from the node.
const DefaultStateDir = "/etc/hpe-storage"

// ZoneLabel is the label of a Kubernetes node that is its topology.
const ZoneLabel = "csi.hpe.com/zone"

// SAN implements node.Backend.
type SAN struct {
	cfg  Config
	host Host
	log  *slog.Logger
	// turn serialises what changes the set of devices and sessions: iscsiadm's
	// database and a scan are the node's, not a volume's.
	turn turn
	// notes serialises scans for a volume with the end of its note: what a scan
	// finds of one that has left, nobody would take off the node.
	notes turn
	// lacking are volumes that could have more paths.
	lacking *lacking
	// failed is when a portal last failed, by address.
	failed map[string]time.Time
}

var _ node.Backend = (*SAN)(nil)

// New returns a node.
func New(cfg Config) (*SAN, error) {
	switch {
	case cfg.Host == nil:
		return nil, errors.New("san: Config.Host is nil")
	case cfg.NodeName == "":
		return nil, errors.New("san: Config.NodeName is empty")
	case cfg.Wait < 0:
		return nil, fmt.Errorf("san: Config.Wait is %s, must not be negative", cfg.Wait)
	case cfg.StateDir == "":
		cfg.StateDir = DefaultStateDir
	case !path.IsAbs(cfg.StateDir):
		return nil, fmt.Errorf("san: Config.StateDir is %q, must be an absolute path", cfg.StateDir)
	}
	if cfg.Wait == 0 {
		cfg.Wait = 30 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &SAN{cfg: cfg, host: cfg.Host, log: cfg.Log, turn: make(turn, 1), notes: make(turn, 1), lacking: newLacking(), failed: map[string]time.Time{}}, nil
}

// Traits implements node.Backend.
func (s *SAN) Traits() node.Traits { return node.Traits{SharedBlock: true, Shares: true} }

// turn is for one at a time.
type turn chan struct{}

// take waits for the turn.
func (t turn) take(ctx context.Context) (give func(), err error) {
	select {
	case t <- struct{}{}:
		return func() { <-t }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// pause waits between two looks, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
