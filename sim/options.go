package sim

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/transport"
)

// Options of a lab. The zero value, after WithDefaults, is a lab with two
// nodes on the best hosts that this machine has.
type Options struct {
	// Backend is vsphere or hpe ("": vsphere).
	Backend string
	// Protocol is how nodes reach an array: iscsi or fc ("": iscsi, and none on
	// vSphere).
	Protocol string
	// Arrays is how many there are; 0 means 1, on vSphere none. Two are a pair
	// for remote copy.
	Arrays int
	// CopyMiBs is how fast arrays copy content, in MiB per second; 0 means 1000.
	CopyMiBs int64
	// Storage are the arrays, with what is peculiar to each, in place of Arrays and
	// CopyMiBs; nil means those.
	Storage *Storage
	// SameInitiator gives all nodes the initiator name of the first: a mistake
	// that machines have that were cloned.
	SameInitiator bool
	// NoPathRetry is what I/O of an array's nodes does that has no path
	// (no_path_retry of multipath.conf); 0 means 18, as HPE recommends: it waits
	// for 90 s. With fast timers that time has passed at once.
	NoPathRetry host.NoPathRetry
	// KeepHosts lets the storage provider leave a node's host on the array when
	// its last export is gone, as with upstream's DISABLE_HOST_DELETION.
	KeepHosts bool
	// NodePrefix is what the names of an array's nodes begin with, before their
	// number; "" means "node-".
	NodePrefix string
	// Seed of all ids and draws; 0 means 1.
	Seed uint64
	// Nodes is how many there are; 0 means 2. They are named node-1, node-2, …
	Nodes int
	// VCenters, with their nodes; none means one with Nodes and Zones. What is
	// given here takes the place of Nodes, Zones and FreeSlots. Several need
	// zones: the driver places volumes on them by topology.
	VCenters []VCenter
	// Zones are given to the nodes in turn; none means no topology.
	Zones []string
	// Host is real (root on Linux), memory or auto ("": auto).
	Host string
	// Timers of kubelets and controllers: real or fast ("": fast, in a bubble real).
	Timers string
	// Arm arms fault rules before drivers, kubelets and controllers start; nil
	// arms none.
	Arm func(*Lab) error
	// Bubble says that the lab runs in a testing/synctest bubble: memory hosts,
	// in-memory connections.
	Bubble bool
	// MaxVolumesPerNode is what each node says it takes; 0 means 59.
	MaxVolumesPerNode int
	// FreeSlots is how many disks each VM still takes; 0 means all that a VM
	// has besides its boot disk.
	FreeSlots int
	// TopologyGateOff leaves the provisioner's feature gate Topology off although
	// the nodes have zones: a mistake that clusters have.
	TopologyGateOff bool
	// ForgetfulKubelets reconstruct at their restart only what pod directories
	// show, as kubelet v1.37.2 does (kubernetes#121937): a volume that was
	// unpublished but not unstaged when it stopped is forgotten. And one that the
	// Node's status did not list then is detached later while it is still staged.
	// See kubeletsim.Config.Forgetful.
	ForgetfulKubelets bool
	// DisableForceDetach is kube-controller-manager's
	// --disable-force-detach-on-timeout: a volume that is mounted on a node that
	// is not ready stays there without the out-of-service taint.
	DisableForceDetach bool
	// PinCertificate lets the driver trust its vCenter by the thumbprint of the
	// certificate, and read its configuration from a file that Redeploy writes
	// again while the driver runs. It needs TLS, which a bubble does not have.
	PinCertificate bool
	// ProvisionTimeout is how long the provisioner waits for a call to the driver
	// (--timeout of external-provisioner); 0 means what the upstream manifest has.
	ProvisionTimeout time.Duration
	// AlterCSI may replace a request of a sidecar before it is sent, for mutants.
	AlterCSI func(op string, req any) any
	// Settle bounds how long Check and Empty wait for quiet; 0 means 45 s, with
	// real timers 15 min.
	Settle time.Duration
	// MaxCalls bounds how many calls the ledger keeps; 0 keeps all. The oldest go
	// to Spill as JSON lines, or are dropped where that is nil.
	MaxCalls int
	Spill    io.Writer
	// StateRoot is where labs keep their files; "" means a directory below
	// os.TempDir.
	StateRoot string
	// Log; nil discards.
	Log *slog.Logger
}

