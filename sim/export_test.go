package sim

import (
	dvsphere "github.com/csilab/csilab/driver/vsphere"
	"github.com/csilab/csilab/sim/array"
)

// Secrets are the passwords, tokens and session keys that are good now. The key
// of a vCenter's session opens none.
func (l *Lab) Secrets() (out []string) {
	switch b := l.backend.(type) {
	case *vsphere:
		conf, err := dvsphere.ParseConfig([]byte(b.conf()), nil)
		if err != nil {
			panic(err)
		}
		out = append(out, conf.VCenter.Password)
	case *hpe:
		out = append(out, b.secret()["password"])
		b.mu.Lock()
		p := b.provider
		b.mu.Unlock()
		if p != nil {
			out = append(out, p.Tokens()...)
		}
		for _, a := range b.san.Arrays() {
			a.Look(func(core *array.Array) {
				for _, s := range core.Sessions() {
					out = append(out, s.Key)
				}
			})
		}
	}
	return out
}

// MaxSocket is how long the path of a unix socket may be.
const MaxSocket = maxSocket

// LongestSocket is the longest path of a socket that a lab may have.
func LongestSocket(o Options) string { return o.WithDefaults().longestSocket() }
