package array

import (
	"fmt"
	"slices"
	"time"
)

// Family of an array: what the WSAPI takes differs.
type Family string

// The families.
const (
	Primera  Family = "primera" // and Alletra 9000: thin, or reduced
	ThreePAR Family = "3par"    // full, thin, deduplicated, compressed
)

// Config says what an array is. Zero values have defaults.
type Config struct {
	Name   string // default "array"
	Family Family // default Primera
	// Seed makes serial number, WWNs, uuids and session keys.
	Seed uint64
	// Serial number, default derived from Seed: unique over the arrays of a lab.
	Serial string
	// CapacityMiB is what all CPGs take together at most, default 100 TiB.
	CapacityMiB int64
	Domains     []string
	Ports       []Port // default: see DefaultPorts
	Users       []User
	// Nodes (controllers), default 2; the number of sessions depends on it.
	Nodes int
	// MaxVolumes and MaxSnapshots, defaults 65536 and 64000 (unverified; they
	// depend on the model).
	MaxVolumes, MaxSnapshots int
	// CopyMiBs is how fast content is copied, in MiB per second, default 1000.
	CopyMiBs int64
	// SessionIdle is when an unused session ends, default 15 minutes.
	SessionIdle time.Duration
	// MaxSessions, default by Nodes.
	MaxSessions int
}

// Array is one array.
type Array struct {
	cfg    Config
	system uint32 // what WWNs end with

	cpgs        table[string, cpg]
	usedMiB     int64 // by all CPGs and the flash cache
	flash       *FlashCache
	flashPolicy FlashPolicy
	volumes     table[string, volume]
	byID        map[int64]*volume
	byWWN       map[string]*volume
	byImage     map[string]*volume
	children    many[*volume, *volume] // copies, by what they are a copy of
	snapshots   int
	volumeSeq   uint64 // number of volumes that were ever made
	nextID      int64
	expiring    expiry
	hosts       table[string, host]
	paths       map[Path]*host
	hostSeq     int64
	volumeSets  table[string, volumeSet]
	setsOf      many[*volume, *volumeSet]
	hostSets    table[string, hostSet]
	hostSetsOf  many[*host, *hostSet]
	setSeq      int64
	rules       table[*volumeSet, Rule]
	ruleSeq     int64
	ports       map[PortPos]*port
	logins      map[Path]map[PortPos]struct{}
	vluns       table[vlunKey, vlun]
	exports     many[*volume, *vlun]
	exportsTo   many[*host, *vlun] // to one host
	exportsSet  many[*hostSet, *vlun]
	exportsPort many[PortPos, *vlun] // port presents
	setVLUNs    table[setVLUNKey, setVLUN]
	exportsOf   many[*volumeSet, *setVLUN]
	tasks       table[int64, task]
	taskSeq     int64
	active      map[*task]struct{}
	finished    []int64 // tasks, in the order in which they ended
	groups      table[string, group]
	groupSeq    int64
	following   map[*group]struct{} // periodic groups that are started and primary here
	links       map[string]*link
	users       map[string]User
	sessions    map[string]*session
	sessionSeq  uint64
	events      []Event
	eventSeq    int64
}

