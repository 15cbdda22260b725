package scsi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
)

func init() { commands["iscsiadm"] = iscsiadm }

// Exit statuses of iscsiadm(8), as of open-iscsi 2.1.
const (
	iscsiErr            = 1
	iscsiErrSessNotFnd  = 2
	iscsiErrTrans       = 4
	iscsiErrInval       = 7
	iscsiErrTransTmo    = 8
	iscsiErrSessExists  = 15
	iscsiErrNoObjsFound = 21
	iscsiErrLoginAuth   = 24
)

var iscsiadmOptions = map[string]spelling{
	"-m": {"mode", "="}, "--mode": {"mode", "="},
	"-t": {"type", "="}, "--type": {"type", "="},
	"-p": {"portal", "="}, "--portal": {"portal", "="},
	"-T": {"targetname", "="}, "--targetname": {"targetname", "="},
	"-o": {"op", "="}, "--op": {"op", "="},
	"-n": {"name", "="}, "--name": {"name", "="},
	"-v": {"value", "="}, "--value": {"value", "="},
	"-I": {"interface", "="}, "--interface": {"interface", "="},
	"-L": {"loginall", "="}, "--loginall": {"loginall", "="},
	"-U": {"logoutall", "="}, "--logoutall": {"logoutall", "="},
	"-r": {"sid", "="}, "--sid": {"sid", "="},
	"-P": {"print", "="}, "--print": {"print", "="},
	"-d": {"debug", "="}, "--debug": {"debug", "="},
	"-l": {"login", ""}, "--login": {"login", ""},
	"-u": {"logout", ""}, "--logout": {"logout", ""},
	"-R": {"rescan", ""}, "--rescan": {"rescan", ""},
	"-s": {"stats", ""}, "--stats": {"stats", ""},
	"-S": {"show", ""}, "--show": {"show", ""},
	"-D": {"discover", ""}, "--discover": {"discover", ""},
	"-V": {"version", ""}, "--version": {"version", ""},
}

func iscsiadm(s *Stack, out, errs io.Writer, args []string) int {
	o, err := parse(args, iscsiadmOptions)
	if err == nil && len(o.operand) > 0 {
		err = fmt.Errorf("unknown argument '%s'", o.operand[0])
	}
	if err != nil {
		fmt.Fprintf(errs, "iscsiadm: %v\n", err)
		return iscsiErrInval
	}
	if o.has("version") {
		fmt.Fprintln(out, "iscsiadm version 2.1.8")
		return 0
	}
	c := iscsiCall{s, out, errs, o}
	switch o.get("mode") {
	case "discovery", "discoverydb":
		return c.discovery()
	case "node":
		return c.node()
	case "session":
		return c.session()
	case "iface":
		return c.iface()
	case "host":
		return c.host()
	}
	return c.refuse("mode '%s'", o.get("mode"))
}

// iscsiCall is one run of iscsiadm.
type iscsiCall struct {
	s         *Stack
	out, errs io.Writer
	options
}

// refuse says that something isn't there to be had.
func (c iscsiCall) refuse(format string, a ...any) int {
	fmt.Fprintf(c.errs, "iscsiadm: "+format+" is not supported\n", a...)
	return iscsiErrInval
}

// only refuses options that a mode doesn't take.
func (c iscsiCall) only(names ...string) int {
	for name := range c.values {
		if name != "mode" && name != "debug" && !slices.Contains(names, name) {
			return c.refuse("%s mode: option '--%s'", c.get("mode"), name)
		}
	}
	return 0
}

func (c iscsiCall) discovery() int {
	if status := c.only("type", "portal", "op", "interface", "login", "discover", "print"); status != 0 {
		return status
	}
	if c.get("mode") == "discoverydb" && !c.has("discover") {
		return c.refuse("discoverydb mode without --discover")
	}
	if t := c.get("type"); t != "st" && t != "sendtargets" {
		return c.refuse("discovery type '%s'", t)
	}
	portal := c.get("portal")
	if portal == "" {
		fmt.Fprintln(c.errs, "iscsiadm: Please specify portal as <ipaddr>[:<ipport>]")
		return iscsiErrInval
	}
	portal, _, _ = strings.Cut(portal, ",")
	found, err := c.s.Discover(context.Background(), portal)
	switch {
	case errors.Is(err, errNoISCSI):
		return c.noInitiator()
	case err != nil:
		host, _, _ := strings.Cut(withPort(portal), ":")
		fmt.Fprintf(c.errs, "iscsiadm: cannot make connection to %s: No route to host\n", host)
		fmt.Fprintln(c.errs, "iscsiadm: connection login retries (reopen_max) 5 exceeded")
		fmt.Fprintln(c.errs, "iscsiadm: Could not perform SendTargets discovery: encountered connection failure")
		return iscsiErrTrans
	case len(found) == 0:
		fmt.Fprintln(c.errs, "iscsiadm: No portals found")
		return iscsiErrNoObjsFound
	}
	ops := c.values["op"]
	for _, op := range ops {
		if op != "new" && op != "update" && op != "delete" && op != "nonpersistent" {
			return c.refuse("operation '%s'", op)
		}
	}
	if !slices.Contains(ops, "nonpersistent") {
		c.keep(withPort(portal), found, ops)
	}
	var all []*Record
	for _, t := range found {
		fmt.Fprintf(c.out, "%s,%d %s\n", t.Portal, t.Tag, t.Name)
		if r := c.s.records[RecordKey{t.Name, t.Portal}]; r != nil {
			all = append(all, r)
		}
	}
	if c.has("login") {
		return c.login(all)
	}
	return 0
}

