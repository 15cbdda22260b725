package vsphere

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// Config is what csi-vsphere.conf says. Password is a secret.
type Config struct {
	// ClusterID names the Kubernetes cluster within the vCenter: 1 to 64
	// characters, required.
	ClusterID string
	// Distribution is the Kubernetes distribution, shown in vCenter; optional.
	Distribution string
	// VCenter is the one vCenter, or the first of several.
	VCenter VCenter
	// Others are the further vCenters, up to 4, each with a host of its own.
	// Volumes are placed on them by topology.
	Others []VCenter
	// MaxSnapshots is the limit per volume, 1 to 32. 0 means 3.
	MaxSnapshots int
	// QueryLimit is the page size of volume queries, 1 to 10000 (capped at
	// 1000, the most that CNS gives). 0 means 1000.
	QueryLimit int
	// Topology lists the tag categories that make a topology segment.
	Topology []Category
}

// VCenter is the address and the account.
type VCenter struct {
	Host string
	Port int // 0 means 443
	// User is name@domain, Password its password.
	User, Password string
	// Insecure accepts any certificate.
	Insecure bool
	// CAFile holds PEM certificates of authorities; empty means the system's.
	CAFile string
	// Thumbprint of the server certificate, SHA-1 or SHA-256, hex with colons.
	Thumbprint string
	// Datacenters are names or inventory paths; empty means all.
	Datacenters []string
	// Scheme is https when empty. http is for a dialer that secures the
	// connection itself; no file can set it.
	Scheme string
}

// Category is a tag category and the topology key that its tags are values of.
type Category struct{ Name, Key string }

// topologyPrefix makes the key of a category unless the file names a label.
const topologyPrefix = "topology.csi.vmware.com/"

// DefaultConfigFile is where the file is unless told otherwise.
const DefaultConfigFile = "/etc/cloud/csi-vsphere.conf"

const (
	maxSnapshots = 32 // per virtual disk, vSphere documentation
	maxQuery     = 1000
	maxVCenters  = 5 // as upstream's driver takes
)

