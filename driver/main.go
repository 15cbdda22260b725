package driver

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/driver/hpe/kube/api"
)

// Exit codes of Main.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Version is what --version and GetPluginInfo say; set it at link time with
// -ldflags "-X github.com/csilab/csilab/driver.Version=v1.2.3".
var Version string

func version() string {
	if Version != "" {
		return Version
	}
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" {
		return strings.Trim(bi.Main.Version, "()")
	}
	return "dev"
}

// Main runs the driver as a command until SIGTERM or SIGINT. It returns the
// exit code: 0 after a signal, 2 for a wrong flag or configuration, 1 for any
// other failure. Options change what flags and environment made.
func Main(args []string, getenv func(string) string, stdout, stderr io.Writer, options ...func(*Config)) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A log that nobody reads any more doesn't end the driver. Notify, since what
	// is ignored would be ignored in mkfs and mount too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return run(ctx, args, getenv, stdout, stderr, options...)
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer, options ...func(*Config)) int {
	if getenv == nil {
		getenv = func(string) string { return "" }
	}
	cfg, err := parse(args, getenv, stdout, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp), errors.Is(err, errVersion):
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "csi-driver: %v\n", err)
		return exitUsage
	}
	for _, o := range options {
		o(&cfg)
	}
	klog.SetSlogLogger(cfg.Log)
	d, err := New(cfg)
	if err != nil {
		fmt.Fprintf(stderr, "csi-driver: %v\n", err)
		return exitUsage
	}
	if err := d.Run(ctx); err != nil {
		fmt.Fprintf(stderr, "csi-driver: %v\n", err)
		return exitFailed
	}
	return exitOK
}

var errVersion = errors.New("version was asked for")