// keep makes the node records agree with what was found, by the operations: "new"
// adds what is missing, "update" writes what is there anew, which puts its
// settings back to the defaults, "delete" drops what the same portal told of
// earlier and tells no more, unless there is a session (exec_disc_op_on_recs in
// open-iscsi).
// Unverified: that no operation stands for all three.
func (c iscsiCall) keep(source string, found []Target, ops []string) {
	does := func(op string) bool { return len(ops) == 0 || slices.Contains(ops, op) }
	if does("delete") {
		for _, r := range c.s.Records() {
			if r.source == source && !slices.ContainsFunc(found, func(t Target) bool { return t.Name == r.Target && t.Portal == r.Portal }) && c.unused(r) {
				delete(c.s.records, r.RecordKey)
			}
		}
	}
	for _, t := range found {
		r := c.s.records[RecordKey{t.Name, t.Portal}]
		switch {
		case r != nil && does("update"):
			r.Tag = t.Tag
			clear(r.settings)
		case r == nil && does("new"):
			r = c.s.AddRecord(t)
		default:
			continue
		}
		r.source = source
	}
}

// unused says whether a record has no session; of one that has it warns.
func (c iscsiCall) unused(r *Record) bool {
	if c.s.session(r.RecordKey) == nil {
		return true
	}
	fmt.Fprintf(c.errs, "iscsiadm: This command will remove the record [iface: default, target: %s, portal: %s], but a session is using it. Logout session then rerun command to remove record.\n",
		r.Target, commaPortal(r.RecordKey))
	return false
}

func (c iscsiCall) noInitiator() int {
	fmt.Fprintln(c.errs, "iscsiadm: Could not get InitiatorName from /etc/iscsi/initiatorname.iscsi")
	return iscsiErrInval
}

// match finds the records that --targetname and --portal name.
func (c iscsiCall) match() []*Record {
	var found []*Record
	for _, r := range c.s.Records() {
		if t := c.get("targetname"); t != "" && t != r.Target {
			continue
		}
		if !portalMatches(c.get("portal"), r) {
			continue
		}
		found = append(found, r)
	}
	return found
}

// portalMatches reads IP, IP:port or IP:port,tag.
func portalMatches(want string, r *Record) bool {
	if want == "" {
		return true
	}
	want, tag, tagged := strings.Cut(want, ",")
	if tagged && tag != strconv.Itoa(r.Tag) {
		return false
	}
	ip, _ := r.address()
	return want == r.Portal || want == ip || want == "["+ip+"]"
}

func (c iscsiCall) node() int {
	if status := c.only("targetname", "portal", "op", "name", "value", "interface", "login", "logout", "loginall", "logoutall", "rescan", "stats", "show", "print"); status != 0 {
		return status
	}
	if i := c.get("interface"); i != "" && i != "default" {
		fmt.Fprintf(c.errs, "iscsiadm: Could not read iface %s (6).\n", i)
		return iscsiErrInval
	}
	if op := c.get("op"); op == "new" {
		return c.newRecord()
	}
	rs := c.match()
	if all := c.get("loginall") + c.get("logoutall"); all != "" {
		if all != "all" && all != "automatic" && all != "manual" && all != "onboot" {
			return c.refuse("'%s' with --loginall or --logoutall", all)
		}
		rs = slices.DeleteFunc(rs, func(r *Record) bool { return all != "all" && r.Get("node.startup") != all })
	}
	if len(rs) == 0 {
		fmt.Fprintln(c.errs, "iscsiadm: No records found")
		return iscsiErrNoObjsFound
	}
	switch op := c.get("op"); op {
	case "update":
		return c.update(rs)
	case "delete":
		return c.deleteRecords(rs)
	case "", "show":
	default:
		return c.refuse("operation '%s'", op)
	}
	switch {
	case c.has("login"), c.has("loginall"):
		return c.login(rs)
	case c.has("logout"), c.has("logoutall"), c.has("rescan"), c.has("stats"):
		var xs []*Session
		for _, r := range rs {
			if x := c.s.session(r.RecordKey); x != nil {
				xs = append(xs, x)
			}
		}
		return c.onSessions(xs)
	case c.has("print"):
		return c.printNodes(rs)
	case c.has("targetname") || c.get("op") == "show":
		for _, r := range rs {
			c.show(r)
		}
		return 0
	}
	for _, r := range rs {
		fmt.Fprintf(c.out, "%s,%d %s\n", r.Portal, r.Tag, r.Target)
	}
	return 0
}

