package vcenter

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/envfile"
	"github.com/csilab/csilab/sim/wholefile"
)

// ConfName is what a configuration of the driver is called, after a name of its
// own where several may be in a directory.
const ConfName = "csi-vsphere.conf"

// Conf is a configuration file of the vSphere CSI driver (csi-vsphere.conf)
// for this vCenter, as upstream and csilab's driver read it. It holds the
// password. Certificates are not checked with it: see CA and Thumbprint for a
// stricter one.
func (v *VCenter) Conf(clusterID string) string { return Conf(clusterID, v) }

// Conf is one configuration file for several vCenters. The driver tells them
// apart by host, so each must serve on an address of its own; and it places
// volumes by topology, so each should have zones.
func Conf(clusterID string, vs ...*VCenter) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[Global]\ncluster-id = %s\ncluster-distribution = \"csilab\"\ninsecure-flag = \"true\"\n\n", quote(clusterID))
	var categories []string
	for i, v := range vs {
		if i > 0 {
			b.WriteString("\n")
		}
		host, port, err := net.SplitHostPort(v.url.Host)
		if err != nil {
			host, port = v.url.Host, "443"
		}
		user, password := v.cfg.User, v.cfg.Password
		if a, ok := v.accounts.find(parsePrincipal(user)); ok {
			password = a.Password
		}
		fmt.Fprintf(&b, "[VirtualCenter %s]\nuser = %s\npassword = %s\nport = \"%s\"\ndatacenters = \"%s\"\ninsecure-flag = \"true\"\n",
			quote(host), quote(user), quote(password), port, strings.Join(v.Datacenters(), ", "))
		categories = append(categories, v.cfg.categories()...)
	}
	if len(categories) > 0 {
		slices.Sort(categories)
		fmt.Fprintf(&b, "\n[Labels]\ntopology-categories = \"%s\"\n", strings.Join(slices.Compact(categories), ", "))
	}
	return b.String()
}

// quote writes a value as gcfg, which upstream uses, reads it.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// WriteEnv writes the environment of a client as NAME=value lines to path,
// and a configuration of the driver, PATH.csi-vsphere.conf of mode 0600, beside
// it: what is there is replaced. The file appears by rename, complete, so that a script can wait for it. Values are as a shell reads them.
func (v *VCenter) WriteEnv(path, clusterID string) error {
	conf, err := filepath.Abs(path + "." + ConfName)
	if err == nil {
		err = wholefile.Write(conf, []byte(v.Conf(clusterID)), 0o600)
	}
	if err == nil {
		err = envfile.Write(path, Env(conf, []string{"vc-1"}, []*VCenter{v}))
	}
	if err != nil {
		return fmt.Errorf("vcenter: %w", err)
	}
	return nil
}

// Env is the environment, as names and values, of a client of several vCenters:
// that of the first, and the URLs of the others as CSILAB_VCENTER_URL_2 and so
// on, with their names in CSILAB_VCENTERS. conf is the path of the driver's
// configuration (see Conf).
func Env(conf string, names []string, vs []*VCenter) [][2]string {
	v := vs[0]
	ds := v.DatastoreNames()
	second := ds[0]
	if len(ds) > 1 {
		second = ds[1]
	}
	env := [][2]string{ // the URLs hold passwords
		{"CSILAB_VCENTER_URL", v.encodedURL()},
		{"CSILAB_DATACENTER", v.Datacenter()},
		{"CSILAB_DATASTORE", ds[0]},
		{"CSILAB_DATASTORE2", second},
		{"CSILAB_RESOURCE_POOL", v.ResourcePool()},
		{"CSILAB_POLICY", v.Policy()},
		{"CSILAB_VSPHERE_CONF", conf},
		{"CSILAB_VCENTERS", strings.Join(names, ",")},
	}
	for i, v := range vs[1:] {
		env = append(env, [2]string{fmt.Sprintf("CSILAB_VCENTER_URL_%d", i+2), v.encodedURL()})
	}
	return env
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
