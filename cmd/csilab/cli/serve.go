package cli

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/labfile"
	"github.com/csilab/csilab/sim/vcenter"
)

type serveFlags struct {
	listen     string
	version    string
	seed       uint64
	env        string
	nodes      int
	zones      []string
	datastores []string
	state      string
	lab        string
	verbose    int

	backend     string
	arrays      int
	hosts       bool
	noPathRetry host.NoPathRetry
	cspListen   string
	wsapiListen string
}

// Backends that serve knows.
const (
	backendVSphere = "vsphere"
	backendHPE     = "hpe"
	backendAll     = "all"
)

func newServe(s Streams) *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the vCenter, or arrays, until a signal comes",
		Long: `Serves a vCenter with Cloud Native Storage over HTTPS, on loopback unless told
otherwise, until SIGINT or SIGTERM. Point your own driver or tool at it. With
--backend hpe (or all) it serves HPE arrays: a Container Storage Provider (CSP) and
each array's REST API (WSAPI).

--env FILE is written, by rename, once they take calls. Of the vCenter:
CSILAB_VCENTER_URL (user and password in it, percent-encoded), CSILAB_DATACENTER,
CSILAB_DATASTORE, CSILAB_DATASTORE2, CSILAB_RESOURCE_POOL, CSILAB_POLICY, and
CSILAB_VSPHERE_CONF, the path of a ready csi-vsphere.conf (FILE.csi-vsphere.conf).
Of the arrays:
CSILAB_CSP_URL, CSILAB_WSAPI_URL (CSILAB_WSAPI2_URL of the second),
CSILAB_ARRAY_USER, CSILAB_ARRAY_PASSWORD, CSILAB_CPG, and CSILAB_HPE_SECRET, the path
of a ready Secret (FILE.hpe-secret.yaml). Files there that are not of csilab serve
are refused, and stay.`,
		Example: `  csilab serve --env lab.env &
  . ./lab.env && govc about -u "$CSILAB_VCENTER_URL" -k
  csilab serve --backend hpe --arrays 2 --env lab.env
  csilab serve --lab lab.yaml --env lab.env --state state`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.lab != "" {
				if err := exclusive(cmd, "listen", "vcenter-version", "nodes", "zones", "datastores", "backend", "arrays", "csp-listen", "wsapi-listen"); err != nil {
					return err
				}
				if !cmd.Flags().Changed("seed") {
					f.seed = 0 // the file's
				}
			}
			if cmd.Flags().Changed(noPathRetry) && !f.hosts {
				return exitf(ExitUsage, "--%s is for --hosts", noPathRetry)
			}
			if !slices.Contains([]string{backendVSphere, backendHPE, backendAll}, f.backend) {
				return exitf(ExitUsage, "--backend %q: allowed are vsphere, hpe, all", f.backend)
			}
			for _, of := range []struct{ backend, flags string }{
				{backendVSphere, "listen vcenter-version datastores zones"},
				{backendHPE, "arrays csp-listen wsapi-listen " + noPathRetry},
			} {
				for _, flag := range strings.Fields(of.flags) {
					if f.lab == "" && cmd.Flags().Changed(flag) && f.backend != of.backend && f.backend != backendAll {
						return exitf(ExitUsage, "--%s is for --backend %s or all", flag, of.backend)
					}
				}
			}
			if cmd.Flags().Changed("nodes") && f.backend == backendHPE && !f.hosts {
				return exitf(ExitUsage, "--nodes %d: with --backend hpe it is for --hosts; without, hosts of arrays are those that clients make", f.nodes)
			}
			return serve(cmd.Context(), s, f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.backend, "backend", backendVSphere, "what to serve: vsphere, hpe or all")
	fl.IntVar(&f.arrays, "arrays", 1, "number of arrays, named array1, array2, … and paired for remote copy by twos (1 to 8)")
	fl.StringVar(&f.cspListen, "csp-listen", "127.0.0.1:0", "HOST:PORT of the storage provider")
	fl.StringVar(&f.wsapiListen, "wsapi-listen", "127.0.0.1:0", "HOST:PORT of the first array's REST API; the others are on free ports of 127.0.0.2 and so on")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:0", "HOST:PORT of the vCenter; port 0 picks a free one")
	fl.StringVar(&f.version, "vcenter-version", "8.0.3", "version that the vCenter says it has")
	fl.Uint64Var(&f.seed, "seed", 1, "seed of all identities")
	fl.StringVar(&f.env, "env", "", "write the environment of a client to this file")
	fl.IntVar(&f.nodes, "nodes", 2, "number of VMs, named node-1, node-2, … (0 to 64); with --hosts also of servers on the storage network")
	fl.BoolVar(&f.hosts, "hosts", false, "make the nodes real, so that programs can be run in them: see csilab host exec (root on Linux)")
	f.noPathRetry = host.RetryRecommended
	fl.Var(&f.noPathRetry, noPathRetry, "no_path_retry of multipath on the servers of --hosts: whether I/O without a path fails at once, waits, or waits for N times 5s")
	fl.StringSliceVar(&f.zones, "zones", nil, "zones that the VMs are in, in turn")
	fl.StringSliceVar(&f.datastores, "datastores", nil, "datastores instead of two of type VMFS, each NAME[:TYPE][@HOST+HOST] (types VMFS, NFS, NFS41, vsan, VVOL)")
	fl.StringVar(&f.lab, "lab", "", "lab file (lab.yaml) that says which vCenters there are")
	fl.StringVar(&f.state, "state", "", "directory that keeps volumes, task numbers and certificate over a restart")
	fl.CountVarP(&f.verbose, "verbose", "v", "log to standard error (-v warnings, -vv info, -vvv debug)")
	return cmd
}