func (c iscsiCall) newRecord() int {
	if !c.has("targetname") || !c.has("portal") {
		fmt.Fprintln(c.errs, "iscsiadm: portal and target name required for new node creation")
		return iscsiErrInval
	}
	portal, tag, _ := strings.Cut(c.get("portal"), ",")
	t := Target{Protocol: ISCSI, Name: c.get("targetname"), Portal: withPort(portal), Tag: -1}
	if n, err := strconv.Atoi(tag); err == nil {
		t.Tag = n
	}
	// The array tells its tag at log-in: it is taken from what is found there.
	if found, err := c.s.Discover(context.Background(), portal); err == nil {
		for _, f := range found {
			if f.Name == t.Name && f.Portal == t.Portal {
				t = f
			}
		}
	}
	r := c.s.AddRecord(t)
	ip, port := r.address()
	fmt.Fprintf(c.out, "New iSCSI node [tcp:[hw=,ip=,net_if=,iscsi_if=default] %s,%s,%d %s] added\n", ip, port, r.Tag, r.Target)
	return 0
}

func (c iscsiCall) update(rs []*Record) int {
	name := c.get("name")
	if name == "" || !c.has("value") {
		fmt.Fprintln(c.errs, "iscsiadm: update requires name and value")
		return iscsiErrInval
	}
	for _, r := range rs {
		if err := r.Set(name, c.get("value")); err != nil {
			fmt.Fprintf(c.errs, "iscsiadm: Cannot modify %s. Invalid param name.\niscsiadm: Could not execute operation on all records: invalid parameter\n", name)
			return iscsiErrInval
		}
	}
	return 0
}

func (c iscsiCall) deleteRecords(rs []*Record) int {
	for _, r := range rs {
		if !c.unused(r) {
			fmt.Fprintln(c.errs, "iscsiadm: Could not execute operation on all records: session exists")
			return iscsiErrSessExists
		}
	}
	for _, r := range rs {
		delete(c.s.records, r.RecordKey)
	}
	return 0
}

func commaPortal(k RecordKey) string {
	ip, port := k.address()
	return ip + "," + port
}

func (c iscsiCall) login(rs []*Record) int {
	status := 0
	exists := 0
	for _, r := range rs {
		where := fmt.Sprintf("[iface: default, target: %s, portal: %s]", r.Target, commaPortal(r.RecordKey))
		if c.s.session(r.RecordKey) != nil {
			exists++
			fmt.Fprintln(c.errs, "iscsiadm: default: 1 session requested, but 1 already present.")
			continue
		}
		fmt.Fprintf(c.out, "Logging in to %s\n", where)
		_, err := c.s.Login(context.Background(), r.RecordKey)
		switch {
		case err == nil:
			fmt.Fprintf(c.out, "Login to %s successful.\n", where)
			continue
		case errors.Is(err, errNoISCSI):
			return c.noInitiator()
		case errors.Is(err, ErrAuthentication):
			status = iscsiErrLoginAuth
			fmt.Fprintf(c.errs, "iscsiadm: Could not login to %s.\niscsiadm: initiator reported error (%d - iSCSI login failed due to authorization failure)\n", where, status)
		default:
			status = iscsiErrTransTmo
			fmt.Fprintf(c.errs, "iscsiadm: Could not login to %s.\niscsiadm: initiator reported error (%d - connection timed out)\n", where, status)
		}
	}
	switch {
	case status != 0:
		fmt.Fprintln(c.errs, "iscsiadm: Could not log into all portals")
	case exists == len(rs):
		fmt.Fprintln(c.errs, "iscsiadm: Could not log into all portals")
		status = iscsiErrSessExists
	}
	return status
}

