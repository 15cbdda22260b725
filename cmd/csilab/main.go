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
	// A run lives for minutes, keeps little and makes much garbage: collect seldom,
	// but not so seldom that a soak's memory grows with its garbage.
	debug.SetGCPercent(1000)
	debug.SetMemoryLimit(2 << 30)
	sim.Main() // a node or a driver of a lab with real hosts runs in this binary too
	os.Exit(cli.Main(cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}
