package sim

import (
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/csilab/csilab/sim/wholefile"
)

// pinnedFile is the driver's configuration with Options.PinCertificate.
func (b *vsphere) pinnedFile() string { return filepath.Join(b.l.dir.path, "conf", "csi-vsphere.conf") }

// writePinned writes it for the certificate that the vCenter has now: with its
// SHA-1 or its SHA-256, drivers take both.
func (b *vsphere) writePinned(long bool) error {
	vc := b.sites[0]
	print := vc.Thumbprint()
	if long {
		block, _ := pem.Decode(vc.CA())
		print = strings.ReplaceAll(fmt.Sprintf("% X", sha256.Sum256(block.Bytes)), " ", ":")
	}
	conf := strings.ReplaceAll(b.conf(), "insecure-flag = \"true\"\n", "")
	conf = strings.Replace(conf, "datacenters = ", fmt.Sprintf("thumbprint = %q\ndatacenters = ", print), 1)
	file := b.pinnedFile()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := wholefile.Write(file, []byte(conf), 0o600); err != nil {
		return fmt.Errorf("the driver's configuration: %w", err)
	}
	return nil
}
