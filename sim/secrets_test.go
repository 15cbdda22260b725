package sim_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csilab/csilab/scenarios"
	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/evidence"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/san"
)

// No password, token or session key that was good at some time gets into the
// file that a lab leaves: whatever goes wrong with sessions and passwords.
func TestNoSecretInTheLedger(t *testing.T) {
	for _, o := range []sim.Options{{Backend: sim.VSphere}, {Backend: sim.HPE, Protocol: "iscsi"}} {
		for _, s := range scenarios.All() {
			if s.Sweep != nil || !slices.ContainsFunc(s.Labels, func(l string) bool { return l == "session" || l == "access" }) && s.Name != "lifecycle-filesystem" {
				continue
			}
			if len(s.Backends) > 0 && !slices.Contains(s.Backends, o.Backend) || raced && s.Name != "lifecycle-filesystem" {
				continue
			}
			t.Run(o.System()+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				bubble(t, func(t *testing.T) { keepsSecrets(t, s, o) })
			})
		}
	}
}

func keepsSecrets(t *testing.T, s scenarios.Scenario, o sim.Options) {
	o.Bubble = true
	if s.Options != nil {
		s.Options(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Hour)
	defer cancel()
	lab, err := sim.Start(ctx, o)
	must(t, err)
	defer lab.Close()
	var mu sync.Mutex
	secrets := map[string]bool{"long-enough-1": true}
	lab.Ledger.Subscribe(func(e ledger.Entry) {
		if e.Hop == lab.StorageHop() || e.Hop == ledger.WSAPI {
			mu.Lock()
			defer mu.Unlock()
			for _, x := range lab.Secrets() {
				secrets[x] = true
			}
		}
	})
	if o.Backend == sim.HPE { // the default is in the names of ports too
		must(t, lab.RotatePassword(ctx, "a-password-of-its-own"))
		must(t, lab.Redeploy(ctx))
		secrets["a-password-of-its-own"] = true
	}
	if !s.NotReady {
		must(t, lab.NodesReady(ctx))
	}
	if !s.NoClasses {
		must(t, lab.Apply(ctx, lab.Classes()))
	}
	if err := s.Flow(ctx, lab); err != nil && !sim.IsSkip(err) {
		t.Fatal(err)
	}
	var b bytes.Buffer
	must(t, evidence.Write(&b, lab.Evidence(s.Name)))
	mu.Lock()
	defer mu.Unlock()
	delete(secrets, "")
	delete(secrets, san.DefaultPassword)
	if len(secrets) < 2 {
		t.Errorf("only %d secrets were seen", len(secrets))
	}
	for x := range secrets {
		if i := strings.Index(b.String(), x); i >= 0 {
			t.Errorf("the secret %q is there: %.300s", x, b.String()[max(0, i-150):])
		}
	}
	t.Logf("%d secrets, %d bytes", len(secrets), b.Len())
}
