package host_test

import (
	"strings"
	"testing"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/host/scsi/scsitest"
	"github.com/csilab/csilab/sim/ledger"
)

func TestCHAPSecretIsNotInTheLedger(t *testing.T) {
	store := disk.NewMemory()
	defer store.Close()
	w := &sanWorld{kind: "memory", protocol: host.ISCSI, ports: scsitest.Ports(host.ISCSI, 1)}
	w.san = scsitest.New(store, w.ports...)
	n := w.node(t)
	in := &fault.Interceptor{Ledger: &ledger.Ledger{}}
	h := host.Intercept(n, in, "driver")
	const secret = "hunter2hunter2"
	for _, args := range [][]string{{"-n", "node.session.auth.password", "-v", secret}, {"--name", "node.session.auth.password", "--value", secret},
		{"-n", "node.session.auth.password", "-v" + secret}, {"-n", "node.session.auth.password", "--value=" + secret}} {
		if out, err := h.Exec().Command("iscsiadm", append([]string{"-m", "node", "-o", "update"}, args...)...).CombinedOutput(); err != nil || strings.Contains(string(out), secret) {
			t.Errorf("%v: %v, %q", args, err, out)
		}
	}
	must(t, h.WriteFile("/sys/class/scsi_host/host1/scan", []byte("- - 5\n"), 0o200))
	entries := in.Ledger.Entries()
	for _, e := range entries {
		if strings.Contains(e.Request+e.Error, secret) {
			t.Errorf("secret in %+v", e)
		}
	}
	if last := entries[len(entries)-1]; last.Request != "/sys/class/scsi_host/host1/scan - - 5" {
		t.Errorf("a scan in the ledger: %q", last.Request)
	}
	if out := n.run(t, 0, "iscsiadm", "-m", "node", "-o", "show"); strings.Contains(out, secret) || !strings.Contains(out, "node.session.auth.password = ********") {
		t.Errorf("record shown: %s", out)
	}
}