// noPathRetry is the name of a flag.
const noPathRetry = "no-path-retry"

// checkListen wants HOST:PORT with a host, and returns the two.
func checkListen(flag, addr string) (host string, port int, err error) {
	host, p, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, exitf(ExitUsage, "%s %q: must be HOST:PORT: %v", flag, addr, err)
	}
	port, err = strconv.Atoi(p)
	if err != nil || port < 0 || port > 65535 {
		return "", 0, exitf(ExitUsage, "%s %q: port %q: allowed are 0 to 65535", flag, addr, p)
	}
	if host == "" {
		return "", 0, exitf(ExitUsage, "%s %q: name the address; 0.0.0.0 is all of them, 127.0.0.1 only this machine", flag, addr)
	}
	return host, port, nil
}

// plan makes the configurations of the vCenters and arrays from the lab file or
// the flags; without arrays, the second is nil.
func (f serveFlags) plan() ([]served, *labfile.Storage, error) {
	if f.lab != "" {
		lab, err := loadLab(f.lab)
		if err != nil {
			return nil, nil, &exitError{ExitUsage, err}
		}
		seed := f.seed
		if seed == 0 {
			seed = max(lab.Seed, 1)
		}
		var arrays *labfile.Storage
		if a, ok := lab.Storage(); ok {
			a.SAN.Seed = seed
			arrays = &a
			if len(lab.VCenters) == 0 {
				return nil, arrays, nil
			}
		}
		var plan []served
		vs, places := lab.Configs()
		for i, v := range vs {
			p := served{name: v.Name, listen: places[i].Listen, cfg: v.Config}
			if p.listen == "" {
				p.listen = fmt.Sprintf("127.0.0.%d:0", i+1) // the driver tells them apart by host
			}
			p.cfg.Seed = sim.SeedOf(seed, i, v.Name)
			plan = append(plan, p)
		}
		return plan, arrays, nil
	}
	if f.nodes < 0 || f.nodes > 64 {
		return nil, nil, exitf(ExitUsage, "--nodes %d: allowed are 0 to 64", f.nodes)
	}
	var arrays *labfile.Storage
	if f.backend != backendVSphere {
		var err error
		if arrays, err = f.planArrays(); err != nil || f.backend == backendHPE {
			return nil, arrays, err
		}
	}
	if _, _, err := checkListen("--listen", f.listen); err != nil {
		return nil, nil, err
	}
	cfg := vcenter.Config{Seed: f.seed, Version: f.version}
	var err error
	if cfg.Datastores, err = parseDatastores(f.datastores); err != nil {
		return nil, nil, &exitError{ExitUsage, err}
	}
	for i := range f.nodes {
		n := vcenter.Node{Name: fmt.Sprintf("node-%d", i+1)}
		if len(f.zones) > 0 {
			n.Zone = f.zones[i%len(f.zones)]
		}
		cfg.Nodes = append(cfg.Nodes, n)
	}
	return []served{{name: "vc-1", listen: f.listen, cfg: cfg}}, arrays, nil
}

func serve(ctx context.Context, s Streams, f serveFlags) error {
	plan, arrays, err := f.plan()
	if err != nil {
		return err
	}
	var files *envFiles
	if f.env != "" {
		var beside []string
		if len(plan) > 0 {
			beside = append(beside, vcenter.ConfName)
		}
		if arrays != nil {
			beside = append(beside, secretFile)
		}
		if files, err = claimEnv(f.env, beside...); err != nil {
			return err
		}
		defer files.close()
	}
	sim.Sweep(sim.Options{Log: logger(s.Err, f.verbose)}) // what labs and nodes that were killed have left
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	run, err := startServing(ctx, plan, arrays, f, logger(s.Err, f.verbose), stop)
	if err != nil {
		return err
	}
	defer run.close()
	if files != nil {
		if err := run.writeEnv(files); err != nil {
			return exitf(codeOfFile(err), "--env %q: %w", f.env, err)
		}
		defer files.remove() // they are true only while all that serves
	}
	for i, v := range run.vcenters {
		u := v.URL()
		u.User = nil // the password is in the env file only
		name := ""
		if len(run.vcenters) > 1 {
			name = run.names[i] + ": "
		}
		fmt.Fprintf(s.Out, "csilab: "+name+"vCenter %s at %s, datacenter %s, datastores %s\n", v.Version(), u, strings.Join(v.Datacenters(), ", "), strings.Join(v.DatastoreNames(), ", "))
	}
	run.tellArrays(s.Out)
	run.tellNodes(s.Out)
	if f.env != "" {
		fmt.Fprintf(s.Out, "csilab: environment in %s\n", f.env)
	}
	<-ctx.Done()
	if lost := context.Cause(ctx); ofState(lost) {
		return exitf(ExitEnvironment, "--state: %w", lost)
	}
	fmt.Fprintln(s.Out, "csilab: stopped")
	return nil
}
