package host

import (
	"errors"
	"fmt"
	"syscall"

	"k8s.io/utils/exec"
)

// names are those of errnos, by what they stand for.
var names = func() map[syscall.Errno]string {
	out := map[syscall.Errno]string{}
	for name, e := range errnos {
		out[e] = name
	}
	return out
}()

// CodeOf is the code that the ledger shows for an error of this hop: the name
// of the errno, "exit N" of a command that ended so, or "".
func CodeOf(err error) string {
	var errno syscall.Errno
	var exit exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return fmt.Sprintf("exit %d", exit.ExitStatus())
	case errors.As(err, &errno):
		return names[errno]
	}
	return ""
}