func (c iscsiCall) session() int {
	if status := c.only("sid", "print", "rescan", "logout", "stats", "show", "op"); status != 0 {
		return status
	}
	if op := c.get("op"); op != "" && op != "show" {
		return c.refuse("session mode: operation '%s'", op)
	}
	xs := c.s.Sessions()
	if sid := c.get("sid"); sid != "" {
		sid = sid[strings.LastIndex(sid, "session")+1:]
		sid = strings.TrimPrefix(sid, "ession")
		n, err := strconv.Atoi(sid)
		if err != nil {
			fmt.Fprintf(c.errs, "iscsiadm: %s is an invalid session ID or path\n", c.get("sid"))
			return iscsiErrInval
		}
		xs = slices.DeleteFunc(xs, func(x *Session) bool { return x.ID != n })
		if len(xs) == 0 {
			fmt.Fprintf(c.errs, "iscsiadm: Could not get session info for sid %d\n", n)
			return iscsiErrSessNotFnd
		}
	}
	if len(xs) == 0 {
		fmt.Fprintln(c.errs, "iscsiadm: No active sessions.")
		return iscsiErrNoObjsFound
	}
	if c.has("rescan") || c.has("logout") || c.has("stats") {
		return c.onSessions(xs)
	}
	level, err := 0, error(nil)
	if c.has("print") {
		level, err = strconv.Atoi(c.get("print"))
	}
	switch {
	case err != nil || level > 3 || level < 0:
		return c.refuse("print level '%s'", c.get("print"))
	case level == 0:
		for _, x := range xs {
			fmt.Fprintf(c.out, "tcp: [%d] %s,%d %s (non-flash)\n", x.ID, x.Key.Portal, x.Tag, x.Key.Target)
		}
	default:
		c.printSessions(xs, level)
	}
	return 0
}

// onSessions rescans or ends sessions.
func (c iscsiCall) onSessions(xs []*Session) int {
	if len(xs) == 0 {
		fmt.Fprintln(c.errs, "iscsiadm: No matching sessions found")
		return iscsiErrNoObjsFound
	}
	for _, x := range xs {
		where := fmt.Sprintf("[sid: %d, target: %s, portal: %s]", x.ID, x.Key.Target, commaPortal(x.Key))
		switch {
		case c.has("rescan"):
			fmt.Fprintf(c.out, "Rescanning session %s\n", where)
			c.s.rescanSession(x)
		case c.has("logout"), c.has("logoutall"):
			fmt.Fprintf(c.out, "Logging out of session %s\n", where)
			c.s.Logout(x)
			fmt.Fprintf(c.out, "Logout of %s successful.\n", where)
		default:
			return c.refuse("option '--stats'")
		}
	}
	return 0
}

// rescanSession is iscsiadm -R: the disks that are there are rescanned, so that
// a new size is seen, and then the host is scanned for new units
// (session_rescan in open-iscsi).
func (s *Stack) rescanSession(x *Session) {
	for _, d := range s.disksOf(x.nexus) {
		_ = s.Rescan(d.Name)
	}
	s.scan(x.nexus, nil)
}

func (c iscsiCall) show(r *Record) {
	ip, port := r.address()
	fmt.Fprintf(c.out, "# BEGIN RECORD 2.1.8\nnode.name = %s\nnode.tpgt = %d\n", r.Target, r.Tag)
	if source, sourcePort, err := net.SplitHostPort(r.source); err == nil {
		fmt.Fprintf(c.out, "node.discovery_address = %s\nnode.discovery_port = %s\nnode.discovery_type = send_targets\n", source, sourcePort)
	} else {
		fmt.Fprintln(c.out, "node.discovery_address = <empty>\nnode.discovery_port = 0\nnode.discovery_type = static")
	}
	fmt.Fprintf(c.out, "node.conn[0].address = %s\nnode.conn[0].port = %s\n", ip, port)
	for _, name := range settingNames {
		v := r.Get(name)
		switch {
		case v == "":
			v = "<empty>"
		case strings.Contains(name, ".auth.password"):
			v = "********"
		}
		fmt.Fprintf(c.out, "%s = %s\n", name, v)
	}
	fmt.Fprintln(c.out, "# END RECORD")
}

func (c iscsiCall) printNodes(rs []*Record) int {
	if c.get("print") != "1" {
		return c.refuse("node mode: print level '%s'", c.get("print"))
	}
	last := ""
	for _, r := range rs {
		if r.Target != last {
			fmt.Fprintf(c.out, "Target: %s\n", r.Target)
			last = r.Target
		}
		fmt.Fprintf(c.out, "\tPortal: %s,%d\n\t\tIface Name: default\n", r.Portal, r.Tag)
	}
	return 0
}

