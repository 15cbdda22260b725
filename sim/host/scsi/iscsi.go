package scsi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
)

// RecordKey names a node record of open-iscsi: a target at one of its portals.
type RecordKey struct {
	Target string // iSCSI name
	Portal string // IP:port
}

// Record is a node record: how to log in to a target at a portal.
type Record struct {
	RecordKey
	Tag      int
	source   string // the portal (IP:port) that told of it; "": static
	settings map[string]string
}

// settingDefaults are the settings of a node record and their values in the
// iscsid.conf of open-iscsi 2.1. Those that a record takes from what was
// discovered are not here.
var settingDefaults = map[string]string{
	"node.startup":                                "manual",
	"node.leading_login":                          "No",
	"iface.iscsi_ifacename":                       "default",
	"iface.transport_name":                        "tcp",
	"node.session.initial_cmdsn":                  "0",
	"node.session.initial_login_retry_max":        "8",
	"node.session.xmit_thread_priority":           "-20",
	"node.session.cmds_max":                       "128",
	"node.session.queue_depth":                    "32",
	"node.session.nr_sessions":                    "1",
	"node.session.scan":                           "auto",
	"node.session.reopen_max":                     "0",
	"node.session.auth.authmethod":                "None",
	"node.session.auth.username":                  "",
	"node.session.auth.password":                  "",
	"node.session.auth.username_in":               "",
	"node.session.auth.password_in":               "",
	"node.session.auth.chap_algs":                 "MD5",
	"node.session.timeo.replacement_timeout":      "120",
	"node.session.err_timeo.abort_timeout":        "15",
	"node.session.err_timeo.lu_reset_timeout":     "30",
	"node.session.err_timeo.tgt_reset_timeout":    "30",
	"node.session.err_timeo.host_reset_timeout":   "60",
	"node.session.iscsi.FastAbort":                "Yes",
	"node.session.iscsi.InitialR2T":               "No",
	"node.session.iscsi.ImmediateData":            "Yes",
	"node.session.iscsi.FirstBurstLength":         "262144",
	"node.session.iscsi.MaxBurstLength":           "16776192",
	"node.session.iscsi.DefaultTime2Retain":       "0",
	"node.session.iscsi.DefaultTime2Wait":         "2",
	"node.session.iscsi.MaxConnections":           "1",
	"node.session.iscsi.MaxOutstandingR2T":        "1",
	"node.session.iscsi.ERL":                      "0",
	"node.conn[0].startup":                        "manual",
	"node.conn[0].tcp.window_size":                "524288",
	"node.conn[0].tcp.type_of_service":            "0",
	"node.conn[0].timeo.logout_timeout":           "15",
	"node.conn[0].timeo.login_timeout":            "15",
	"node.conn[0].timeo.auth_timeout":             "45",
	"node.conn[0].timeo.noop_out_interval":        "5",
	"node.conn[0].timeo.noop_out_timeout":         "5",
	"node.conn[0].iscsi.MaxXmitDataSegmentLength": "0",
	"node.conn[0].iscsi.MaxRecvDataSegmentLength": "262144",
	"node.conn[0].iscsi.HeaderDigest":             "None",
	"node.conn[0].iscsi.DataDigest":               "None",
	"node.conn[0].iscsi.IFMarker":                 "No",
	"node.conn[0].iscsi.OFMarker":                 "No",
}

// ErrSetting is an unknown name of a setting.
var ErrSetting = errors.New("iscsi: no such setting")

// Get gives the value of a setting.
func (r *Record) Get(name string) string {
	if v, ok := r.settings[name]; ok {
		return v
	}
	return settingDefaults[name]
}

// Set changes a setting. Errors: ErrSetting.
func (r *Record) Set(name, value string) error {
	if _, ok := settingDefaults[name]; !ok {
		return fmt.Errorf("%w: %q", ErrSetting, name)
	}
	r.settings[name] = value
	return nil
}

// chap is what a log-in sends. As in open-iscsi, authmethod isn't looked at:
// what there is of a name and secret is sent (iscsi_setup_authentication).
func (r *Record) chap() CHAP {
	return CHAP{r.Get("node.session.auth.username"), r.Get("node.session.auth.password")}
}

// ip and port of the portal.
func (k RecordKey) address() (ip, port string) {
	ip, port, err := net.SplitHostPort(k.Portal)
	if err != nil {
		return k.Portal, "3260"
	}
	return ip, port
}

