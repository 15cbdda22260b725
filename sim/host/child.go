package host

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
)

// envChild names the registered child that a process is to be.
const envChild = "CSILAB_HOST_CHILD"

// mainCalled says that a process started from this binary would get as far as
// being a child, instead of running main or the tests once more.
var mainCalled bool

var errNoMain = errors.New("host: this binary must call host.Main first thing in main or TestMain")

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
// child with. The environment is that of this process. Errors: no such child,
// or the binary never called Main.
func ChildCommand(name string, args ...string) (argv, env []string, err error) {
	if !mainCalled {
		return nil, nil, errNoMain
	}
	if children[name] == nil {
		return nil, nil, fmt.Errorf("host: no child is registered as %q", name)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("host: %w", err)
	}
	env = slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, envChild+"=") })
	return append([]string{self}, args...), append(env, envChild+"="+name), nil
}

// Main must be the first call in main and in TestMain of every binary that
// makes real nodes. Where this process is a child (a registered program), it
// runs that and exits. Otherwise it returns. (A command of a node that asks the
// interceptor has ended before: see package shim.)
func Main() {
	mainCalled = true
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
