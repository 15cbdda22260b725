package host

import (
	"errors"
	"fmt"
	"sync"

	"github.com/csilab/csilab/sim/disk"
)

// Errors of Exports.
var (
	// ErrNoExport: the server exports nothing at the path (any more).
	ErrNoExport = errors.New("host: no such export")
	// ErrExportAccess: the export is not for this client (any more).
	ErrExportAccess = errors.New("host: the export is not for this client")
	// ErrServerUnreachable: the server doesn't answer the client.
	ErrServerUnreachable = errors.New("host: the server does not answer")
)

// Client is who asks an NFS server.
type Client struct {
	Node      string
	Addresses []string // of the node, as 10.0.0.11/24
}

// Export is what a server exports.
type Export struct {
	Image    string // names the content, also over the life of the server
	Bytes    int64  // size of the content
	ReadOnly bool
}

// Exports are what NFS servers on the network export.
type Exports interface {
	// Export is what a server has at a path for a client. Errors: ErrNoExport,
	// ErrExportAccess, ErrServerUnreachable.
	Export(c Client, server, path string) (Export, error)
	// Open opens the content of an export.
	Open(image string) (disk.Image, error)
}

// FileServers are the NFS servers that nodes in memory reach. A share has one
// tree for all clients: what one has written and closed the others read, and it
// is on the server's disk then (close-to-open consistency, nfs(5)).
//
// Not modelled: what a client keeps for itself (attributes, data, locks,
// delegations), so that others see a change as soon as it is made; the identity
// of users (sec=sys, squashing); that a file which is deleted while it is open
// stays.
type FileServers struct {
	exports Exports

	// mu serialises the kernels of all clients while they are in shares. It is
	// taken after that of a kernel.
	mu     sync.Mutex
	shares map[string]*share // by image
	used   []*share          // by the operation that has mu
	soft   bool              // see GiveUp
}

// NewFileServers returns servers for nodes of one network.
func NewFileServers(x Exports) *FileServers {
	return &FileServers{exports: x, shares: map[string]*share{}}
}

// GiveUp makes all mounts fail with EIO at once where a server doesn't answer: a
// mutant of hard mounts.
func (f *FileServers) GiveUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.soft = true
}

// share is the filesystem of an export on its server.
type share struct {
	image string
	vol   *volume
}

// Close lets go of the content of all shares.
func (f *FileServers) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, s := range f.shares {
		errs = append(errs, s.vol.dev.img.Close())
	}
	clear(f.shares)
	return errors.Join(errs...)
}

// access asks for an export and returns its filesystem, as large as its content
// is by now. mu is held.
func (f *FileServers) access(c Client, server, path string) (*share, Export, error) {
	e, err := f.exports.Export(c, server, path)
	if err != nil {
		return nil, e, err
	}
	s := f.shares[e.Image]
	if s == nil {
		if s, err = f.open(e.Image); err != nil {
			return nil, e, err
		}
		f.shares[e.Image] = s
	}
	f.used = append(f.used, s)
	if e.Bytes > s.vol.dev.size {
		err := s.vol.dev.rescan()
		if err == nil {
			_, err = s.vol.grow()
		}
		if err != nil {
			return nil, e, fmt.Errorf("%w: its content can't grow: %v", ErrServerUnreachable, err)
		}
	}
	return s, e, nil
}

// open reads the filesystem of an image, and makes one where it is blank.
func (f *FileServers) open(image string) (*share, error) {
	img, err := f.exports.Open(image)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", ErrNoExport, err)
	}
	d := &device{name: image, img: img, size: img.Size(), dirty: map[int64][]byte{}}
	v, err := load(d)
	if errors.Is(err, errNoFilesystem) {
		// Its kind is the server's own business; this one begins without lost+found.
		if _, err = makeFilesystem(d, "xfs", UUIDOf("share|"+image)); err == nil {
			v, err = load(d)
		}
	}
	if err != nil {
		img.Close()
		return nil, fmt.Errorf("%w: its content can't be read: %v", ErrServerUnreachable, err)
	}
	v.sb.fstype, v.sb.dev = nfsType, devno{0, 60 + len(f.shares)}
	return &share{image, v}, nil
}

// unmounted lets go of the content of a share that no client has mounted any more.
// mu is held.
func (f *FileServers) unmounted(s *share) {
	if s.vol.sb.refs > 0 || f.shares[s.image] != s {
		return
	}
	if s.vol.changed { // what can't be written is lost, as with any server that stops
		_ = s.vol.commit()
	}
	_ = s.vol.dev.img.Close()
	delete(f.shares, s.image)
}

// settle brings what the operation that has mu has changed to the servers'
// disks.
func (f *FileServers) settle() error {
	var errs []error
	for _, s := range f.used {
		if s.vol.changed {
			errs = append(errs, s.vol.commit())
		}
	}
	f.used = f.used[:0]
	return errors.Join(errs...)
}