func compareRecords(a, b RecordKey) int {
	return cmp.Or(cmp.Compare(a.Target, b.Target), cmp.Compare(a.Portal, b.Portal))
}

// Records are the node records in order.
func (s *Stack) Records() []*Record {
	return slices.SortedFunc(maps.Values(s.records), func(a, b *Record) int { return compareRecords(a.RecordKey, b.RecordKey) })
}

// AddRecord makes a record, or gives the one that is there.
func (s *Stack) AddRecord(t Target) *Record {
	k := RecordKey{t.Name, t.Portal}
	if r := s.records[k]; r != nil {
		return r
	}
	r := &Record{RecordKey: k, Tag: t.Tag, settings: map[string]string{}}
	s.records[k] = r
	return r
}

// Discover asks a portal for its targets (SendTargets). A portal without a port
// is at 3260. Errors: ErrUnreachable; errNoISCSI.
func (s *Stack) Discover(ctx context.Context, portal string) ([]Target, error) {
	if s.cfg.Adapters.IQN == "" {
		return nil, errNoISCSI
	}
	return s.cfg.SAN.Discover(ctx, s.cfg.Adapters.IQN, withPort(portal))
}

var errNoISCSI = errors.New("iscsi: the node has no initiator name")

func withPort(portal string) string {
	if _, _, err := net.SplitHostPort(portal); err == nil {
		return portal
	}
	return net.JoinHostPort(strings.Trim(portal, "[]"), "3260")
}

// Session is an iSCSI session of one connection.
type Session struct {
	ID  int
	Key RecordKey
	Tag int
	*nexus
	user string // CHAP
}

func (x *Session) name() string { return "session" + strconv.Itoa(x.ID) }

// Sessions are the sessions by number.
func (s *Stack) Sessions() []*Session {
	return slices.SortedFunc(maps.Values(s.sessions), func(a, b *Session) int { return cmp.Compare(a.ID, b.ID) })
}

// session finds the session of a record.
func (s *Stack) session(k RecordKey) *Session {
	for _, x := range s.sessions {
		if x.Key == k {
			return x
		}
	}
	return nil
}

// Up says whether the session's target answers.
func (s *Stack) Up(x *Session) bool { return s.up(x.nexus) }

// errSession: the record has a session already.
var errSession = errors.New("iscsi: session exists")

// errRecord: there is no such record.
var errRecord = errors.New("iscsi: no record")

// Login makes the session of a record and scans its target, unless the record
// says node.session.scan = manual. Errors: ErrUnreachable, ErrAuthentication,
// errSession, errRecord, errNoISCSI.
func (s *Stack) Login(ctx context.Context, k RecordKey) (*Session, error) {
	r := s.records[k]
	if r == nil {
		return nil, errRecord
	}
	if s.cfg.Adapters.IQN == "" {
		return nil, errNoISCSI
	}
	if s.session(k) != nil {
		return nil, errSession
	}
	t := Target{Protocol: ISCSI, Name: k.Target, Portal: k.Portal, Tag: r.Tag}
	c := r.chap()
	if err := s.cfg.SAN.Login(ctx, s.cfg.Adapters.IQN, t, c); err != nil {
		return nil, err
	}
	// A session has a SCSI host of its own, with one target at id 0 (iscsi_tcp).
	h := s.addHost(ISCSI)
	s.nextSID++
	x := &Session{ID: s.nextSID, Key: k, Tag: r.Tag, user: c.User,
		nexus: &nexus{host: h, Initiator: s.cfg.Adapters.IQN, Target: t}}
	x.nexus.session = x
	h.session, h.nexuses = x, []*nexus{x.nexus}
	s.sessions[x.ID] = x
	s.tell(Add, KindHost, h.name())
	s.tell(Add, KindSession, x.name())
	if r.Get("node.session.scan") != "manual" {
		s.scan(x.nexus, nil)
	}
	return x, nil
}

// Logout ends a session: its disks go, whoever uses them.
func (s *Stack) Logout(x *Session) {
	for _, d := range s.disksOf(x.nexus) {
		s.Delete(d.Name)
	}
	s.tell(Remove, KindSession, x.name())
	s.tell(Remove, KindHost, x.host.name())
	delete(s.sessions, x.ID)
	delete(s.hosts, x.host.Number)
	s.cfg.SAN.Logout(x.Initiator, x.nexus.Target)
}

// settingNames are the settings in the order that a record shows them.
var settingNames = slices.Sorted(maps.Keys(settingDefaults))
