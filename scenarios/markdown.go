package scenarios

import (
	"fmt"
	"strings"
)

// Markdown is docs/scenarios.md: the table of the scenarios.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`# Scenarios

Made by ` + "`go run ./cmd/csilab list -o markdown`" + `; a test holds this page to it.

Each scenario reads back what its pods wrote, and is seen to turn red under the mutation that it names (` + "`go test ./scenarios -run TestMutants`" + `).

A scenario that names a backend makes sense on that one only; all others run on each. A label like V09 is an incident of [incidents.md](incidents.md).

| scenario | backend | labels | shows | mutation that turns it red |
|---|---|---|---|---|
`)
	for _, s := range All() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.Name, strings.Join(s.Backends, ", "), strings.Join(s.Labels, ", "), s.Text, s.Mutation)
	}
	b.WriteString(`
A *sweep* runs one life (provision, attach, stage, publish, write, snapshot, restore, expand, unpublish, unstage, detach, delete) once clean, lists its calls on all hops, and runs it again once for each call with a fault at just that call. After each the lab must converge, keep all invariants and be empty. Calls that reach no node are swept on memory hosts whatever ` + "`--host`" + ` says. A crash before a call that only reads equals the crash after the call before it and is left out.
`)
	return b.String()
}
