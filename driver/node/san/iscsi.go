package san

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/node"
)

// vendors are the naming authorities in iSCSI names of arrays that this driver
// serves; a discovery may show others' targets, which are left alone.
var vendors = []string{"com.3pardata", "com.hpe", "com.nimblestorage", "org.truenas.ctl", "org.freenas.ctl"}

// portal is where a target is reached.
type portal struct {
	address string // IP:port
	target  string // iSCSI name, lower case
}

// Exit statuses of iscsiadm(8).
const (
	sessionExists  = 15
	nothingFound   = 21
	authentication = 24
)

// sessions are the portals that the node is logged in at. A session whose
// address isn't known has an empty one.
func (s *SAN) sessions() ([]portal, error) {
	names, err := s.names(sysSession, "session")
	if err != nil {
		return nil, err
	}
	var out []portal
	for _, n := range names {
		p := portal{target: s.iscsiName(n)}
		if p.target == "" {
			continue
		}
		conn := path.Join("/sys/class/iscsi_connection", "connection"+strings.TrimPrefix(n, "session")+":0")
		if a, port := s.line(conn, "persistent_address"), s.line(conn, "persistent_port"); a != "" {
			if port == "" {
				port = "3260"
			}
			p.address = join(a, port)
		}
		out = append(out, p)
	}
	return out, nil
}

func join(ip, port string) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return ip + ":" + port
}

