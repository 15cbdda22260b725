package driver

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"

	"github.com/fsnotify/fsnotify"

	"github.com/csilab/csilab/sim/transport"
)

// listen opens a socket. The name of a unix socket that a killed driver left is
// removed; that of a process that lives, and any other file in its place, is not.
func listen(network, addr string) (net.Listener, error) {
	if network == "unix" {
		if fi, err := os.Lstat(addr); err == nil {
			if fi.Mode()&fs.ModeSocket == 0 {
				return nil, fmt.Errorf("%s exists and is not a socket", addr)
			}
			if err := transport.RemoveStale(addr); err != nil {
				return nil, err
			}
		}
	}
	return net.Listen(network, addr)
}

// watch reports changes in a directory. Several changes may be one signal.
func watch(ctx context.Context, dir string) (<-chan struct{}, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := w.Add(dir); err != nil {
		w.Close()
		return nil, err
	}
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		defer w.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case _, ok := <-w.Events:
				if !ok {
					return
				}
			case _, ok := <-w.Errors:
				if !ok {
					return
				}
				// An overflow: something changed.
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, nil
}
