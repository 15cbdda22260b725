package host

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Environment of child processes.
const (
	envChild = "CSILAB_HOST_CHILD" // name of the registered child to be
	envNode  = "CSILAB_HOST_NODE"  // state directory of the node that a process belongs to
	envCalls = "CSILAB_HOST_CALLS" // where commands ask the interceptor
)

var children = map[string]func(args []string) int{}

// RegisterChild names a program that this binary contains, so that it can run
// as a process of its own: the CSI driver on a real node, above all. Call it
// before Main.
func RegisterChild(name string, main func(args []string) int) {
	if children[name] != nil {
		panic("host: child " + name + " is registered twice")
	}
	children[name] = main
}

// ChildCommand gives the arguments and the environment to start a registered
// child with. The environment is that of this process.
func ChildCommand(name string, args ...string) (argv, env []string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("host: %w", err)
	}
	env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, envChild+"=") })
	return append([]string{self}, args...), append(env, envChild+"="+name), nil
}

// Main must be the first call in main and in TestMain of every binary that
// makes real nodes. Where this process is a child (a registered program, or a
// command of a node that asks the interceptor), it runs that and exits.
// Otherwise it returns.
func Main() {
	commandMain()
	name, ok := os.LookupEnv(envChild)
	if !ok {
		return
	}
	os.Unsetenv(envChild)
	main := children[name]
	if main == nil {
		fmt.Fprintf(os.Stderr, "csilab: no child is registered as %q\n", name)
		os.Exit(2)
	}
	os.Exit(main(os.Args[1:]))
}
