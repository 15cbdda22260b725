package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/sim/labfile"
)

func newLab(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Check lab files, and print their schema",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exitf(ExitUsage, "lab: unknown command %q; allowed: check, schema", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	check := &cobra.Command{
		Use:     "check FILE…",
		Short:   "Say all that is wrong in lab files, with line and column",
		Example: "  csilab lab check lab.yaml",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return exitf(ExitUsage, "lab check: name the files")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var errs []error
			for _, name := range args {
				lab, err := loadLab(name)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				nodes := 0
				vs, _ := lab.Configs()
				for _, v := range vs {
					nodes += len(v.Nodes)
				}
				has := fmt.Sprintf("%d vCenters, ", len(vs))
				if n := len(lab.Arrays); n > 0 && len(lab.VCenters) == 0 {
					has = fmt.Sprintf("%d arrays, ", n)
				} else if n > 0 {
					has += fmt.Sprintf("%d arrays, ", n)
				}
				fmt.Fprintf(s.Out, "%s: ok, %s%d nodes\n", name, has, nodes)
			}
			if err := errors.Join(errs...); err != nil {
				return &exitError{ExitUsage, err}
			}
			return nil
		},
	}
	var output string
	schema := &cobra.Command{
		Use:   "schema",
		Short: "Print the format of lab files",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "json":
				_, err := s.Out.Write(labfile.Schema())
				return err
			case "markdown":
				_, err := fmt.Fprintln(s.Out, labfile.Markdown())
				return err
			}
			return exitf(ExitUsage, "--output %q: allowed are json, markdown", output)
		},
	}
	schema.Flags().StringVarP(&output, "output", "o", "json", "json (JSON Schema) or markdown")
	cmd.AddCommand(check, schema)
	return cmd
}

// loadLab reads a lab file whose vCenters take their configurations.
func loadLab(name string) (*labfile.Lab, error) {
	lab, err := labfile.Load(name)
	if err != nil {
		return nil, err
	}
	vs, _ := lab.Configs()
	for _, v := range vs {
		if err := v.Config.Check(); err != nil {
			return nil, fmt.Errorf("%s: vCenter %s: %w", name, v.Name, err)
		}
	}
	if arrays, ok := lab.Storage(); ok {
		if err := arrays.SAN.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return lab, nil
}

// exclusive refuses flags that a lab file takes the place of.
func exclusive(cmd *cobra.Command, flags ...string) error {
	for _, f := range flags {
		if cmd.Flags().Changed(f) {
			return exitf(ExitUsage, "--%s: the lab file says that; leave out one of them", f)
		}
	}
	return nil
}
