package san

import (
	"context"
	"fmt"
	"regexp"

	"github.com/csilab/csilab/driver/node"
)

// SecretName names a Secret of the cluster.
type SecretName struct{ Namespace, Name string }

// chap is what the node logs in to targets with; zero: nothing.
type chap struct{ user, password string }

// String keeps the password out of logs.
func (c chap) String() string { return fmt.Sprintf("CHAP user %q", c.user) }

// GoString is String.
func (c chap) GoString() string { return c.String() }

// Keys of the Secret with CHAP credentials, and of the parameters that name it.
const (
	keyCHAPUser      = "chapUser"
	keyCHAPPassword  = "chapPassword"
	keyCHAPSecret    = "chapSecretName"
	keyCHAPNamespace = "chapSecretNamespace"
)

// chapUser is what the arrays allow (scod documentation, "CHAP authentication").
var chapUser = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9\-:.]{0,63}$`)

// chapOf finds a volume's credentials: in the secrets of the call, in the Secret
// that its StorageClass names, or in the one that the driver was given for all.
func (s *SAN) chapOf(ctx context.Context, v node.Volume) (chap, error) {
	data, from := v.Secrets, "secrets"
	if data[keyCHAPUser] == "" && data[keyCHAPPassword] == "" {
		name := SecretName{Namespace: v.Context[keyCHAPNamespace], Name: v.Context[keyCHAPSecret]}
		if name.Name == "" {
			name = s.cfg.CHAP
		}
		if name.Name == "" {
			return chap{}, nil
		}
		from = fmt.Sprintf("Secret %s/%s", name.Namespace, name.Name)
		if s.cfg.Cluster == nil {
			return chap{}, fmt.Errorf("%w: %s can't be read: the driver has no cluster to read it from", node.ErrContext, from)
		}
		var err error
		if data, err = s.cfg.Cluster.Secret(ctx, name.Namespace, name.Name); err != nil {
			return chap{}, fmt.Errorf("%s: %w", from, err)
		}
	}
	c := chap{user: data[keyCHAPUser], password: data[keyCHAPPassword]}
	if !chapUser.MatchString(c.user) {
		return chap{}, fmt.Errorf("%w: %s: %s is %q, must be 1 to 64 letters, digits, '-', ':' and '.', and begin with a letter or digit", node.ErrContext, from, keyCHAPUser, c.user)
	}
	if n := len(c.password); n < 12 || n > 16 {
		return chap{}, fmt.Errorf("%w: %s: %s has %d characters, must have 12 to 16", node.ErrContext, from, keyCHAPPassword, n)
	}
	return c, nil
}
