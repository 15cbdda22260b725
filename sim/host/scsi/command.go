package scsi

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// command is a program of the node that deals with the stack. It returns its
// exit status.
type command func(s *Stack, out, errs io.Writer, args []string) int

// commands are found by name; the files that define them add to the table.
var commands = map[string]command{}

// Commands are the names of the programs that Run knows.
func Commands() []string { return slices.Sorted(maps.Keys(commands)) }

// IsCommand says whether Run knows a program.
func IsCommand(name string) bool { return commands[name] != nil }

// Run runs a program to its end and returns its exit status; 127 for a program
// that it doesn't know. As the real ones do, it says what it does not understand
// and fails. The fabrics are looked at first, and Uevents has what it changed.
func (s *Stack) Run(out, errs io.Writer, name string, args []string) int {
	c := commands[name]
	if c == nil {
		fmt.Fprintf(errs, "%s: command not found\n", name)
		return 127
	}
	s.Refresh()
	return c(s, out, errs, args)
}

// options are the arguments of a program taken apart.
type options struct {
	values  map[string][]string // canonical name -> values, "" for flags
	operand []string
}

func (o options) has(name string) bool { return o.values[name] != nil }

func (o options) get(name string) string {
	if v := o.values[name]; v != nil {
		return v[len(v)-1]
	}
	return ""
}

// spelling of an option: its canonical name, and whether it takes a value: "" no,
// "=" yes, "?" one that is attached (--name=value), or none.
type spelling struct {
	name  string
	value string
}

// unknownOption is an argument that a program doesn't have.
type unknownOption string

func (e unknownOption) Error() string { return fmt.Sprintf("unrecognized option '%s'", string(e)) }

// parse takes arguments apart by getopt_long's rules: options and operands in any
// order, short flags together, "--" ends them.
func parse(args []string, known map[string]spelling) (options, error) {
	o := options{values: map[string][]string{}}
	put := func(sp spelling, v string) { o.values[sp.name] = append(o.values[sp.name], v) }
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			o.operand = append(o.operand, args[i+1:]...)
			return o, nil
		case strings.HasPrefix(a, "--"):
			name, v, attached := strings.Cut(a, "=")
			sp, ok := known[name]
			switch {
			case !ok || attached && sp.value == "":
				return o, unknownOption(a)
			case sp.value == "=" && !attached:
				if i++; i >= len(args) {
					return o, fmt.Errorf("option '%s' requires an argument", a)
				}
				v = args[i]
			}
			put(sp, v)
		case len(a) > 1 && a[0] == '-':
			for j := 1; j < len(a); j++ {
				sp, ok := known["-"+a[j:j+1]]
				if !ok {
					return o, unknownOption(a)
				}
				if sp.value == "" {
					put(sp, "")
					continue
				}
				v := a[j+1:]
				if v == "" && sp.value == "=" {
					if i++; i >= len(args) {
						return o, fmt.Errorf("option requires an argument -- '%c'", a[j])
					}
					v = args[i]
				}
				put(sp, v)
				break
			}
		default:
			o.operand = append(o.operand, a)
		}
	}
	return o, nil
}
