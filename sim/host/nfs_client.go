package host

import (
	"errors"
	"net/netip"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/csilab/csilab/sim/host/scsi"
)

// nfsType is how the kernel calls the filesystem of NFS 4 mounts.
const nfsType = "nfs4"

// mountRetry is how long mount.nfs tries to reach a server (nfs(5), retry=2
// minutes for mounts in the foreground).
const mountRetry = 2 * time.Minute

// remote is a mount of a server's share. Mounts are hard (nfs(5)): who wants
// something of a server that doesn't answer waits until it does, whatever its
// deadline; nothing ends that but the server, the node's end, and FailQueued.
type remote struct {
	h            *Memory
	server, path string
	share        *share
}

// nfsSource reads server:/path, with the brackets of an IPv6 address.
func nfsSource(source string) (server, dir string, ok bool) {
	i := strings.Index(source, ":/")
	if strings.HasPrefix(source, "[") {
		i = strings.Index(source, "]:/") + 1
	}
	if i <= 0 {
		return "", "", false
	}
	server = strings.Trim(source[:i], "[]")
	_, err := netip.ParseAddr(server)
	return server, path.Clean(source[i+1:]), err == nil
}

// client is the node to a server.
func (h *Memory) client() Client { return Client{h.cfg.Name, h.cfg.Adapters.Networks} }

// lockFiles keeps other kernels out of the shares until this operation has left.
func (h *Memory) lockFiles() {
	if !h.inFiles {
		h.cfg.Files.mu.Lock()
		h.inFiles = true
	}
}

// leaveFiles lets them in again: what the operation changed is on the servers'
// disks before.
func (h *Memory) leaveFiles() {
	if !h.inFiles {
		return
	}
	if err := h.cfg.Files.settle(); err != nil {
		h.log.Warn("a share can't be written", "node", h.cfg.Name, "error", err)
	}
	h.inFiles = false
	h.cfg.Files.mu.Unlock()
}

// access asks the server for what is mounted. A share that is gone, or that is
// not for this client any more, is a stale handle, as knfsd answers after
// exportfs -u. Unverified: that the arrays' own servers do so. A server that doesn't
// answer is waited for.
func (r *remote) access(p place) (Export, error) {
	r.h.now.mount = p.m
	s, e, err := r.h.cfg.Files.access(r.h.client(), r.server, r.path)
	switch {
	case errors.Is(err, ErrServerUnreachable) && r.h.cfg.Files.soft:
		return e, syscall.EIO
	case errors.Is(err, ErrServerUnreachable):
		return e, r.h.queues(scsi.ErrQueued)
	case err != nil, s != r.share:
		return e, syscall.ESTALE
	}
	return e, nil
}

// forgetShares takes all mounts of shares with the node's power.
func (h *Memory) forgetShares() {
	if h.remotes > 0 {
		h.lockFiles()
		for _, m := range h.ns.table {
			if m.remote != nil {
				m.sb.refs--
				h.cfg.Files.unmounted(m.remote.share)
			}
		}
		h.leaveFiles()
	}
	h.remotes, h.mounting = 0, nil
}

// mountShare does what mount.nfs4 does. It returns "" or what that says.
func (h *Memory) mountShare(r mountRequest, at place) string {
	const tool = "mount.nfs4: "
	server, dir, ok := nfsSource(r.source)
	if !ok {
		return tool + "Failed to resolve server " + r.source + ": Name or service not known"
	}
	if at.n == at.m.root && at.m.remote != nil && at.m.source == r.source {
		return tool + r.target + " is busy or already mounted or sharecache fail"
	}
	var s *share
	err := ErrServerUnreachable
	if h.cfg.Files != nil {
		h.lockFiles()
		s, _, err = h.cfg.Files.access(h.client(), server, dir)
	}
	tried := r.source + " " + r.target
	if errors.Is(err, ErrServerUnreachable) {
		since, again := h.mounting[tried]
		if !again {
			since = time.Now()
		}
		if !h.waiting.over && time.Since(since) < mountRetry {
			if h.mounting == nil {
				h.mounting = map[string]time.Time{}
			}
			h.mounting[tried] = since
			h.now.queued = true
			return tool + "the server does not answer yet"
		}
	}
	delete(h.mounting, tried)
	switch {
	case errors.Is(err, ErrServerUnreachable):
		return tool + "Connection timed out for " + r.source + " on " + r.target
	case errors.Is(err, ErrExportAccess):
		return tool + "access denied by server while mounting " + r.source
	case err != nil:
		return tool + "mounting " + r.source + " failed, reason given by server: No such file or directory"
	}
	opts := slices.Clone(r.opts)
	for _, o := range []string{"vers=4.2", "hard", "addr=" + server} {
		name, _, _ := strings.Cut(o, "=")
		if !slices.ContainsFunc(opts, func(x string) bool { return x == name || strings.HasPrefix(x, name+"=") }) {
			opts = append(opts, o)
		}
	}
	m := h.ns.attach(at, s.vol.sb.root, r.source, r.ro, opts)
	m.remote = &remote{h: h, server: server, path: dir, share: s}
	h.remotes++
	return ""
}

// isShare says whether a mount request is for an NFS server.
func (r mountRequest) isShare() bool {
	switch r.fstype {
	case "nfs", nfsType:
		return true
	case "", "auto":
		return strings.Contains(r.source, ":/")
	}
	return false
}

// helperSaid says whether a text is a helper's of mount(8), which speaks for
// itself.
func helperSaid(text string) bool { return strings.HasPrefix(text, "mount.") }
