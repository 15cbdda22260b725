package cli

import (
	"fmt"
	"strings"

	"github.com/csilab/csilab/sim/vcenter"
)

// parseDatastores reads the values of --datastores: NAME[:TYPE][@HOST+HOST…].
// Types and names are the vCenter's to check. Errors name the value and what
// is allowed.
func parseDatastores(values []string) ([]vcenter.Datastore, error) {
	var out []vcenter.Datastore
	for _, s := range values {
		rest, hosts, limited := strings.Cut(s, "@")
		name, kind, typed := strings.Cut(rest, ":")
		d := vcenter.Datastore{Name: name, Type: kind}
		if limited {
			d.Hosts = strings.Split(hosts, "+")
		}
		if name == "" || typed && kind == "" || limited && hosts == "" {
			return nil, fmt.Errorf("--datastores %q: must be NAME, NAME:TYPE, NAME@HOST or NAME:TYPE@HOST+HOST", s)
		}
		out = append(out, d)
	}
	return out, nil
}
