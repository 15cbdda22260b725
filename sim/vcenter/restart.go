package vcenter

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/csilab/csilab/sim/face"
)

// GoDown ends the vCenter's services as a reboot of the appliance does:
// connections break and are refused (vsphere-csi-driver#3250), all sessions
// with their views and filters are gone, and so are the tasks and their
// history. Inventory, volumes and accounts stay. With stopTasks, tasks whose
// work has not begun are never done; the others are with the hosts and go on,
// but nobody can see their end. ComeUp lets clients in again.
//
// Unverified: that a vCenter remembers no task of before. Its database has
// them, and shows those that ran as failed; that clients get
// ManagedObjectNotFound, as after a restore, is the stricter.
func (v *VCenter) GoDown(stopTasks bool) {
	v.line.SetReachable(false)
	v.KillSessions()
	v.tasks.Restart(stopTasks)
}

// ComeUp lets clients in after GoDown. Whoever was on the way in when it went
// down has no session either.
func (v *VCenter) ComeUp() {
	v.KillSessions()
	v.line.SetReachable(true)
}

// ReplaceCertificate gives the vCenter a new certificate that it signed
// itself, as when certificates are regenerated: connections that exist end, and
// who trusts the old one only (Conf of before) is refused by itself. It does
// not outlive a restart where StateDir keeps the first. Errors: it serves
// without TLS.
func (v *VCenter) ReplaceCertificate() error {
	if v.cert.Load() == nil {
		return errors.New("vcenter: no certificate: it serves without TLS")
	}
	host, _, err := net.SplitHostPort(v.url.Host)
	if err != nil {
		host = v.url.Host
	}
	c, err := face.SelfSigned(host)
	if err != nil {
		return fmt.Errorf("vcenter: certificate: %w", err)
	}
	v.cert.Store(c)
	v.line.Break()
	return nil
}

// presented is the certificate for a handshake.
func (v *VCenter) presented(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return v.cert.Load(), nil
}
