package sanity_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/csilab/csilab/driver"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/host"
	"github.com/csilab/csilab/sim/transport"
)

// child is the driver as a process on a real node: this binary again.
const child = "csi-driver"

func main(m *testing.M) int {
	host.RegisterChild(child, func(args []string) int { return driver.Main(args, os.Getenv, os.Stdout, os.Stderr) })
	host.Main()
	return m.Run()
}

// lines puts a process's output in the log.
type lines struct{ log *slog.Logger }

func (l lines) Write(p []byte) (int, error) {
	l.log.Debug("node driver", "output", string(p))
	return len(p), nil
}

// real is a node on this machine's kernel with its driver in a process of its
// own, or why there is none.
func real(t *testing.T) (*platform, error) {
	if err := host.RealSupported(); err != nil {
		return nil, err
	}
	p := &platform{dir: shortDir(t)}
	var err error
	if p.disks, err = disk.NewFiles(filepath.Join(p.dir, "disks")); err != nil {
		return nil, err
	}
	p.node = func(bios string, s host.SAN, a host.Adapters, _ *host.FileServers) (host.Host, error) {
		return host.NewReal(context.Background(), host.RealConfig{Name: nodeName, Seed: 11, BIOSUUID: bios, SAN: s, Adapters: a, Dir: filepath.Join(p.dir, "n")})
	}
	p.plugin = func(ctx context.Context, backend driver.Backend, h host.Host, log *slog.Logger) (string, <-chan error, error) {
		const sock = kubelet + "/plugins/csi.sock"
		if err := h.MkdirAll(filepath.Dir(sock), 0o750); err != nil {
			return "", nil, err
		}
		node := h.(*host.Real)
		argv, env, err := host.ChildCommand(child, "--backend", string(backend), "--mode", "node", "--node-name", nodeName, "--endpoint", "unix://"+sock, "--topology-file", topologyFile, "--log-level", "debug")
		if err != nil {
			return "", nil, err
		}
		out := lines{log}
		proc, err := node.StartProcess(context.Background(), argv, env, out, out)
		if err != nil {
			return "", nil, err
		}
		done := make(chan error, 1)
		go func() {
			select {
			case <-ctx.Done():
				proc.Signal(syscall.SIGTERM)
			case <-proc.Done():
			}
			err := proc.Wait()
			if e, ok := errors.AsType[*exec.ExitError](err); ok && ctx.Err() == nil {
				err = errors.Join(e, errors.New("the driver ended by itself"))
			}
			done <- err
		}()
		seen := transport.Wall{From: kubelet, To: node.SocketRoot()}.Map(sock)
		for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
			select {
			case err := <-done:
				return "", nil, err
			default:
			}
			if _, err := os.Stat(seen); err == nil {
				return seen, done, nil
			}
		}
		return "", nil, errors.New("the driver's socket did not appear")
	}
	return p, nil
}
