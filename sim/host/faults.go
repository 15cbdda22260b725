package host

import (
	"maps"
	"slices"
	"strings"
	"syscall"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/host/scsi"
	"github.com/csilab/csilab/sim/host/shim"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// errnos by name: those that a storage driver and its tools meet.
var errnos = map[string]syscall.Errno{
	"EACCES": syscall.EACCES, "EAGAIN": syscall.EAGAIN, "EBUSY": syscall.EBUSY, "EEXIST": syscall.EEXIST, "EFBIG": syscall.EFBIG,
	"EINTR": syscall.EINTR, "EINVAL": syscall.EINVAL, "EIO": syscall.EIO, "EMFILE": syscall.EMFILE, "ENFILE": syscall.ENFILE,
	"ENODEV": syscall.ENODEV, "ENOENT": syscall.ENOENT, "ENOMEM": syscall.ENOMEM, "ENOSPC": syscall.ENOSPC, "ENOTDIR": syscall.ENOTDIR,
	"ENOTEMPTY": syscall.ENOTEMPTY, "ENXIO": syscall.ENXIO, "EPERM": syscall.EPERM, "EROFS": syscall.EROFS, "ESTALE": syscall.ESTALE,
	"ETIMEDOUT": syscall.ETIMEDOUT, "EXDEV": syscall.EXDEV,
}

func init() {
	fault.RegisterOps(ledger.Host, "WriteFile", "MkdirAll", "Remove", "Rename", "Symlink", "Chmod", "Lchown", "WriteAt", "Mount", "Unmount",
		"AttachDisk", "DetachDisk", "ResizeDisk", "PowerOff", "PowerOn")
	fault.AcceptOps(ledger.Host, func(op string) bool {
		name, ok := strings.CutPrefix(op, "exec ")
		return ok && (commands[name] != nil || scsi.IsCommand(name))
	})
	for _, name := range append(slices.Clone(shim.Names), shim.Emulated...) {
		fault.RegisterOps(ledger.Host, "exec "+name)
	}
	fault.RegisterErrors(fault.Protocol{
		Doc:   "an errno; a command says its text and fails",
		Codes: func() []string { return slices.Sorted(maps.Keys(errnos)) },
		Make: func(_ string, s fault.ErrorSpec) (error, error) {
			e, ok := errnos[s.Code]
			switch {
			case !ok:
				return nil, fault.Wrong("code", "%q is no errno of a node%s", s.Code, nearest.Name(s.Code, slices.Sorted(maps.Keys(errnos))))
			case s.Message != "":
				return nil, fault.Wrong("message", "an errno has no text of its own")
			case s.Status != 0:
				return nil, fault.Wrong("status", "an errno has none")
			}
			return e, nil
		},
		Typical: func(op string) []string {
			switch {
			case op == "Unmount":
				return []string{"EBUSY", "EIO"}
			case op == "MkdirAll", op == "WriteFile":
				return []string{"ENOSPC", "EIO"}
			}
			return []string{"EIO"}
		},
	}, ledger.Host)
}
