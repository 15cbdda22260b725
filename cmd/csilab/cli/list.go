package cli

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/csilab/csilab/scenarios"
)

func newList(s Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "list", Short: "List the scenarios", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch output {
			case "json":
				type row struct {
					Name      string   `json:"name"`
					Text      string   `json:"text"`
					Labels    []string `json:"labels"`
					Incidents []string `json:"incidents,omitempty"`
					Mutation  string   `json:"mutation"`
				}
				var rows []row
				for _, sc := range scenarios.All() {
					rows = append(rows, row{sc.Name, sc.Text, sc.Labels, sc.Incidents, sc.Mutation})
				}
				enc := json.NewEncoder(s.Out)
				enc.SetIndent("", "  ")
				return enc.Encode(rows)
			case "table":
				w := tabwriter.NewWriter(s.Out, 0, 4, 2, ' ', 0)
				fmt.Fprintln(w, "NAME\tLABELS\tSHOWS")
				for _, sc := range scenarios.All() {
					fmt.Fprintf(w, "%s\t%s\t%s\n", sc.Name, strings.Join(sc.Labels, ","), sc.Text)
				}
				return w.Flush()
			}
			switch output {
			case "markdown":
				fmt.Fprint(s.Out, scenarios.Markdown())
				return nil
			case "incidents":
				fmt.Fprint(s.Out, scenarios.IncidentsMarkdown())
				return nil
			}
			return exitf(ExitUsage, "--output %q: allowed are table, json, markdown, incidents", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table, json, markdown or incidents (the page of public bugs that scenarios show)")
	return cmd
}
