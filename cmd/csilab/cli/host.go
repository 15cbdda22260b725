package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/csilab/csilab/sim/control"
)

func newHost(s Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "host", Short: "Run programs in the nodes of a running serve --hosts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newHostExec(s), newHostList(s))
	return cmd
}

// flags of finding a server.
func (f *getFlags) find(fl *pflag.FlagSet) {
	fl.StringVar(&f.server, "server", "", "URL of the control API")
	fl.StringVar(&f.token, "token", "", "token of the control API (others on this machine see it: better in the environment)")
	fl.StringVar(&f.env, "env", "", "file that serve --env wrote")
}

func newHostExec(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARGUMENT...]",
		Short: "Run a program in a node",
		Long: `Runs any program of this machine in a node of a running "csilab serve --hosts": it
sees the node's /dev, /sys, /etc/iscsi and /var/lib/kubelet, and finds the node's
iscsiadm, multipathd, dmsetup and so on first on its PATH. It has this environment,
this working directory, these standard streams (no terminal), and gets SIGTERM when
csilab is interrupted. The server is found as by "csilab get".

The exit code is that of the program (128 and the number of the signal that ended
it, 127 when it is not there). csilab's own: 2 usage, or there is no such node, 3 no
server answers, or it does not take the token.`,
		Example: `  csilab serve --backend hpe --hosts --env lab.env &
  csilab host exec --env lab.env node-1 -- iscsiadm -m discovery -t st -p 192.0.2.10
  csilab host exec --env lab.env node-1 -- ./my-node-plugin --endpoint unix:///var/lib/kubelet/plugins/me/csi.sock`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return hostExec(cmd.Context(), s, f, args[0], args[1:]) },
	}
	cmd.Flags().SetInterspersed(false)
	f.find(cmd.Flags())
	return cmd
}

// lastPatience is how long a program that was told to end is waited for.
const lastPatience = 10 * time.Second

func hostExec(ctx context.Context, s Streams, f getFlags, node string, argv []string) error {
	c, err := f.where("host exec")
	if err != nil {
		return err
	}
	if argv[0] == "--" {
		argv = argv[1:]
	}
	if len(argv) == 0 {
		return exitf(ExitUsage, "host exec: no command")
	}
	dir, err := os.Getwd()
	if err != nil {
		return exitf(ExitEnvironment, "host exec: %w", err)
	}
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, envControlToken+"=") {
			env = append(env, e)
		}
	}
	// A signal is for the program, whose end is waited for.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	signals := make(chan syscall.Signal)
	go func() {
		select {
		case <-run.Done():
			return
		case <-ctx.Done():
		}
		select {
		case signals <- syscall.SIGTERM:
		case <-run.Done():
			return
		}
		select {
		case <-time.After(lastPatience):
			cancel()
		case <-run.Done():
		}
	}()
	status, err := c.Exec(run, node, control.Command{Argv: argv, Env: env, Dir: dir}, s.In, s.Out, s.Err, signals)
	var gone interface{ Timeout() bool }
	switch {
	case run.Err() != nil:
		return exitf(ExitInterrupted, "host exec: %w", errSignal)
	case errors.Is(err, control.ErrToken), errors.As(err, &gone):
		return exitf(ExitEnvironment, "host exec: %s: %w", c.URL, err)
	case err != nil:
		return exitf(ExitUsage, "host exec: %w", err)
	case status != 0:
		return &exitError{status, errors.New("")}
	}
	return nil
}

func newHostList(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use: "list", Short: "List the nodes of a running serve --hosts", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.where("host list")
			if err != nil {
				return err
			}
			l, err := c.Nodes(cmd.Context())
			var gone interface{ Timeout() bool }
			switch {
			case errors.Is(err, control.ErrToken), errors.As(err, &gone):
				return exitf(ExitEnvironment, "host list: %s: %w", c.URL, err)
			case err != nil:
				return exitf(ExitUsage, "host list: %w", err)
			}
			w := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tDISKS\tINITIATORS\tKUBELET DIRECTORY")
			for _, n := range l.Items {
				initiators := append([]string{}, n.WWPNs...)
				if n.IQN != "" {
					initiators = append([]string{n.IQN}, initiators...)
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", n.Name, len(n.Disks), orDash(strings.Join(initiators, ",")), n.KubeletDir)
			}
			return w.Flush()
		},
	}
	f.find(cmd.Flags())
	return cmd
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