// parse reads flags and, where a flag isn't given, environment variables. Those
// with a name of upstream's mean what they mean there.
func parse(args []string, getenv func(string) string, stdout, stderr io.Writer) (Config, error) {
	fs := flag.NewFlagSet("csi-driver", flag.ContinueOnError)
	fs.SetOutput(stderr)
	var cfg Config
	var bad error
	str := func(p *string, name, env, def, usage string) {
		if env != "" {
			usage += " (environment: " + env + ")"
			if v := getenv(env); v != "" {
				def = v
			}
		}
		fs.StringVar(p, name, def, usage)
	}
	var mode, backend, level string
	str(&backend, "backend", "CSI_BACKEND", string(VSphere), "storage `system`: vsphere or hpe")
	str(&mode, "mode", "X_CSI_MODE", string(All), "services to run: controller, node or all")
	str(&cfg.Endpoint, "endpoint", "CSI_ENDPOINT", "", "where to listen, `unix:///path` or tcp://host:port; required")
	str(&cfg.NodeName, "node-name", "NODE_NAME", "", "Kubernetes `name` of the node; required for a node with hpe")
	str(&cfg.ConfigFile, "vsphere-config", "VSPHERE_CSI_CONFIG", "/etc/cloud/csi-vsphere.conf", "`file` with the vCenter's address and credentials (controller)")
	str(&cfg.StateDir, "state-dir", "CSI_STATE_DIR", "", "`directory` for records of operations under way (controller); empty: in memory")
	str(&cfg.TopologyFile, "topology-file", "CSI_TOPOLOGY_FILE", "", "`file` with the node's topology labels, docs/topology.md (node)")
	var secretDir, flavor string
	var conf hpe.Config
	str(&secretDir, "hpe-secret-dir", "HPE_SECRET_DIR", "", "`directory` with the keys of a Secret as files, used for calls that bring none, such as ListVolumes (hpe, controller)")
	str(&conf.CHAPSecretName, "chap-secret-name", "CHAP_SECRET_NAME", "", "`name` of the Secret with chapUser and chapPassword, for classes that name none (hpe)")
	str(&conf.CHAPSecretNamespace, "chap-secret-namespace", "CHAP_SECRET_NAMESPACE", "", "its `namespace` (hpe)")
	str(&flavor, "flavor", "", "vanilla", "orchestrator (hpe): vanilla, which reads no API, or kubernetes, the cluster of the pod: claims' annotations, CHAP Secrets, HPENodeInfo objects")
	monitor := fs.Bool("node-monitor", false, "look at the paths of the node's volumes between calls (hpe, node)")
	every := fs.Int("node-monitor-interval", 90, "`seconds` between two such looks, 1 to 86400 (hpe, node)")
	var labels string
	str(&labels, "topology-labels", "CSI_TOPOLOGY_LABELS", "", "comma-separated label `keys` that are topology besides topology.csi.vmware.com/… (node)")
	str(&cfg.MetricsAddress, "metrics-address", "CSI_METRICS_ADDRESS", "", "`host:port` of /metrics; empty: off, without a host: loopback")
	str(&cfg.HealthAddress, "health-address", "CSI_HEALTH_ADDRESS", "", "`host:port` of /healthz; empty: off, without a host: loopback")
	def := 0
	if v := getenv("MAX_VOLUMES_PER_NODE"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n == 0 {
			bad = fmt.Errorf("MAX_VOLUMES_PER_NODE is %q, allowed are 1 to 255", v)
		}
		def = n
	}
	fs.IntVar(&cfg.MaxVolumesPerNode, "max-volumes-per-node", def, fmt.Sprintf("attach limit of the node, 1 to 255; %d with vsphere, %d with hpe (environment: MAX_VOLUMES_PER_NODE)", DefaultMaxVolumes, hpe.DefaultMaxVolumes))
	levelDef := "info"
	if strings.EqualFold(getenv("LOGGER_LEVEL"), "DEVELOPMENT") {
		levelDef = "debug"
	}
	fs.StringVar(&level, "log-level", levelDef, "debug, info, warn or error (environment: LOGGER_LEVEL=DEVELOPMENT is debug)")
	show := fs.Bool("version", false, "print the version and exit")
	// Upstream's manifest passes these; the features they switch are always on.
	fs.String("fss-name", "", "ignored")
	fs.String("fss-namespace", "", "ignored")
	if err := fs.Parse(args); err != nil {
		return cfg, err
	}
	if *show {
		fmt.Fprintln(stdout, version())
		return cfg, errVersion
	}
	if bad != nil {
		return cfg, bad
	}
	if fs.NArg() > 0 {
		return cfg, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["max-volumes-per-node"] && cfg.MaxVolumesPerNode == 0 {
		return cfg, errors.New("--max-volumes-per-node is 0, allowed are 1 to 255")
	}
	if cfg.Endpoint == "" {
		return cfg, errors.New("--endpoint (or CSI_ENDPOINT) is missing, must be unix:///path or tcp://host:port")
	}
	switch flavor {
	case "vanilla":
	case "kubernetes":
		if Backend(backend) != HPE {
			return cfg, fmt.Errorf("--flavor kubernetes is for --backend %s", HPE)
		}
		c, err := inCluster(getenv)
		if err != nil {
			return cfg, fmt.Errorf("--flavor kubernetes: %w", err)
		}
		conf.Cluster = c
	default:
		return cfg, fmt.Errorf("--flavor is %q, allowed are vanilla and kubernetes", flavor)
	}
	if *every < 1 || *every > 86400 {
		return cfg, fmt.Errorf("--node-monitor-interval is %d, allowed are 1 to 86400", *every)
	}
	if *monitor {
		cfg.MonitorEvery = time.Duration(*every) * time.Second
	}
	if secretDir != "" {
		conf.SecretSource = secretFiles(secretDir)
	}
	cfg.HPE = &conf
	if cfg.MaxVolumesPerNode == 0 {
		cfg.MaxVolumesPerNode = DefaultMaxVolumes
		if Backend(backend) == HPE {
			cfg.MaxVolumesPerNode = hpe.DefaultMaxVolumes
		}
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return cfg, fmt.Errorf("--log-level is %q, allowed are debug, info, warn, error", level)
	}
	for k := range strings.SplitSeq(labels, ",") {
		if k = strings.TrimSpace(k); k != "" {
			cfg.TopologyLabels = append(cfg.TopologyLabels, k)
		}
	}
	cfg.Mode, cfg.Backend, cfg.Version, cfg.Getenv = Mode(mode), Backend(backend), version(), getenv
	cfg.Log = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: l}))
	return cfg, nil
}

// serviceAccount is where the files of the pod's service account are; tests put
// theirs in its place.
var serviceAccount = api.ServiceAccount

// inCluster is the cluster whose pod this is.
func inCluster(getenv func(string) string) (*api.Cluster, error) {
	cfg, err := api.InCluster(getenv, serviceAccount)
	if err != nil {
		return nil, err
	}
	return api.New(cfg)
}

// secretFiles reads a Secret that is mounted: a file per key. It is read for
// each use, since a mounted Secret follows its object.
func secretFiles(dir string) func(context.Context) (map[string]string, error) {
	return func(context.Context) (map[string]string, error) {
		files, err := os.ReadDir(dir)
		if err != nil {
			return nil, err
		}
		secret := map[string]string{}
		for _, f := range files {
			// A Secret volume has its data in a directory of its own, ..data.
			if strings.HasPrefix(f.Name(), ".") {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, f.Name()))
			if err != nil {
				return nil, err
			}
			secret[f.Name()] = strings.TrimRight(string(data), "\r\n")
		}
		return secret, nil
	}
}
