// Command csilab runs a Kubernetes storage driver's world without the
// hardware: see `csilab --help` and docs/.
package main

import (
	"os"
	"runtime/debug"

	"github.com/csilab/csilab/cmd/csilab/cli"
	"github.com/csilab/csilab/sim"
)

func main() {
	// A run lives for a minute and makes much garbage: collect less often.
	debug.SetGCPercent(300)
	sim.Main() // a node or a driver of a lab with real hosts runs in this binary too
	os.Exit(cli.Main(cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}
