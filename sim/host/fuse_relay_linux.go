package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"runtime"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/csilab/csilab/sim/host/relay"
	"github.com/csilab/csilab/sim/host/shim"
)

// fuseConnection is a FUSE filesystem that is mounted in a node's namespace and
// served by this process, over a relay.
//
// This process also has the threads that use the filesystem. If it held
// /dev/fuse itself, one of those that waits for I/O when the process is killed
// would keep the file open that must be closed for the wait to end; and a fork
// that waits for the filesystem would stop the Go runtime that has to answer. So
// a process of its own holds it, outside the namespace: see package relay.
type fuseConnection struct {
	relay *osexec.Cmd
	conn  net.Conn

	telling sync.Mutex
	tell    net.Conn // notifications
	// ended is closed when the relay is gone: no operation waits any more.
	ended chan struct{}
	work  sync.WaitGroup
}

// fuseMaxData is the most that one read or write carries, in bytes.
const fuseMaxData = 128 << 10

// mountFUSE mounts raw at a directory. It runs in the node's namespace; dev is
// /dev/fuse, opened, and is closed.
func mountFUSE(dev *os.File, at, node string, raw fuse.RawFileSystem) (*fuseConnection, error) {
	defer dev.Close()
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,max_read=%d", dev.Fd(), fuseMaxData)
	if err := unix.Mount("csilab", at, "fuse.csilab", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, opts); err != nil {
		return nil, fmt.Errorf("mount FUSE on %s: %w", at, err)
	}
	conn, theirs, err := relaySocket()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	tell, notifications, err := relaySocket()
	if err != nil {
		conn.Close()
		return nil, err
	}
	defer notifications.Close()
	self, err := os.Executable()
	if err != nil {
		conn.Close()
		tell.Close()
		return nil, err
	}
	c := &fuseConnection{relay: osexec.Command(self), conn: conn, tell: tell, ended: make(chan struct{})}
	c.relay.Args = []string{"csilab-fuse-relay"}
	c.relay.Env = []string{relay.Env + "=1", shim.EnvNode + "=" + node, "GORACE=atexit_sleep_ms=0"}
	c.relay.ExtraFiles = []*os.File{dev, theirs, notifications}
	c.relay.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go c.attend(started)
	if err := <-started; err != nil {
		conn.Close()
		tell.Close()
		return nil, fmt.Errorf("relay: %w", err)
	}
	c.work.Add(1)
	go c.serve(fuse.NewProtocolServer(raw, &fuse.MountOptions{MaxWrite: fuseMaxData, DisableReadDirPlus: true, DisableXAttrs: true, EnableSymlinkCaching: true}))
	if err := settle(at + "/" + readyFile); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// relaySocket makes a socket to the relay, and its other end.
func relaySocket() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	for _, fd := range fds {
		// Room for several messages. Root may exceed the machine's limit; where it
		// may not, one fits into the usual default.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8*relay.MaxMessage) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8*relay.MaxMessage)
		}
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "relay"), os.NewFile(uintptr(fds[1]), "relay")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("relay: %w", err)
	}
	return conn, theirs, nil
}

// fuseName is a name in a directory of the filesystem.
type fuseName struct {
	dir  uint64 // node id
	name string
}

// notifyInvalEntry is FUSE_NOTIFY_INVAL_ENTRY of linux/fuse.h.
const notifyInvalEntry = 3

// forget makes the kernel look names up again. It returns when it will. No lock
// must be held that answering a lookup wants.
func (c *fuseConnection) forget(names []fuseName) {
	c.telling.Lock()
	defer c.telling.Unlock()
	var b []byte
	flush := func() {
		if _, err := c.tell.Write(b); err == nil {
			_, _ = c.tell.Read(b[:1]) // it fails when the relay is gone, and the mount with it
		}
		b = b[:0]
	}
	for _, n := range names {
		size := 32 + len(n.name) + 1
		if len(b)+size > relay.MaxMessage {
			flush()
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(size))
		b = binary.NativeEndian.AppendUint32(b, notifyInvalEntry)
		b = binary.NativeEndian.AppendUint64(b, 0) // unique
		b = binary.NativeEndian.AppendUint64(b, n.dir)
		b = binary.NativeEndian.AppendUint32(b, uint32(len(n.name)))
		b = binary.NativeEndian.AppendUint32(b, 0) // flags
		b = append(append(b, n.name...), 0)
	}
	if len(b) > 0 {
		flush()
	}
}

// readyFile is a file in the root of the filesystem.
const readyFile = "ready"

// settle lets the kernel ask once for what the filesystem doesn't have, poll and
// flush, so that it never does again. It would ask in the midst of an epoll_ctl
// of this process's runtime, which holds up the runtime's epoll_wait, and with it
// the answer; or when a fork closes its files, which holds up everything.
func settle(p string) error {
	fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	if err := errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("poll %s: %w", p, err)
	}
	return nil
}

// attend starts the relay and waits for its end, on a thread that does nothing
// else: its end is the parent-death signal, and a thread that waits for I/O of
// the node may not end. It is outside the namespace, whose last user must not
// be the relay.
func (c *fuseConnection) attend(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(c.ended)
	err := c.relay.Start()
	started <- err
	if err == nil {
		_ = c.relay.Wait() // it is killed, or the filesystem was unmounted
	}
}

var fuseBuffers = sync.Pool{New: func() any {
	b := make([]byte, relay.MaxMessage)
	return &b
}}

// serve answers requests, each in a goroutine, until the relay is gone.
func (c *fuseConnection) serve(s *fuse.ProtocolServer) {
	defer c.work.Done()
	for {
		in := fuseBuffers.Get().(*[]byte)
		n, err := c.conn.Read(*in)
		if err != nil || n == 0 {
			fuseBuffers.Put(in)
			return
		}
		c.work.Add(1)
		go func() {
			defer c.work.Done()
			defer fuseBuffers.Put(in)
			out := fuseBuffers.Get().(*[]byte)
			defer fuseBuffers.Put(out)
			n, _ := s.HandleRequest([][]byte{(*in)[:n]}, [][]byte{*out})
			if n > 0 {
				_, _ = c.conn.Write((*out)[:n]) // it fails when the relay is gone
			}
		}()
	}
}

// close kills the relay: whatever waits for the filesystem, and all that uses it
// later, fails. It returns when no request is being answered any more.
func (c *fuseConnection) close() error {
	err := c.relay.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-c.ended
	c.conn.Close()
	c.tell.Close()
	c.work.Wait()
	return err
}
