//go:build !linux

package sim

import (
	"context"
	"errors"

	"github.com/csilab/csilab/sim/host"
)

var errNoRealHosts = errors.New("real hosts want Linux")

func (l *Lab) newRealHost(context.Context, machine, string) (host.Host, string, error) {
	return nil, "", errNoRealHosts
}

func (n *Node) spawnDriverProcess() (*incarnation, error) { return nil, errNoRealHosts }
