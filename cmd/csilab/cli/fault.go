package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/sim/control"
	"github.com/csilab/csilab/sim/fault/faultfile"
	"github.com/csilab/csilab/sim/yamlfile"
)

func newFault(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fault",
		Short: "Explain fault files, and arm faults in a running serve",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exitf(ExitUsage, "fault: unknown command %q; allowed: check, clear, explain, inject, list, release, schema", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFaultExplain(s), newFaultCheck(s), newFaultSchema(s), newFaultList(s), newFaultInject(s), newFaultClear(s), newFaultRelease(s))
	return cmd
}

// exactly wants a number of arguments, and says what they are.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return exitf(ExitUsage, "%s: %s", strings.TrimPrefix(cmd.CommandPath(), "csilab "), what)
		}
		return nil
	}
}

func newFaultExplain(s Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "explain [FIELD|KIND|HOP]",
		Short: "Say what a field of fault files takes, what a kind does, or which operations a hop has",
		Example: `  csilab fault explain
  csilab fault explain where
  csilab fault explain task-never-ends
  csilab fault explain wsapi`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exitf(ExitUsage, "fault explain: one field, kind or hop at a time")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			if output != "text" && output != "markdown" {
				return exitf(ExitUsage, "--output %q: allowed are text, markdown", output)
			}
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			text, err := faultfile.Explain(name, output == "markdown")
			if err != nil {
				return exitf(ExitUsage, "fault explain: %w", err)
			}
			_, err = fmt.Fprint(s.Out, text)
			return err
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or markdown")
	return cmd
}

func newFaultCheck(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:     "check FILE…",
		Short:   "Say all that is wrong in fault files, with line and column",
		Example: "  csilab fault check faults.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exitf(ExitUsage, "fault check: name the files")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var errs []error
			for _, name := range args {
				rules, err := faultfile.Load(name, faultfile.Lab{})
				if err != nil {
					errs = append(errs, err)
					continue
				}
				n := fmt.Sprintf("%d rules", len(rules))
				if len(rules) == 1 {
					n = "1 rule"
				}
				fmt.Fprintf(s.Out, "%s: ok, %s\n", name, n)
			}
			if err := errors.Join(errs...); err != nil {
				return &exitError{ExitUsage, err}
			}
			return nil
		},
	}
}

func newFaultSchema(s Streams) *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of fault files", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := s.Out.Write(faultfile.Schema())
			return err
		},
	}
}

// faultError gives an error of the control API its exit code.
func faultError(ctx context.Context, what string, c control.Client, err error) error {
	var gone interface{ Timeout() bool } // what package net and http report
	switch {
	case err == nil:
		return nil
	case context.Cause(ctx) == errSignal:
		return exitf(ExitInterrupted, "%s: %w", what, errSignal)
	case errors.Is(err, control.ErrToken), errors.As(err, &gone):
		return exitf(ExitEnvironment, "%s: %s: %w", what, c.URL, err)
	}
	return exitf(ExitUsage, "%s: %w", what, err)
}

const faultServer = `The server is found as by "csilab get".

Exit codes: 0 ok, 2 usage, a file that is wrong, or no such rule, 3 no server
answers, or it does not take the token.`

func newFaultList(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the rules of a running serve: how many calls each has seen and acted on, and those that stand at gates",
		Long:  "Lists the fault rules of a running \"csilab serve\", in the order in which they are asked.\n" + faultServer,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.output != "table" && f.output != "json" && f.output != "yaml" {
				return exitf(ExitUsage, "--output %q: allowed are table, json, yaml", f.output)
			}
			c, err := f.where("fault list")
			if err != nil {
				return err
			}
			list, err := c.Faults(cmd.Context())
			if err != nil {
				return faultError(cmd.Context(), "fault list", c, err)
			}
			return f.print(s, list, func() error { return control.FaultTable(s.Out, list) })
		},
	}
	f.find(cmd.Flags())
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

func newFaultInject(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:     "inject FILE",
		Short:   "Arm the rules of a fault file in a running serve; - is standard input",
		Long:    "Arms the rules of a fault file in a running \"csilab serve\", behind those that are armed:\nall of them, or none where something is wrong. " + faultServer,
		Example: "  csilab fault inject slow-array.yaml --env lab.env",
		Args:    exactly(1, "name one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.where("fault inject")
			if err != nil {
				return err
			}
			var b []byte
			if args[0] == "-" {
				b, err = readInput(s.In, args[0])
			} else {
				b, err = yamlfile.Read(args[0])
			}
			if err != nil {
				return exitf(ExitUsage, "fault inject: %w", err)
			}
			armed, err := c.Inject(cmd.Context(), args[0], b)
			if err != nil {
				return faultError(cmd.Context(), "fault inject", c, err)
			}
			return control.FaultTable(s.Out, armed)
		},
	}
	f.find(cmd.Flags())
	return cmd
}

func newFaultClear(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "clear [NAME]",
		Short: "Take a rule of a running serve out, or all; calls at its gate go on",
		Long:  "Takes the fault rule of a name out of a running \"csilab serve\", or all.\n" + faultServer,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return exitf(ExitUsage, "fault clear: one rule at a time; quote a name that has spaces")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.where("fault clear")
			if err != nil {
				return err
			}
			name := strings.Join(args, "")
			if len(args) == 1 && name == "" {
				return exitf(ExitUsage, "fault clear: the name is empty; without a name all rules are cleared")
			}
			n, err := c.Clear(cmd.Context(), name)
			if err != nil {
				return faultError(cmd.Context(), "fault clear", c, err)
			}
			_, err = fmt.Fprintf(s.Out, "cleared: %d\n", n)
			return err
		},
	}
	f.find(cmd.Flags())
	return cmd
}

func newFaultRelease(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "release GATE",
		Short: "Open a gate of a running serve for good: GATE is the rule's name",
		Long:  "Opens the gate of a rule in a running \"csilab serve\" for good: the calls that stand\nthere go on, later ones pass. " + faultServer,
		Args:  exactly(1, "name one gate: the rule's name, quoted where it has spaces"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.where("fault release")
			if err != nil {
				return err
			}
			n, err := c.Release(cmd.Context(), args[0])
			if err != nil {
				return faultError(cmd.Context(), "fault release", c, err)
			}
			_, err = fmt.Fprintf(s.Out, "released: %d\n", n)
			return err
		},
	}
	f.find(cmd.Flags())
	return cmd
}
