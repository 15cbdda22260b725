package scsi

import (
	"context"
	"fmt"
)

// Refresh looks at the fabrics anew. FC does that by itself: a port that an
// adapter is zoned to and that is up becomes a remote port, is logged in to and
// scanned; so is one that is back after a loss (fc_remote_port_add in the
// kernel's scsi_transport_fc). For iSCSI nothing happens.
func (s *Stack) Refresh() {
	if !s.on {
		return
	}
	for _, h := range s.sortedHosts() {
		if h.Protocol != FC {
			continue
		}
		up := map[Target]bool{}
		for _, t := range s.cfg.SAN.Targets(h.WWPN) {
			up[t] = true
			n := h.nexus(t)
			known := n != nil
			if !known {
				n = &nexus{host: h, id: len(h.nexuses), Initiator: h.WWPN, Target: t, port: h.nextPort, lost: true}
			}
			if !n.lost {
				continue
			}
			if s.cfg.SAN.Login(context.Background(), h.WWPN, t, CHAP{}) != nil {
				continue
			}
			n.lost = false
			if !known {
				h.nextPort++
				h.nexuses = append(h.nexuses, n)
				s.tell(Add, KindPort, n.rport())
			}
			s.scan(n, nil)
		}
		for _, n := range h.nexuses {
			if !up[n.Target] {
				n.lost = true
			}
		}
	}
}

func (h *Host) nexus(t Target) *nexus {
	for _, n := range h.nexuses {
		if n.Target == t {
			return n
		}
	}
	return nil
}

// rport is the name of a remote port.
func (n *nexus) rport() string { return fmt.Sprintf("rport-%d:0-%d", n.host.Number, n.port) }
