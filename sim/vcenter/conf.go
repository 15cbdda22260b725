package vcenter

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// Conf is a configuration file of the vSphere CSI driver (csi-vsphere.conf)
// for this vCenter, as upstream and csilab's driver read it. It holds the
// password. Certificates are not checked with it: see CA and Thumbprint for a
// stricter one.
func (v *VCenter) Conf(clusterID string) string {
	host, port, err := net.SplitHostPort(v.url.Host)
	if err != nil {
		host, port = v.url.Host, "443"
	}
	user, password := v.cfg.User, v.cfg.Password
	if a, ok := v.accounts.find(parsePrincipal(user)); ok {
		password = a.Password
	}
	var b strings.Builder
	fmt.Fprintf(&b, "[Global]\ncluster-id = %s\ncluster-distribution = \"csilab\"\ninsecure-flag = \"true\"\n\n", quote(clusterID))
	fmt.Fprintf(&b, "[VirtualCenter %s]\nuser = %s\npassword = %s\nport = \"%s\"\ndatacenters = \"%s\"\ninsecure-flag = \"true\"\n",
		quote(host), quote(user), quote(password), port, strings.Join(v.Datacenters(), ", "))
	categories := v.cfg.categories()
	if len(categories) > 0 {
		fmt.Fprintf(&b, "\n[Labels]\ntopology-categories = \"%s\"\n", strings.Join(categories, ", "))
	}
	return b.String()
}

// quote writes a value as gcfg, which upstream uses, reads it.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// WriteEnv writes the environment of a client as NAME=value lines to path,
// and a csi-vsphere.conf of mode 0600 beside it. The file appears by rename,
// complete, so that a script can wait for it. Values are as a shell reads them.
func (v *VCenter) WriteEnv(path, clusterID string) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("vcenter: env file: %w", err)
	}
	conf := filepath.Join(filepath.Dir(path), "csi-vsphere.conf")
	if conf == path {
		return fmt.Errorf("vcenter: env file %q: the name is taken by the driver's configuration, which is written beside it", path)
	}
	if err := replaceFile(conf, []byte(v.Conf(clusterID)), 0o600); err != nil {
		return fmt.Errorf("vcenter: %w", err)
	}
	ds := v.DatastoreNames()
	second := ds[0]
	if len(ds) > 1 {
		second = ds[1]
	}
	var b strings.Builder
	for _, kv := range [][2]string{
		{"CSILAB_VCENTER_URL", v.encodedURL()},
		{"CSILAB_DATACENTER", v.Datacenter()},
		{"CSILAB_DATASTORE", ds[0]},
		{"CSILAB_DATASTORE2", second},
		{"CSILAB_RESOURCE_POOL", v.ResourcePool()},
		{"CSILAB_POLICY", v.Policy()},
		{"CSILAB_VSPHERE_CONF", conf},
	} {
		fmt.Fprintf(&b, "%s=%s\n", kv[0], shell(kv[1]))
	}
	// The URL holds the password.
	if err := replaceFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("vcenter: %w", err)
	}
	return nil
}

// encodedURL is the URL with all of user and password percent-encoded that a
// shell or another URL parser might stumble over.
func (v *VCenter) encodedURL() string {
	encode := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0 {
				b.WriteByte(c)
			} else {
				fmt.Fprintf(&b, "%%%02X", c)
			}
		}
		return b.String()
	}
	password, _ := v.url.User.Password()
	return fmt.Sprintf("%s://%s:%s@%s%s", v.url.Scheme, encode(v.url.User.Username()), encode(password), v.url.Host, v.url.Path)
}

// shell quotes a value only where a shell needs it, so that simple readers of
// NAME=value lines get along too.
func shell(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@%+,=") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// replaceFile writes a file beside path and renames it.
func replaceFile(path string, data []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}
