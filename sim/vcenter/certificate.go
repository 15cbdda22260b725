package vcenter

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"time"

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
	c, pemBytes, err := selfSigned(host)
	if err != nil {
		return nil, fmt.Errorf("vcenter: certificate: %w", err)
	}
	if path != "" {
		if err := wholefile.Write(path, pemBytes, 0o600); err != nil {
			return nil, fmt.Errorf("vcenter: certificate: %w", err)
		}
	}
	return c, nil
}

func selfSigned(host string) (*tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      pkix.Name{CommonName: host, Organization: []string{"csilab"}},
		NotBefore:    now.Add(-24 * time.Hour), NotAfter: now.AddDate(10, 0, 0),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = append(t.IPAddresses, ip)
	} else {
		t.DNSNames = append(t.DNSNames, host)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, nil, err
	}
	kb, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	cb := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	kp := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kb})
	c, err := tls.X509KeyPair(cb, kp)
	return &c, append(cb, kp...), err
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
