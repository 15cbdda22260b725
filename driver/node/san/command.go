package san

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/exec"
)

// commandTimeout bounds one command. iscsiadm tries an address that doesn't
// answer for minutes if it is let.
const commandTimeout = 10 * time.Second

// run runs a command of the node. Its output is in the error, and its arguments
// too, but for what follows the name of a password.
func (s *SAN) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	out, err := s.host.Exec().CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return string(out), fmt.Errorf("%s %s: %w: %s", name, strings.Join(masked(args), " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// masked are arguments without secrets.
func masked(args []string) []string {
	out := slices.Clone(args)
	for i, a := range args {
		if strings.HasSuffix(a, ".password") && i+2 < len(args) && args[i+1] == "-v" {
			out[i+2] = "***"
		}
	}
	return out
}

func exitStatus(err error) int {
	var e exec.ExitError
	if errors.As(err, &e) && e.Exited() {
		return e.ExitStatus()
	}
	return -1
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
