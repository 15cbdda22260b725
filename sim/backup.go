package sim

import (
	"errors"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/kube/sidecars"
	"github.com/csilab/csilab/sim/kube/store"
)

// SaveAPI takes a backup of all API objects.
func (l *Lab) SaveAPI() store.Backup { return l.store.Save() }

// RestoreAPI gives the API the state of a backup, as an administrator does who
// restores etcd and starts the control plane and the kubelets anew. Backend and
// nodes are as they are.
func (l *Lab) RestoreAPI(b store.Backup) error {
	var parts []string
	l.mu.Lock()
	for name := range l.components {
		if !strings.HasPrefix(name, "driver") && !strings.HasPrefix(name, "registrar@") && name != "csp" {
			parts = append(parts, name)
		}
	}
	l.mu.Unlock()
	slices.Sort(parts)
	var errs []error
	for _, p := range parts {
		errs = append(errs, l.StopComponent(p))
	}
	for _, p := range sidecars.Components() {
		l.sidecars.Crash(p)
	}
	l.store.Restore(b)
	for _, p := range parts {
		errs = append(errs, l.StartComponent(p))
	}
	return errors.Join(errs...)
}