// login makes a session at each portal of the volume's targets. One is enough:
// a volume with fewer paths is better than none. Without any, the error says why
// each failed; it is node.ErrLogin when credentials were refused. It needs the turn.
func (s *SAN) login(ctx context.Context, e export, c chap) error {
	have, err := s.sessions()
	if err != nil {
		return err
	}
	var errs []error
	var reached, fresh []string
	for _, a := range e.arrays {
		open, made, err := s.loginTo(ctx, a, c, have)
		reached, fresh = append(reached, open...), append(fresh, made...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(fresh) > 0 {
		if err := s.scanHeld(ctx, fresh); err != nil {
			s.log.Warn("volumes on this node may miss new paths", "targets", fresh, "err", err)
		}
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	err = errors.Join(errs...)
	switch {
	case err == nil:
		return nil
	case len(reached) > 0:
		s.log.Warn("the volume has fewer paths than it could have", "serial", e.serial, "err", err)
		return nil
	case errors.Is(err, node.ErrLogin):
		return err
	}
	return fmt.Errorf("%w: %w", node.ErrNoDevice, err)
}

// loginTo logs in to one array. It returns the targets with a session, and those
// of them whose session is new.
func (s *SAN) loginTo(ctx context.Context, a array, c chap, have []portal) (reached, fresh []string, err error) {
	open := map[string]bool{}
	for _, p := range have {
		if slices.Contains(a.targets, p.target) {
			open[p.target] = true
		}
	}
	if len(open) == len(a.targets) {
		return a.targets, nil, nil
	}
	var errs []error
	var found []portal
	// One that is down costs the time that a connection is tried, and ports stay
	// down for days: those that failed lately come last, and are left out where
	// there is another.
	ips := slices.Clone(a.ips)
	slices.SortStableFunc(ips, func(x, y string) int { return order(s.silent(x), s.silent(y)) })
	for _, ip := range ips {
		if covers(found, a.targets, open) || s.silent(ip) && len(open)+len(found) > 0 {
			break
		}
		more, err := s.discover(ctx, ip, s.share(len(ips)))
		s.heard(ip, err)
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		for _, p := range more {
			if slices.Contains(a.targets, p.target) && !slices.Contains(found, p) {
				found = append(found, p)
			}
		}
	}
	for _, p := range found {
		if slices.Contains(have, p) || s.silent(p.address) && len(open) > 0 {
			continue
		}
		err := s.loginAt(ctx, p, c)
		s.heard(p.address, err)
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		open[p.target] = true
		fresh = append(fresh, p.target)
	}
	for _, t := range a.targets {
		if !open[t] && !slices.ContainsFunc(found, func(p portal) bool { return p.target == t }) {
			errs = append(errs, fmt.Errorf("target %s was found at none of %s", t, strings.Join(a.ips, ", ")))
		}
	}
	return sorted(open), fresh, errors.Join(errs...)
}

func covers(found []portal, targets []string, open map[string]bool) bool {
	for _, t := range targets {
		if !open[t] && !slices.ContainsFunc(found, func(p portal) bool { return p.target == t }) {
			return false
		}
	}
	return true
}

// patience is how long a portal that failed isn't asked again while another one
// serves.
const patience = 30 * time.Second

// silent says whether a portal has failed lately. It needs the turn, as heard.
func (s *SAN) silent(address string) bool {
	at, ok := s.failed[address]
	return ok && time.Since(at) < patience
}

// heard notes how it went with a portal.
func (s *SAN) heard(address string, err error) {
	if err == nil {
		delete(s.failed, address)
	} else {
		s.failed[address] = time.Now()
	}
}

// order puts false before true.
func order(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}

// share is how long one of some addresses may take, so that all have their turn
// within Config.Wait.
func (s *SAN) share(of int) time.Duration {
	return max(2*time.Second, min(commandTimeout, s.cfg.Wait/time.Duration(of+1)))
}

// discover asks a portal for its targets. Records that the node has of them
// keep their settings.
func (s *SAN) discover(ctx context.Context, ip string, limit time.Duration) ([]portal, error) {
	if strings.Count(ip, ":") > 1 && !strings.HasPrefix(ip, "[") {
		ip = "[" + ip + "]"
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no answer from %s within %s", ip, limit))
	defer cancel()
	out, err := s.run(ctx, "iscsiadm", "-m", "discovery", "-t", "st", "-p", ip, "-o", "new")
	if err != nil {
		if exitStatus(err) == nothingFound {
			return nil, nil
		}
		return nil, err
	}
	return portals(out), nil
}

// portals reads lines like "10.0.0.5:3260,21 iqn.2000-05.com.3pardata:20210002ac".
func portals(out string) []portal {
	var all []portal
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 2 {
			continue
		}
		address, _, _ := strings.Cut(f[0], ",")
		p := portal{address: address, target: strings.ToLower(f[1])}
		// iqn.<year-month>.<reversed domain>:<rest>
		authority, _, _ := strings.Cut(p.target, ":")
		ours := slices.ContainsFunc(vendors, func(v string) bool { return strings.Contains(authority, v) })
		if strings.HasPrefix(p.target, "iqn.") && ours && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// loginAt makes a session that a boot doesn't bring back by itself: the volumes
// of a node that died are another's.
func (s *SAN) loginAt(ctx context.Context, p portal, c chap) error {
	at := []string{"--mode", "node", "--targetname", p.target, "--portal", p.address}
	set := func(name, value string) error {
		_, err := s.run(ctx, "iscsiadm", append(slices.Clone(at), "--op", "update", "-n", name, "-v", value)...)
		return err
	}
	settings := [][2]string{{"node.startup", "manual"}, {"node.session.auth.authmethod", "None"}}
	if c.user != "" {
		settings = [][2]string{
			{"node.startup", "manual"},
			{"node.session.auth.authmethod", "CHAP"},
			{"node.session.auth.username", c.user},
			{"node.session.auth.password", c.password},
		}
	}
	for _, kv := range settings {
		if err := set(kv[0], kv[1]); err != nil {
			return err
		}
	}
	// A login that scans finds whatever else is exported to this node, and nobody
	// would take it off again. Older versions don't know the setting.
	if err := set("node.session.scan", "manual"); err != nil {
		s.log.Warn("the login will scan for everything", "target", p.target, "err", err)
	}
	out, err := s.run(ctx, "iscsiadm", append(at, "--login")...)
	switch {
	case err == nil || exitStatus(err) == sessionExists:
		return nil
	case exitStatus(err) == authentication || strings.Contains(out, "authorization failure"):
		how := "without CHAP"
		if c.user != "" {
			how = fmt.Sprintf("as CHAP user %q", c.user)
		}
		return fmt.Errorf("%w: target %s at %s refuses a login %s: %w", node.ErrLogin, p.target, p.address, how, err)
	}
	return err
}

// logout ends the sessions to a target that was the volume's alone, and forgets
// where it was.
func (s *SAN) logout(ctx context.Context, target string) error {
	give, err := s.turn.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	have, err := s.sessions()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(have, func(p portal) bool { return p.target == target }) {
		if _, err := s.run(ctx, "iscsiadm", "--mode", "node", "--targetname", target, "--logout"); err != nil && exitStatus(err) != nothingFound {
			return err
		}
	}
	if _, err := s.run(ctx, "iscsiadm", "--mode", "node", "--targetname", target, "--op", "delete"); err != nil && exitStatus(err) != nothingFound {
		return err
	}
	return nil
}