// New returns an empty array. Errors name what is wrong in the configuration.
func New(cfg Config) (*Array, error) {
	if cfg.Name == "" {
		cfg.Name = "array"
	}
	if err := checkName("name", cfg.Name, MaxName); err != nil {
		return nil, err
	}
	if cfg.Family == "" {
		cfg.Family = Primera
	}
	if cfg.Family != Primera && cfg.Family != ThreePAR {
		return nil, fmt.Errorf("array: family %q: allowed are %q and %q", cfg.Family, Primera, ThreePAR)
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.Nodes, 2)
	def(&cfg.MaxVolumes, 65536)
	def(&cfg.MaxSnapshots, 64000)
	def(&cfg.MaxSessions, sessionsFor(cfg.Nodes))
	if cfg.CapacityMiB == 0 {
		cfg.CapacityMiB = 100 << 20
	}
	if cfg.CopyMiBs == 0 {
		cfg.CopyMiBs = 1000
	}
	if cfg.SessionIdle == 0 {
		cfg.SessionIdle = 15 * time.Minute
	}
	a := &Array{
		cfg: cfg, system: uint32(mix(cfg.Seed, "system", 0))&0xffffff | 1,
		cpgs: newTable[string, cpg](), volumes: newTable[string, volume](),
		byID: map[int64]*volume{}, byWWN: map[string]*volume{}, byImage: map[string]*volume{}, children: many[*volume, *volume]{},
		hosts: newTable[string, host](), paths: map[Path]*host{},
		volumeSets: newTable[string, volumeSet](), setsOf: many[*volume, *volumeSet]{},
		hostSets: newTable[string, hostSet](), hostSetsOf: many[*host, *hostSet]{},
		rules: newTable[*volumeSet, Rule](),
		ports: map[PortPos]*port{}, logins: map[Path]map[PortPos]struct{}{},
		vluns: newTable[vlunKey, vlun](), exports: many[*volume, *vlun]{}, exportsTo: many[*host, *vlun]{},
		exportsSet: many[*hostSet, *vlun]{}, exportsPort: many[PortPos, *vlun]{},
		setVLUNs: newTable[setVLUNKey, setVLUN](), exportsOf: many[*volumeSet, *setVLUN]{},
		tasks: newTable[int64, task](), active: map[*task]struct{}{},
		groups: newTable[string, group](), following: map[*group]struct{}{}, links: map[string]*link{},
		users: map[string]User{}, sessions: map[string]*session{},
	}
	if a.cfg.Serial == "" {
		a.cfg.Serial = fmt.Sprintf("CZ%08d", mix(cfg.Seed, "serial", 0)%100_000_000)
	}
	a.cfg.Domains = slices.Clone(cfg.Domains)
	ports := cfg.Ports
	if ports == nil {
		ports = DefaultPorts(cfg.Nodes)
	}
	for _, p := range ports {
		if err := a.addPort(p); err != nil {
			return nil, err
		}
	}
	for _, u := range cfg.Users {
		if err := a.addUser(u); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Config returns the configuration, with the defaults filled in.
func (a *Array) Config() Config {
	c := a.cfg
	c.Domains, c.Ports, c.Users = slices.Clone(c.Domains), a.Ports(), slices.Clone(c.Users)
	return c
}

// System is the number that the array's WWNs end with.
func (a *Array) System() uint32 { return a.system }

// checkDomain refuses a domain that isn't there. Empty is none.
func (a *Array) checkDomain(domain string) error {
	if domain == "" || slices.Contains(a.cfg.Domains, domain) {
		return nil
	}
	if err := checkName("domain", domain, MaxName); err != nil {
		return err
	}
	return &Error{Kind: NonExistentDomain, Field: "domain", Value: domain, Reason: "no such domain"}
}

// mix is a number that is a pure function of its arguments.
func mix(seed uint64, what string, n uint64) uint64 {
	x := seed ^ n*0x9e3779b97f4a7c15
	for i := range len(what) {
		x = (x ^ uint64(what[i])) * 0x100000001b3
	}
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// uuid is built by hand, as are other ids: commands spend much of their time on
// them.
func uuid(seed uint64, what string, n uint64) string {
	hi, lo := mix(seed, what+"/hi", n), mix(seed, what+"/lo", n)
	var b [36]byte
	out := appendHex(b[:0], hi>>32, 8, lowerHex)
	out = appendHex(append(out, '-'), hi>>16, 4, lowerHex)
	out = appendHex(append(out, '-', '4'), hi, 3, lowerHex)
	out = appendHex(append(out, '-'), lo>>48&0x3fff|0x8000, 4, lowerHex)
	out = appendHex(append(out, '-'), lo, 12, lowerHex)
	return string(out)
}

const (
	lowerHex = "0123456789abcdef"
	upperHex = "0123456789ABCDEF"
)

// appendHex appends the lowest digits of a number.
func appendHex(b []byte, x uint64, digits int, of string) []byte {
	for i := digits - 1; i >= 0; i-- {
		b = append(b, of[x>>(4*i)&15])
	}
	return b
}
