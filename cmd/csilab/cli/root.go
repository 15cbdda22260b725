// Package cli is the command line of csilab.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Streams are what a command reads and writes. Out carries data, Err the rest.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// errSignal is the cause of a context that a signal ended.
var errSignal = errors.New("interrupted by a signal")

// hangUp makes a hang-up what SIGTERM is, for Ginkgo, which runs the scenarios,
// knows only that; where a process can't send itself one, end is called. A hang-up
// that is ignored, as nohup has it, stays so.
func hangUp(end func()) (stop func()) {
	if signal.Ignored(syscall.SIGHUP) {
		return func() {}
	}
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
			return
		case <-ch:
		}
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(syscall.SIGTERM)
		}
		if err != nil {
			end()
		}
	}()
	return func() {
		signal.Stop(ch)
		close(done)
	}
}

// Main runs the command line and returns the exit code.
func Main(s Streams, args []string) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(ch)
	defer hangUp(func() { cancel(errSignal) })()
	go func() {
		select {
		case <-ch:
			cancel(errSignal)
		case <-ctx.Done():
		}
	}()
	return Run(ctx, s, args)
}

// Run runs the command line under ctx and returns the exit code.
func Run(ctx context.Context, s Streams, args []string) (code int) {
	defer func() {
		if r := recover(); r != nil {
			fmt.Fprintf(s.Err, "csilab: bug: %v\n", r)
			code = ExitUnknown
		}
	}()
	out := &output{w: s.Out}
	s.Out = out
	root := newRoot(s)
	root.SetArgs(args)
	err := out.judge(root.ExecuteContext(ctx))
	if err != nil && err.Error() != "" {
		fmt.Fprintln(s.Err, "csilab:", err)
	}
	return codeOf(err)
}

func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "csilab",
		Short: "Everything that stands under and around a Kubernetes storage driver, without the hardware",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exitf(ExitUsage, "unknown command %q; allowed: run, sweep, soak, list, serve, get, host, check, lab, fault, proxy, version (see --help)", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			_ = cmd.Help()
			return nil
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return nothingEmpty(cmd) },
		SilenceUsage:      true, SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongNumber(err) })
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.AddCommand(newRun(s), newSweep(s), newSoak(s), newList(s), newServe(s), newGet(s), newHost(s), newCheck(s), newLab(s), newFault(s), newProxy(s), newVersion(s))
	return root
}

// Version is set at link time.
var Version = "devel"

func newVersion(s Streams) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(s.Out, "csilab", Version)
			return nil
		},
	}
}

// logger writes to w at the level of -v: 0 nothing, 1 warnings, 2 info, 3 debug.
func logger(w io.Writer, verbosity int) *slog.Logger {
	if verbosity <= 0 {
		return slog.New(slog.DiscardHandler)
	}
	level := map[int]slog.Level{1: slog.LevelWarn, 2: slog.LevelInfo}[verbosity]
	if verbosity > 2 {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
