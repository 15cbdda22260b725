package san

import (
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/csilab/csilab/driver/node"
)

// Keys of the publish context and of the volume context about filesystems.
const (
	KeyFSType   = "fsType"
	KeyFSOwner  = "fsOwner"
	KeyFSMode   = "fsMode"
	KeyFSCreate = "fsCreateOptions"
	KeyFSRepair = "fsRepair"
	KeyReadOnly = "readOnly"
)

// createOptions is what upstream allows in fsCreateOptions: nothing that a shell
// or another program could take for more than an option.
var createOptions = regexp.MustCompile(`^[a-zA-Z0-9=, \-]*$`)

// Filesystem implements node.Backend: what the controller passes on, else what
// the StorageClass says; xfs where nothing is said.
func (s *SAN) Filesystem(v node.Volume) (node.Filesystem, error) {
	if strings.EqualFold(v.PublishContext[KeyProtocol], nfs) {
		return share(v.PublishContext)
	}
	get := func(key string) string {
		if x := v.PublishContext[key]; x != "" {
			return x
		}
		return v.Context[key]
	}
	f := node.Filesystem{Type: "xfs"}
	bad := func(key, allowed string) (node.Filesystem, error) {
		return f, fmt.Errorf("%w: %s is %q, must be %s", node.ErrContext, key, get(key), allowed)
	}
	if t := strings.ToLower(get(KeyFSType)); t != "" {
		if !slices.Contains([]string{"ext3", "ext4", "xfs"}, t) {
			return bad(KeyFSType, "ext3, ext4 or xfs")
		}
		f.Type = t
	}
	if o := get(KeyFSOwner); o != "" {
		u, g, ok := strings.Cut(o, ":")
		uid, uerr := strconv.ParseUint(u, 10, 31)
		gid, gerr := strconv.ParseUint(g, 10, 31)
		if !ok || uerr != nil || gerr != nil {
			return bad(KeyFSOwner, "uid:gid, both numbers")
		}
		f.Owner = &node.Owner{UID: int(uid), GID: int(gid)}
	}
	if m := get(KeyFSMode); m != "" {
		bits, err := strconv.ParseUint(m, 8, 32)
		if err != nil || bits > 0o7777 {
			return bad(KeyFSMode, "an octal number up to 7777")
		}
		mode := fs.FileMode(bits & 0o777)
		for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
			if bits&bit != 0 {
				mode |= flag
			}
		}
		f.Mode = &mode
	}
	if c := get(KeyFSCreate); c != "" {
		if !createOptions.MatchString(c) {
			return bad(KeyFSCreate, "letters, digits, '=', ',', '-' and spaces")
		}
		f.Create = strings.Fields(c)
	}
	var err error
	if f.Repair, err = yes(v.Context, KeyFSRepair); err != nil {
		return f, err
	}
	f.ReadOnly, err = yes(v.PublishContext, KeyReadOnly)
	return f, err
}

// share reads the publish context of a share of the array's file service.
func share(c map[string]string) (f node.Filesystem, err error) {
	ip, err := netip.ParseAddr(c[KeyExportIP])
	if err != nil {
		return f, fmt.Errorf("%w: publish_context[%q] is %q, must be an address", node.ErrContext, KeyExportIP, c[KeyExportIP])
	}
	dir := c[KeyMountPath]
	if !path.IsAbs(dir) || strings.ContainsAny(dir, " \t\n\\") {
		return f, fmt.Errorf("%w: publish_context[%q] is %q, must be an absolute path without blanks and backslashes", node.ErrContext, KeyMountPath, dir)
	}
	server := ip.String()
	if ip.Is6() {
		server = "[" + server + "]"
	}
	f.Share = server + ":" + path.Clean(dir)
	f.ReadOnly, err = yes(c, KeyReadOnly)
	return f, err
}

func yes(c map[string]string, key string) (bool, error) {
	switch strings.ToLower(c[key]) {
	case "", "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, fmt.Errorf("%w: %s is %q, must be true or false", node.ErrContext, key, c[key])
}