func (c iscsiCall) printSessions(xs []*Session, level int) {
	last := ""
	slices.SortStableFunc(xs, func(a, b *Session) int { return strings.Compare(a.Key.Target, b.Key.Target) })
	for _, x := range xs {
		if x.Key.Target != last {
			fmt.Fprintf(c.out, "Target: %s (non-flash)\n", x.Key.Target)
			last = x.Key.Target
		}
		conn, sess, internal := "LOGGED IN", "LOGGED_IN", "NO CHANGE"
		if !c.s.Up(x) {
			conn, sess, internal = "TRANSPORT WAIT", "FAILED", "REOPEN"
		}
		fmt.Fprintf(c.out, "\tCurrent Portal: %s,%d\n\tPersistent Portal: %s,%d\n", x.Key.Portal, x.Tag, x.Key.Portal, x.Tag)
		fmt.Fprintf(c.out, "\t\t**********\n\t\tInterface:\n\t\t**********\n")
		fmt.Fprintf(c.out, "\t\tIface Name: default\n\t\tIface Transport: tcp\n\t\tIface Initiatorname: %s\n\t\tIface IPaddress: %s\n\t\tIface HWaddress: default\n\t\tIface Netdev: default\n", x.Initiator, c.s.address())
		fmt.Fprintf(c.out, "\t\tSID: %d\n\t\tiSCSI Connection State: %s\n\t\tiSCSI Session State: %s\n\t\tInternal iscsid Session State: %s\n", x.ID, conn, sess, internal)
		if level >= 2 {
			fmt.Fprintf(c.out, "\t\t*********\n\t\tTimeouts:\n\t\t*********\n\t\tRecovery Timeout: %s\n\t\tTarget Reset Timeout: 30\n\t\tLUN Reset Timeout: 30\n\t\tAbort Timeout: 15\n", c.s.setting(x, "node.session.timeo.replacement_timeout"))
			fmt.Fprintf(c.out, "\t\t*****\n\t\tCHAP:\n\t\t*****\n\t\tusername: %s\n\t\tpassword: ********\n\t\tusername_in: <empty>\n\t\tpassword_in: ********\n", orEmpty(x.user))
		}
		if level >= 3 {
			n := x.host.Number
			fmt.Fprintf(c.out, "\t\t************************\n\t\tAttached SCSI devices:\n\t\t************************\n\t\tHost Number: %d\tState: running\n", n)
			for _, d := range c.s.disksOf(x.nexus) {
				fmt.Fprintf(c.out, "\t\tscsi%d Channel 00 Id %d Lun: %d\n\t\t\tAttached scsi disk %s\t\tState: %s\n", n, d.ID, d.LUN, d.Name, c.s.state(d))
			}
		}
	}
}

func orEmpty(text string) string {
	if text == "" {
		return "<empty>"
	}
	return text
}

func (c iscsiCall) iface() int {
	if status := c.only("interface", "op", "print"); status != 0 {
		return status
	}
	if op := c.get("op"); op != "" && op != "show" || c.has("print") {
		return c.refuse("iface mode: operation '%s'", op)
	}
	switch i := c.get("interface"); i {
	case "":
		fmt.Fprintln(c.out, "default tcp,<empty>,<empty>,<empty>,<empty>")
		fmt.Fprintln(c.out, "iser iser,<empty>,<empty>,<empty>,<empty>")
	case "default":
		fmt.Fprintln(c.out, "# BEGIN RECORD 2.1.8\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\niface.ipaddress = <empty>\niface.hwaddress = <empty>\niface.transport_name = tcp\niface.initiatorname = <empty>\n# END RECORD")
	default:
		fmt.Fprintf(c.errs, "iscsiadm: Could not read iface %s (6).\n", i)
		return iscsiErr
	}
	return 0
}

func (c iscsiCall) host() int {
	if status := c.only("print"); status != 0 {
		return status
	}
	if c.has("print") && c.get("print") != "0" {
		return c.refuse("host mode: print level '%s'", c.get("print"))
	}
	xs := c.s.Sessions()
	if len(xs) == 0 {
		fmt.Fprintln(c.errs, "iscsiadm: No hosts found")
		return iscsiErrNoObjsFound
	}
	for _, x := range xs {
		fmt.Fprintf(c.out, "tcp: [%d] %s,[<empty>],<empty> %s\n", x.host.Number, c.s.address(), x.Initiator)
	}
	return 0
}
