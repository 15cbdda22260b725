package vcenter

import (
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/csilab/csilab/sim/face"
	"github.com/csilab/csilab/sim/wholefile"
)

// certificateFile in StateDir holds certificate and key.
const certificateFile = "vcenter.pem"

// certificate is the configured one, the one kept in StateDir, or a new
// self-signed one.
func (v *VCenter) certificate() (*tls.Certificate, error) {
	if v.cfg.Certificate != nil {
		return v.cfg.Certificate, nil
	}
	host, _, err := net.SplitHostPort(v.url.Host)
	if err != nil {
		host = v.url.Host
	}
	var path string
	if v.cfg.StateDir != "" {
		path = filepath.Join(v.cfg.StateDir, certificateFile)
		if c, err := tls.LoadX509KeyPair(path, path); err == nil && c.Leaf.VerifyHostname(host) == nil && time.Now().Before(c.Leaf.NotAfter) {
			return &c, nil
		}
	}
	c, err := face.SelfSigned(host)
	if err != nil {
		return nil, fmt.Errorf("vcenter: certificate: %w", err)
	}
	if path != "" {
		text, err := encoded(c)
		if err == nil {
			err = wholefile.Write(path, text, 0o600)
		}
		if err != nil {
			return nil, fmt.Errorf("vcenter: certificate: %w", err)
		}
	}
	return c, nil
}

// encoded is a certificate with its key, in PEM.
func encoded(c *tls.Certificate) ([]byte, error) {
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return nil, err
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...), nil
}

// CA is the certificate to trust, in PEM; nil without TLS.
func (v *VCenter) CA() []byte {
	c := v.cert.Load()
	if c == nil {
		return nil
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[len(c.Certificate)-1]})
}

// Thumbprint is the SHA-1 of the certificate, in upper case hex with colons as
// vSphere writes it; "" without TLS.
func (v *VCenter) Thumbprint() string {
	c := v.cert.Load()
	if c == nil {
		return ""
	}
	sum := sha1.Sum(c.Certificate[0])
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}
