package host_test

import (
	"testing"

	"github.com/csilab/csilab/sim/host"
)

func newQueueing(t testing.TB, cfg host.RealConfig) host.Host {
	t.Helper()
	return must1(host.NewReal(t.Context(), cfg))(t)
}

func TestQueueingReal(t *testing.T) {
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	queueing(t, "real", func() {})
}

// TestCloseWhileQueued: a node that is closed leaves nothing that waits.
func TestCloseWhileQueued(t *testing.T) {
	if err := realSupported(); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	r := newQueueRig(t, "real", host.RetryForever)
	must(t, r.WriteAt(staging+"/f", 0, []byte("x"), false))
	r.cut(true)
	write := r.write(staging+"/f", "y")
	r.works(t)
	waits(t, "a write without a path", write)
	must(t, r.Close())
	if err := <-write; err == nil {
		t.Error("written without a path")
	}
}