// LoadConfig reads the file and the environment that overrides it: VSPHERE_
// VCENTER, VCENTER_PORT, USER, PASSWORD, DATACENTER, INSECURE, LABEL_REGION,
// LABEL_ZONE, and GLOBAL_MAX_SNAPSHOTS_PER_BLOCK_VOLUME. An error names
// section, key, value (never a password's) and what is allowed.
func LoadConfig(path string, getenv func(string) string) (Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	c, err := ParseConfig(b, getenv)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig is LoadConfig on the file's content. A nil getenv is an empty
// environment.
func ParseConfig(b []byte, getenv func(string) string) (Config, error) {
	es, err := parseINI(bytes.NewReader(b))
	if err != nil {
		return Config{}, err
	}
	p := parser{labels: map[string]string{}, vcs: map[string]*connection{}}
	for _, e := range es {
		if err := p.apply(e); err != nil {
			return Config{}, fmt.Errorf("line %d: %w", e.line, err)
		}
	}
	if getenv != nil {
		if err := p.environment(getenv); err != nil {
			return Config{}, err
		}
	}
	return p.finish()
}

// connection is a vCenter as far as a section says.
type connection struct {
	VCenter
	insecure *bool
}

type parser struct {
	c          Config
	hosts      []string
	global     connection             // [Global] holds defaults for [VirtualCenter]
	vcs        map[string]*connection // by host
	categories []string
	zone       string
	region     string
	labels     map[string]string // category to label
}

func bad(section, key, value, allowed string) error {
	return fmt.Errorf("[%s] %s = %q: allowed: %s", section, key, value, allowed)
}

func number(e entry, lo, hi int) (int, error) {
	n, err := strconv.Atoi(e.value)
	if err != nil || n < lo || n > hi {
		return 0, bad(e.section, e.key, e.value, fmt.Sprintf("a number from %d to %d", lo, hi))
	}
	return n, nil
}

func truth(e entry) (bool, error) {
	switch strings.ToLower(e.value) {
	case "true", "yes", "on", "1":
		return true, nil
	case "false", "no", "off", "0", "":
		return false, nil
	}
	return false, bad(e.section, e.key, e.value, "true or false")
}

func list(s string) []string {
	var out []string
	for _, v := range strings.Split(s, ",") {
		if v = strings.TrimSpace(v); v != "" {
			out = append(out, v)
		}
	}
	return out
}

// apply takes one entry. Keys that upstream's driver knows and this one has no
// use for are checked where they are numbers, and ignored.
func (p *parser) apply(e entry) (err error) {
	if (e.sub != "") != (e.section == "virtualcenter" || e.section == "netpermissions" || e.section == "topologycategory") {
		if e.sub == "" {
			return fmt.Errorf("[%s]: a quoted name must follow", e.section)
		}
		return fmt.Errorf("[%s %q]: takes no name", e.section, e.sub)
	}
	switch e.section {
	case "global":
		return p.applyGlobal(e)
	case "virtualcenter":
		return p.applyVCenter(p.vcenter(e.sub), e)
	case "labels":
		switch e.key {
		case "":
		case "zone":
			p.zone = e.value
		case "region":
			p.region = e.value
		case "topology-categories":
			p.categories = list(e.value)
		default:
			return unknown(e, "zone, region, topology-categories")
		}
	case "topologycategory":
		switch e.key {
		case "":
		case "label":
			p.labels[e.sub] = e.value
		default:
			return unknown(e, "label")
		}
	case "snapshot":
		switch e.key {
		case "":
		case "global-max-snapshots-per-block-volume":
			p.c.MaxSnapshots, err = number(e, 1, maxSnapshots)
		case "granular-max-snapshots-per-block-volume-vsan", "granular-max-snapshots-per-block-volume-vvol":
			_, err = number(e, 1, maxSnapshots)
		default:
			return unknown(e, "global-max-snapshots-per-block-volume, granular-max-snapshots-per-block-volume-vsan, granular-max-snapshots-per-block-volume-vvol")
		}
	case "netpermissions":
		switch e.key {
		case "", "ips", "permissions", "rootsquash":
		default:
			return unknown(e, "ips, permissions, rootsquash")
		}
	default:
		return fmt.Errorf("[%s]: unknown section, allowed: Global, VirtualCenter, Labels, TopologyCategory, Snapshot, NetPermissions", e.section)
	}
	return err
}

func unknown(e entry, allowed string) error {
	return fmt.Errorf("[%s] %s: unknown key, allowed: %s", e.section, e.key, allowed)
}

const (
	connectionKeys = "user, password, port, insecure-flag, ca-file, thumbprint, datacenters"
	globalKeys     = connectionKeys + ", cluster-id, supervisor-id, cluster-distribution, query-limit, list-volume-threshold and the intervals of upstream's driver"
	vcenterKeys    = connectionKeys + ", targetvsanfilesharedatastoreurls, targetvsanfileshareclusters, migration-datastore-url"
)

func (p *parser) applyGlobal(e entry) (err error) {
	switch e.key {
	case "", "supervisor-id", "ca-cert-file":
	case "cluster-id":
		p.c.ClusterID = e.value
	case "cluster-distribution":
		p.c.Distribution = e.value
	case "query-limit":
		p.c.QueryLimit, err = number(e, 1, 10000)
	case "list-volume-threshold", "csi-auth-check-intervalinmin", "csi-fetch-preferred-datastores-intervalinmin",
		"cnsvolumeoperationrequest-cleanup-intervalinmin", "volumemigration-cr-cleanup-intervalinmin", "cnsregistervolumes-cleanup-intervalinmin":
		_, err = number(e, 0, 1<<30)
	default:
		return p.connection(&p.global, e, globalKeys)
	}
	return err
}

// vcenter is what is known of a host; a host that is new comes last.
func (p *parser) vcenter(host string) *connection {
	if p.vcs[host] == nil {
		p.hosts = append(p.hosts, host)
		p.vcs[host] = &connection{VCenter: VCenter{Host: host}}
	}
	return p.vcs[host]
}

func (p *parser) applyVCenter(vc *connection, e entry) error {
	switch e.key {
	case "", "targetvsanfileshareclusters", "targetvsanfilesharedatastoreurls", "migration-datastore-url":
		return nil
	}
	return p.connection(vc, e, vcenterKeys)
}

func (p *parser) connection(v *connection, e entry, allowed string) (err error) {
	switch e.key {
	case "user":
		v.User = e.value
	case "password":
		v.Password = e.value
	case "port":
		v.Port, err = number(e, 1, 65535)
	case "insecure-flag":
		var t bool
		if t, err = truth(e); err == nil {
			v.insecure = &t
		}
	case "ca-file":
		v.CAFile = e.value
	case "thumbprint":
		if !thumbprintForm.MatchString(e.value) {
			return bad(e.section, e.key, e.value, "20 (SHA-1) or 32 (SHA-256) hex pairs joined by colons")
		}
		v.Thumbprint = strings.ToUpper(e.value)
	case "datacenters":
		v.Datacenters = list(e.value)
	default:
		return unknown(e, allowed)
	}
	return err
}

var thumbprintForm = regexp.MustCompile(`^([0-9A-Fa-f]{2}:){19}(([0-9A-Fa-f]{2}:){12})?[0-9A-Fa-f]{2}$`)

// environment overrides what the file says about the one vCenter. Unverified:
// what upstream's driver does with VSPHERE_ variables and several vCenters;
// here they are refused.
func (p *parser) environment(getenv func(string) string) error {
	one := &connection{}
	if len(p.hosts) == 1 {
		one = p.vcs[p.hosts[0]]
	}
	several := func(e entry) error {
		if len(p.hosts) > 1 {
			return fmt.Errorf("environment %s: which of the %d vCenters it is for is not known", e.key, len(p.hosts))
		}
		return nil
	}
	set := func(name string, f func(e entry) error) error {
		v := getenv(name)
		if v == "" {
			return nil
		}
		return f(entry{section: "environment", key: name, value: v})
	}
	text := func(to *string) func(entry) error { return func(e entry) error { *to = e.value; return nil } }
	for _, x := range []struct {
		name string
		f    func(entry) error
	}{
		{"VSPHERE_VCENTER", func(e entry) error {
			if len(p.hosts) == 0 { // nothing else names one
				p.hosts, p.vcs[e.value] = []string{e.value}, one
			}
			one.Host = e.value
			return several(e)
		}},
		{"VSPHERE_VCENTER_PORT", func(e entry) (err error) {
			if one.Port, err = number(e, 1, 65535); err == nil {
				err = several(e)
			}
			return err
		}},
		{"VSPHERE_USER", func(e entry) error { one.User = e.value; return several(e) }},
		{"VSPHERE_PASSWORD", func(e entry) error { one.Password = e.value; return several(e) }},
		{"VSPHERE_DATACENTER", func(e entry) error { one.Datacenters = list(e.value); return several(e) }},
		{"VSPHERE_INSECURE", func(e entry) error {
			t, err := truth(e)
			one.insecure = &t
			if err == nil {
				err = several(e)
			}
			return err
		}},
		{"VSPHERE_LABEL_REGION", text(&p.region)},
		{"VSPHERE_LABEL_ZONE", text(&p.zone)},
		{"GLOBAL_MAX_SNAPSHOTS_PER_BLOCK_VOLUME", func(e entry) (err error) { p.c.MaxSnapshots, err = number(e, 1, maxSnapshots); return err }},
	} {
		if err := set(x.name, x.f); err != nil {
			return err
		}
	}
	return nil
}

var userForm = regexp.MustCompile(`^[^@\\\s]+@[^@\\\s]+$`)

func (p *parser) finish() (Config, error) {
	c := p.c
	switch {
	case len(p.hosts) == 0:
		return Config{}, fmt.Errorf(`[VirtualCenter "host"]: section is missing`)
	case len(p.hosts) > maxVCenters:
		return Config{}, fmt.Errorf("[VirtualCenter %q]: the file has %d vCenters, allowed: up to %d", p.hosts[maxVCenters], len(p.hosts), maxVCenters)
	}
	for i, host := range p.hosts {
		v := p.defaulted(p.vcs[host])
		if i == 0 {
			c.VCenter = v
		} else {
			c.Others = append(c.Others, v)
		}
	}
	if p.region != "" {
		c.Topology = append(c.Topology, Category{Name: p.region})
	}
	if p.zone != "" {
		c.Topology = append(c.Topology, Category{Name: p.zone})
	}
	if len(p.categories) > 0 {
		c.Topology = nil
		for _, n := range p.categories {
			c.Topology = append(c.Topology, Category{Name: n})
		}
	}
	if len(c.Topology) > 5 {
		return Config{}, fmt.Errorf("[Labels] topology-categories: %d categories, allowed: up to 5", len(c.Topology))
	}
	for i, t := range c.Topology {
		c.Topology[i].Key = topologyPrefix + t.Name
		if l := p.labels[t.Name]; l != "" {
			c.Topology[i].Key = l
		}
		delete(p.labels, t.Name)
	}
	for n := range p.labels {
		return Config{}, fmt.Errorf("[TopologyCategory %q]: not in [Labels] topology-categories", n)
	}
	return c, c.check()
}

// defaulted fills in what [Global] says.
func (p *parser) defaulted(from *connection) VCenter {
	v, g := from.VCenter, p.global
	or := func(a *string, b string) {
		if *a == "" {
			*a = b
		}
	}
	or(&v.User, g.User)
	or(&v.Password, g.Password)
	or(&v.CAFile, g.CAFile)
	or(&v.Thumbprint, g.Thumbprint)
	if v.Port == 0 {
		v.Port = g.Port
	}
	if v.Datacenters == nil {
		v.Datacenters = g.Datacenters
	}
	if from.insecure == nil {
		from.insecure = g.insecure
	}
	v.Insecure = from.insecure != nil && *from.insecure
	return v
}

// check says what is missing or out of range.
func (c *Config) check() error {
	seen := map[string]bool{c.VCenter.Host: true}
	for _, v := range c.Others {
		if seen[v.Host] {
			return fmt.Errorf("[VirtualCenter %q]: given twice", v.Host)
		}
		seen[v.Host] = true
		one := *c
		one.VCenter, one.Others = v, nil
		if err := one.check(); err != nil {
			return err
		}
	}
	if len(c.Others) > 0 && len(c.Topology) == 0 {
		return fmt.Errorf("[Labels] topology-categories: missing: several vCenters need topology")
	}
	switch v := c.VCenter; {
	case c.ClusterID == "":
		return fmt.Errorf("[Global] cluster-id: missing, allowed: 1 to 64 characters")
	case len(c.ClusterID) > 64:
		return bad("Global", "cluster-id", c.ClusterID, "1 to 64 characters")
	case v.Host == "":
		return fmt.Errorf("[VirtualCenter]: the host is empty")
	case !userForm.MatchString(v.User):
		return bad("VirtualCenter", "user", v.User, "name@domain")
	case v.Password == "":
		return fmt.Errorf("[VirtualCenter %q] password: missing", v.Host)
	case v.Scheme != "" && v.Scheme != "https" && v.Scheme != "http":
		return fmt.Errorf("vCenter scheme %q: allowed: https, http", v.Scheme)
	case c.MaxSnapshots < 0 || c.MaxSnapshots > maxSnapshots:
		return fmt.Errorf("snapshots per volume %d: allowed: 1 to %d", c.MaxSnapshots, maxSnapshots)
	}
	return nil
}

// address is host:port.
func (v VCenter) address() string {
	port := v.Port
	if port == 0 {
		port = 443
	}
	return net.JoinHostPort(strings.Trim(v.Host, "[]"), strconv.Itoa(port))
}