// EnvironmentError says what this machine lacks for a lab.
type EnvironmentError struct{ Err error }

func (e *EnvironmentError) Error() string { return e.Err.Error() }

// Unwrap gives what is missing.
func (e *EnvironmentError) Unwrap() error { return e.Err }

// WithDefaults fills in what is zero.
func (o Options) WithDefaults() Options {
	if o.Backend == "" {
		o.Backend = VSphere
	}
	if o.Protocol == "" && o.Backend == HPE {
		o.Protocol = "iscsi"
	}
	if o.Seed == 0 {
		o.Seed = 1
	}
	if o.NodePrefix == "" {
		o.NodePrefix = "node-"
	}
	if len(o.VCenters) > 0 {
		o.Nodes, o.Zones, o.FreeSlots = 0, nil, 0
		for _, v := range o.VCenters {
			o.Nodes += len(v.Nodes)
		}
	} else if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.Bubble {
		o.Host = "memory"
	}
	if o.Host == "" || o.Host == "auto" {
		o.Host = "memory"
		if host.RealSupported() == nil {
			o.Host = "real"
		}
	}
	if o.Timers == "" {
		o.Timers = "fast"
		if o.Bubble {
			o.Timers = "real"
		}
	}
	if o.NoPathRetry == host.RetryPassed && o.Timers == "real" {
		o.NoPathRetry = host.RetryRecommended
	}
	if o.StateRoot == "" {
		o.StateRoot = filepath.Join(os.TempDir(), fmt.Sprintf("csilab-%d", os.Getuid()))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o Options) validate() error {
	switch {
	case backends[o.Backend].driver == "":
		return fmt.Errorf("Options.Backend is %q, allowed are %s", o.Backend, strings.Join(slices.Sorted(maps.Keys(backends)), ", "))
	case o.Backend == HPE && o.Protocol != "iscsi" && o.Protocol != "fc":
		return fmt.Errorf("Options.Protocol is %q, allowed are iscsi, fc", o.Protocol)
	case o.Backend != HPE && o.Protocol != "":
		return fmt.Errorf("Options.Protocol is %q: backend %s has none", o.Protocol, o.Backend)
	case o.Arrays < 0 || o.Arrays > 4 || o.Arrays > 0 && o.Backend != HPE:
		return fmt.Errorf("Options.Arrays is %d, allowed are 0 to 4 with backend hpe", o.Arrays)
	case o.KeepHosts && o.Backend != HPE:
		return fmt.Errorf("Options.KeepHosts is true, allowed with backend hpe")
	case o.NodePrefix != "node-" && o.Backend != HPE:
		return fmt.Errorf("Options.NodePrefix is %q, allowed with backend hpe; a vCenter's VMs have their names in Options.VCenters", o.NodePrefix)
	case len(validation.IsDNS1123Label(o.NodePrefix+"1")) > 0:
		return fmt.Errorf("Options.NodePrefix is %q, allowed is what begins the name of a Kubernetes node: %s", o.NodePrefix, validation.IsDNS1123Label(o.NodePrefix + "1")[0])
	case o.Backend != VSphere && len(o.VCenters) > 0:
		return fmt.Errorf("Options.VCenters: backend %s has none", o.Backend)
	case o.Nodes < 1 && len(o.VCenters) == 0:
		return fmt.Errorf("Options.Nodes is %d, allowed are 1 and more", o.Nodes)
	case o.Host != "real" && o.Host != "memory":
		return fmt.Errorf("Options.Host is %q, allowed are real, memory, auto", o.Host)
	case o.Timers != "real" && o.Timers != "fast":
		return fmt.Errorf("Options.Timers is %q, allowed are real, fast", o.Timers)
	case o.MaxVolumesPerNode < 0 || o.MaxVolumesPerNode > 255:
		return fmt.Errorf("Options.MaxVolumesPerNode is %d, allowed are 0 to 255", o.MaxVolumesPerNode)
	case o.MaxCalls < 0:
		return fmt.Errorf("Options.MaxCalls is %d, allowed are 0 and more", o.MaxCalls)
	case o.PinCertificate && (o.Bubble || o.Backend != VSphere || len(o.VCenters) > 1):
		return fmt.Errorf("Options.PinCertificate: there is no certificate in a bubble, with backend %s, or not one alone", o.Backend)
	case o.ProvisionTimeout < 0:
		return fmt.Errorf("Options.ProvisionTimeout is %v, allowed are 0 and more", o.ProvisionTimeout)
	case o.FreeSlots < 0:
		return fmt.Errorf("Options.FreeSlots is %d, allowed are 0 and more", o.FreeSlots)
	}
	if err := o.validateStorage(); err != nil {
		return err
	}
	return o.validateVCenters()
}

// SettleTime is Settle with its default: 45 s, with real timers 15 min.
func (o Options) SettleTime() time.Duration {
	switch {
	case o.Settle > 0:
		return o.Settle
	case o.Timers == "real":
		return 15 * time.Minute
	}
	return 45 * time.Second
}

// System is the backend in a word, e.g. "vsphere", "hpe-fc".
func (o Options) System() string {
	o = o.WithDefaults()
	if o.Protocol == "" {
		return o.Backend
	}
	return o.Backend + "-" + o.Protocol
}

// Preflight says whether this machine can run a lab with these options; the
// error is an *EnvironmentError that names what is missing.
func Preflight(o Options) error {
	o = o.WithDefaults()
	if err := o.validate(); err != nil {
		return err
	}
	if o.Host == "real" {
		if err := host.RealSupported(); err != nil {
			return &EnvironmentError{fmt.Errorf("real hosts: %w", err)}
		}
	}
	if over := len(o.longestSocket()) - maxSocket; over > 0 && !o.Bubble {
		return &EnvironmentError{fmt.Errorf("state directory %q: its path is %d bytes too long for unix sockets below it; set TMPDIR to a shorter one", o.StateRoot, over)}
	}
	if err := os.MkdirAll(o.StateRoot, 0o700); err != nil {
		return &EnvironmentError{fmt.Errorf("state directory: %w", err)}
	}
	if err := ownDirectory(o.StateRoot); err != nil {
		return &EnvironmentError{fmt.Errorf("state directory: %w", err)}
	}
	return nil
}

// maxSocket is how many bytes the path of a unix socket may have: all that the
// address holds (108 on Linux, 104 on other systems) but the NUL at its end.
const maxSocket = len(syscall.RawSockaddrUnix{}.Path) - 1

// longestSocket is the longest path of a socket of a lab with these options, in
// a directory with the longest name that os.MkdirTemp gives.
func (o Options) longestSocket() string {
	node := nodeDir(filepath.Join(o.StateRoot, labPrefix+"4294967295"), o.Nodes-1)
	if o.Host == "real" {
		node = host.SocketRootOf(node)
	}
	return transport.Wall{From: kubeletRoot, To: node}.Map(pluginPathsOf(backends[o.Backend].driver).registration)
}

// SweepWorkers is how many labs a sweep runs side by side.
func (o Options) SweepWorkers() int {
	if o.Host == "real" {
		return 2 * runtime.GOMAXPROCS(0)
	}
	return 4 * runtime.GOMAXPROCS(0)
}

// restartDelay is how long a component that ended stays down. A kubelet's
// crash loop starts with none (kubernetes v1.37.2 pkg/kubelet/kuberuntime: the
// first restart is immediate, 10 s come with the second); a process manager
// restarts a kubelet after RestartSec=10 (kubeadm's unit).
func (o Options) restartDelay() time.Duration {
	if o.Timers == "real" {
		return 10 * time.Second
	}
	return 20 * time.Millisecond
}

// SkipError says that a scenario can't be done here, and why.
type SkipError struct{ Reason string }

func (e *SkipError) Error() string { return e.Reason }

// Skip makes a SkipError.
func Skip(format string, args ...any) error { return &SkipError{fmt.Sprintf(format, args...)} }

// IsSkip tells a skip from a failure.
func IsSkip(err error) bool {
	var s *SkipError
	return errors.As(err, &s)
}
