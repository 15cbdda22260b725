package host

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// threads are OS threads of this process that live in a mount namespace and a
// UTS namespace of their own: those of a node. What runs on them, and the
// processes that are started from them, see the node's mounts, devices and host
// name; the rest of this process doesn't.
//
// A namespace belongs to threads and dies with them: when this process is
// killed the kernel takes the mounts away, and a child with a parent-death
// signal, whose parent is its thread, goes too.
type threads struct {
	ns   *os.File // the mount namespace, for further threads
	uts  *os.File // that of the host name, likewise
	idle chan *thread

	max int // operations that are under way at a time

	mu    sync.Mutex
	all   []*thread
	count int // all, and those that are starting
	done  sync.WaitGroup
}

// maxThreads bounds the operations that are under way on a node at a time.
const maxThreads = 8

// thread runs functions, one at a time.
type thread struct{ work chan func() }

// newThreads makes namespaces, gives the node its host name, and runs setup in
// them.
func newThreads(hostname string, setup func() error) (*threads, error) {
	t := &threads{idle: make(chan *thread, maxThreads), max: maxThreads, count: 1}
	err := t.start(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWUTS); err != nil {
			return fmt.Errorf("host: namespaces of its own: %w", err)
		}
		if err := unix.Sethostname([]byte(hostname)); err != nil {
			return fmt.Errorf("host: host name %q: %w", hostname, err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("host: private mounts: %w", err)
		}
		ns, err := os.Open("/proc/thread-self/ns/mnt")
		if err != nil {
			return fmt.Errorf("host: %w", err)
		}
		t.ns = ns
		if t.uts, err = os.Open("/proc/thread-self/ns/uts"); err != nil {
			return fmt.Errorf("host: %w", err)
		}
		return setup()
	})
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// another gives a further thread in the namespace, for who must not wait for
// those of t. It keeps the namespace until it is closed.
func (t *threads) another() (*threads, error) {
	n := &threads{idle: make(chan *thread, 1), max: 1, count: 1}
	err := error(nil)
	if n.ns, err = dup(t.ns); err != nil {
		return nil, err
	}
	if n.uts, err = dup(t.uts); err == nil {
		err = n.start(n.join)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// start adds a thread that has gone through enter.
func (t *threads) start(enter func() error) error {
	th := &thread{work: make(chan func())}
	ready := make(chan error, 1)
	t.done.Add(1)
	var run func()
	run = func() {
		// The goroutine ends without unlocking, which ends the thread: it can't
		// be used for anything else any more.
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread stands for the process in /proc and can't end:
			// leave it alone, and keep it busy until another thread has it.
			moved := make(chan struct{})
			go func() {
				defer close(moved)
				run()
			}()
			<-moved
			runtime.UnlockOSThread()
			return
		}
		defer t.done.Done()
		if err := enter(); err != nil {
			ready <- err
			return
		}
		ready <- nil
		for f := range th.work {
			f()
		}
	}
	go run()
	if err := <-ready; err != nil {
		return err
	}
	t.mu.Lock()
	t.all = append(t.all, th)
	t.mu.Unlock()
	t.idle <- th
	return nil
}

// join enters the namespaces of the first thread.
func (t *threads) join() error {
	// setns wants the thread's root and working directory to be its own.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if err := unix.Setns(int(t.ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("host: enter the node's namespace: %w", err)
	}
	if err := unix.Setns(int(t.uts.Fd()), unix.CLONE_NEWUTS); err != nil {
		return fmt.Errorf("host: enter the node's namespace of host names: %w", err)
	}
	return nil
}

// do runs f in the namespace and waits for it.
func (t *threads) do(f func()) error {
	var th *thread
	select {
	case th = <-t.idle:
	default:
		t.mu.Lock()
		grow := t.count < t.max
		if grow {
			t.count++
		}
		t.mu.Unlock()
		if grow {
			if err := t.start(t.join); err != nil {
				t.mu.Lock()
				t.count--
				t.mu.Unlock()
				return err
			}
		}
		th = <-t.idle
	}
	done := make(chan struct{})
	th.work <- func() {
		defer close(done)
		f()
	}
	<-done
	t.idle <- th
	return nil
}

// close ends all threads, and with the last one the namespace. No do may be
// under way.
func (t *threads) close() {
	t.mu.Lock()
	all := t.all
	t.all = nil
	t.mu.Unlock()
	for _, th := range all {
		close(th.work)
	}
	t.done.Wait()
	for _, f := range []*os.File{t.ns, t.uts} {
		if f != nil {
			f.Close()
		}
	}
}
