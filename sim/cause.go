package sim

import (
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// cause finds out for which call of a kubelet or registrar a driver acts on its
// node. What a driver does with files, mounts and commands carries no context;
// but it acts only while it is called, and names the volume's paths where it is
// called for several at once.
func (l *Lab) cause(c fault.Call) uint64 {
	node, ok := strings.CutPrefix(c.Component, "driver@")
	if !ok || c.Hop != ledger.Host {
		return 0
	}
	calls := l.Ledger.Open(ledger.OnHop(ledger.CSI), ledger.Any(ledger.By("kubelet@"+node), ledger.By("registrar@"+node)))
	if len(calls) == 1 {
		return calls[0].Seq
	}
	var of uint64
	for _, e := range calls {
		if !names(e.Request, c.Request) {
			continue
		}
		if of != 0 {
			return 0 // it may be either
		}
		of = e.Seq
	}
	return of
}

// names says whether the request of a CSI call names one of the paths of an
// operation on the node.
func names(request, operation string) bool {
	for _, word := range strings.Fields(operation) {
		if strings.HasPrefix(word, kubeletRoot+"/") && strings.Contains(request, `"`+word+`"`) {
			return true
		}
	}
	return false
}
