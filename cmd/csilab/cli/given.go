package cli

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mayBeEmpty are flags for which an empty text is an answer: all.
var mayBeEmpty = []string{"focus", "label"}

// nothingEmpty refuses flags that were given an empty text where nothing is the
// default: a variable of a script that is not set would pass for a flag that was
// left out.
func nothingEmpty(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if err != nil || slices.Contains(mayBeEmpty, f.Name) {
			return
		}
		empty := false
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			empty = f.DefValue == "[]" && !slices.ContainsFunc(v.GetSlice(), func(s string) bool { return s != "" })
		default:
			empty = f.Value.Type() == "string" && f.DefValue == "" && f.Value.String() == ""
		}
		if empty {
			err = exitf(ExitUsage, "--%s: is empty; give it a value, or leave it out", f.Name)
		}
	})
	return err
}
