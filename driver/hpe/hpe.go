package hpe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/csilab/csilab/driver/controller"
	"github.com/csilab/csilab/driver/hpe/csp"
	"github.com/csilab/csilab/driver/hpe/kube"
	"github.com/csilab/csilab/driver/record"
	"github.com/csilab/csilab/driver/trace"
)

// Limits of a volume. Source: WSAPI developer's guide, sizeMiB; larger systems
// of the family allow more.
const (
	MinBytes = 256 << 20
	MaxBytes = 16 << 40
)

// DefaultMaxVolumes is how many volumes a node takes, as upstream's
// MAX_VOLUMES_PER_NODE.
const DefaultMaxVolumes = 100

// FSTypes are the file systems that a node can make.
var FSTypes = []string{"ext3", "ext4", "xfs"}

// DefaultFSType is upstream's.
const DefaultFSType = "xfs"

// Config of the backend. The zero value works, with a Secret in each request.
type Config struct {
	// Secret is used where a request has none: in ListVolumes, which can't have
	// one, and in calls whose class names none. Keys as in csp.FromSecret.
	Secret map[string]string
	// SecretSource is asked for it each time instead, so that a change is
	// noticed; it overrides Secret.
	SecretSource func(context.Context) (map[string]string, error)
	// Cluster is the Kubernetes cluster, nil for none (upstream: --flavor
	// vanilla).
	Cluster kube.Cluster
	// CHAPSecretName and CHAPSecretNamespace name the Secret with chapUser and
	// chapPassword for volumes whose class names none.
	CHAPSecretName, CHAPSecretNamespace string
	// CopyWait is how long CreateVolume waits for the provider to fill the new
	// volume before it says Aborted. 0 means 2 s, negative not at all.
	CopyWait time.Duration
	// Timeout, Retries and Pause are those of csp.Config.
	Timeout time.Duration
	Retries int
	Pause   time.Duration
}

// Options of New.
type Options struct {
	Config Config
	// Dial connects to providers; nil is the operating system's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Transport is used in place of one over Dial.
	Transport http.RoundTripper
	// Records keeps which nodes have a volume; required.
	Records record.Store
	// Forgetful says that Records ends with the process: that it knows no node of
	// a volume then doesn't tell that none has it.
	Forgetful bool
	// Now is the time of records; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger // nil discards
}

// Backend implements controller.Backend and controller.Modifier.
type Backend struct {
	cfg       Config
	records   record.Store
	forgetful bool
	log       *slog.Logger
	now       func() time.Time
	providers *providers
	close     func()
}

var (
	_ controller.Backend  = (*Backend)(nil)
	_ controller.Modifier = (*Backend)(nil)
)

// New returns a backend. It calls nobody yet.
func New(opt Options) (*Backend, error) {
	if opt.Records == nil {
		return nil, errors.New("hpe: Options.Records is nil")
	}
	if (opt.Config.CHAPSecretName == "") != (opt.Config.CHAPSecretNamespace == "") {
		return nil, fmt.Errorf("hpe: Config.CHAPSecretName is %q and CHAPSecretNamespace %q: both or none must be set", opt.Config.CHAPSecretName, opt.Config.CHAPSecretNamespace)
	}
	if len(opt.Config.Secret) > 0 {
		if _, _, err := csp.FromSecret(opt.Config.Secret); err != nil {
			return nil, fmt.Errorf("hpe: Config.Secret: %w", err)
		}
	}
	if opt.Config.CopyWait == 0 {
		opt.Config.CopyWait = 2 * time.Second
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	b := &Backend{cfg: opt.Config, records: opt.Records, forgetful: opt.Forgetful, log: opt.Log, now: opt.Now, close: func() {}}
	rt := opt.Transport
	if rt == nil {
		t := csp.Transport(opt.Dial)
		rt, b.close = t, t.CloseIdleConnections
	}
	b.providers = newProviders(func(a csp.Account) *csp.Client {
		return csp.New(csp.Config{Account: a, Transport: trace.Transport(rt), Timeout: opt.Config.Timeout, Retries: opt.Config.Retries, Pause: opt.Config.Pause})
	})
	return b, nil
}

// Close ends what the backend keeps open. Sessions at providers end there by
// themselves.
func (b *Backend) Close(context.Context) error { b.close(); return nil }

// Probe says whether the backend is ready: always, since which provider it
// needs is known with a request only.
func (b *Backend) Probe(context.Context) error { return nil }

// Abilities implements controller.Backend. A provider tells neither the nodes
// of a volume nor free space.
func (b *Backend) Abilities() controller.Abilities {
	return controller.Abilities{Clones: true, ReadOnly: true, SharedBlock: true, SharedFiles: true, SnapshotParameters: true, Modify: true}
}

// Nodes implements controller.Backend; it isn't called, see Abilities.
func (b *Backend) Nodes(context.Context, string) ([]string, error) {
	return nil, controller.Errorf(controller.Internal, "a provider doesn't tell the nodes of a volume")
}

// Capacity implements controller.Backend; it isn't called, see Abilities.
func (b *Backend) Capacity(context.Context, map[string]string, map[string]string) (controller.Capacity, error) {
	return controller.Capacity{}, controller.Errorf(controller.Internal, "a provider doesn't tell free space")
}
