package cli

import (
	"errors"
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

// wrongNumber says of a flag that takes a number what is allowed, in place of what
// the parser stumbled over.
func wrongNumber(err error) error {
	var e *pflag.InvalidValueError
	if !errors.As(err, &e) {
		return err
	}
	f := e.GetFlag()
	switch f.Value.Type() {
	case "uint64":
		return exitf(ExitUsage, "--%s %q: allowed are 0 to 18446744073709551615", f.Name, e.GetValue())
	case "int":
		return exitf(ExitUsage, "--%s %q: must be a whole number: %s", f.Name, e.GetValue(), f.Usage)
	}
	return err
}
