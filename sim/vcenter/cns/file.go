package cns

import (
	"fmt"
	"slices"
	"time"
)

// File is a virtual disk on a datastore that is no first class disk: a .vmdk
// that the VirtualDiskManager made, or what is left of a disk that was taken
// out of the catalogue. Registering makes a first class disk of it.
type File struct {
	// ID names its content, and becomes the id of the first class disk.
	// Unverified: a disk that was one before may get a new id.
	ID           string       `json:"id"`
	Path         string       `json:"path"` // e.g. "[ds] dir/a.vmdk"
	Datastore    string       `json:"datastore"`
	CapacityMB   int64        `json:"capacityMB"`
	Provisioning Provisioning `json:"provisioning,omitempty"`
	Created      time.Time    `json:"created"`
}

type file struct{ File }

// disk is the file as a disk, as far as space goes.
func (f *file) disk() Disk {
	return Disk{Datastore: f.Datastore, CapacityMB: f.CapacityMB, Provisioning: f.Provisioning}
}

func noFile(path string) *Error {
	return &Error{Kind: FileNotFound, Field: "path", Value: path, Reason: "no such virtual disk"}
}

// Files returns the virtual disks that are no first class disks, by path.
func (c *Core) Files() []File {
	out := make([]File, 0, len(c.files))
	for _, f := range c.files {
		out = append(out, f.File)
	}
	slices.SortFunc(out, func(a, b File) int { return compare(a.Path, b.Path) })
	return out
}

// File returns the virtual disk at a path that is no first class disk. Errors:
// FileNotFound.
func (c *Core) File(path string) (File, error) {
	f, ok := c.files[path]
	if !ok {
		return File{}, noFile(path)
	}
	return f.File, nil
}

// PlanCreateFile checks whether CreateFile would succeed.
func (c *Core) PlanCreateFile(f File) error {
	if f.ID == "" || c.Taken(f.ID) {
		return &Error{Kind: InvalidArgument, Field: "id", Value: f.ID, Reason: "empty, or a disk has this id"}
	}
	if err := checkProvisioning(f.Provisioning); err != nil {
		return err
	}
	if f.CapacityMB <= 0 || f.CapacityMB > MaxCapacityMB {
		return &Error{Kind: InvalidArgument, Field: "capacityKb", Value: fmt.Sprint(f.CapacityMB << 10),
			Reason: fmt.Sprintf("allowed are 1 MB to %d MB", int64(MaxCapacityMB))}
	}
	s, ok := c.datastores[f.Datastore]
	if !ok {
		return &Error{Kind: NotFoundObject, Field: "datastore", Value: f.Datastore, Reason: "no such datastore"}
	}
	if err := c.checkPath(s, f.Path); err != nil {
		return err
	}
	if err := s.roomFor(f.CapacityMB, false); err != nil {
		return err
	}
	return nil
}

// CreateFile makes a virtual disk. Errors: InvalidArgument, InvalidPath,
// FileExists, NotFoundObject, NoSpace, Inaccessible, Maintenance.
func (c *Core) CreateFile(now time.Time, f File) (File, error) {
	if err := c.PlanCreateFile(f); err != nil {
		return File{}, err
	}
	f.Created = now
	c.putFile(&file{f})
	return f, nil
}

func (c *Core) putFile(f *file) {
	c.files[f.Path] = f
	c.fileIDs[f.ID] = f
	c.charge(f.disk())
}

func (c *Core) dropFile(f *file) {
	delete(c.files, f.Path)
	delete(c.fileIDs, f.ID)
	c.discharge(f.disk())
}

// plain finds a virtual disk that is no first class disk, on a datastore that
// a host reaches. Errors: FileNotFound, Inaccessible.
func (c *Core) plain(path string) (*file, error) {
	f, ok := c.files[path]
	if !ok {
		return nil, noFile(path)
	}
	if s := c.datastores[f.Datastore]; s.Inaccessible {
		return nil, &Error{Kind: Inaccessible, Field: "path", Value: path, Holder: s.Name, Reason: "no host reaches the datastore"}
	}
	return f, nil
}

// PlanDeleteFile checks whether DeleteFile would succeed.
func (c *Core) PlanDeleteFile(path string) error {
	_, err := c.plain(path)
	return err
}

// DeleteFile deletes a virtual disk. Errors: FileNotFound, Inaccessible.
func (c *Core) DeleteFile(path string) (File, error) {
	f, err := c.plain(path)
	if err != nil {
		return File{}, err
	}
	c.dropFile(f)
	return f.File, nil
}

// PlanMoveFile checks whether MoveFile would succeed.
func (c *Core) PlanMoveFile(from, datastore, to string) (File, error) {
	f, err := c.plain(from)
	if err != nil {
		return File{}, err
	}
	s, ok := c.datastores[datastore]
	if !ok {
		return File{}, &Error{Kind: NotFoundObject, Field: "datastore", Value: datastore, Reason: "no such datastore"}
	}
	if err := c.checkPath(s, to); err != nil {
		return File{}, err
	}
	if datastore != f.Datastore {
		if err := s.roomFor(f.CapacityMB, false); err != nil {
			return File{}, err
		}
	}
	moved := f.File
	moved.Datastore, moved.Path = datastore, to
	return moved, nil
}

// MoveFile moves a virtual disk, to another datastore too. Errors:
// FileNotFound, InvalidPath, FileExists, NotFoundObject, NoSpace, Inaccessible,
// Maintenance.
func (c *Core) MoveFile(from, datastore, to string) (File, error) {
	moved, err := c.PlanMoveFile(from, datastore, to)
	if err != nil {
		return File{}, err
	}
	c.dropFile(c.files[from])
	c.putFile(&file{moved})
	return moved, nil
}

// PlanExtendFile checks whether ExtendFile would succeed.
func (c *Core) PlanExtendFile(path string, capacityMB int64) (File, error) {
	f, err := c.plain(path)
	if err != nil {
		return File{}, err
	}
	if capacityMB < f.CapacityMB || capacityMB > MaxCapacityMB {
		return File{}, &Error{Kind: InvalidArgument, Field: "newCapacityKb", Value: fmt.Sprint(capacityMB << 10),
			Reason: fmt.Sprintf("allowed are %d MB to %d MB", f.CapacityMB, int64(MaxCapacityMB))}
	}
	s := c.datastores[f.Datastore]
	if more := capacityMB - f.CapacityMB; more > s.freeMB() {
		return File{}, &Error{Kind: NoSpace, Field: "newCapacityKb", Value: fmt.Sprint(capacityMB << 10), Holder: s.Name,
			Reason: fmt.Sprintf("%d MB are free, %d more are needed", s.freeMB(), more)}
	}
	return f.File, nil
}

// ExtendFile enlarges a virtual disk. Errors: FileNotFound, InvalidArgument
// (smaller), NoSpace.
func (c *Core) ExtendFile(path string, capacityMB int64) (File, error) {
	if _, err := c.PlanExtendFile(path, capacityMB); err != nil {
		return File{}, err
	}
	f := c.files[path]
	c.discharge(f.disk())
	f.CapacityMB = capacityMB
	c.charge(f.disk())
	return f.File, nil
}

// RegisterDisk makes a first class disk of the virtual disk at a path. An
// empty name is taken from the path. Errors: AlreadyRegistered (a first class
// disk already; Holder is its id), FileNotFound, InvalidArgument (name).
func (c *Core) RegisterDisk(path, name string) (Disk, error) {
	if v, ok := c.at(path); ok {
		return Disk{}, &Error{Kind: AlreadyRegistered, Field: "path", Value: path, Holder: v.ID, Reason: "a first class disk already"}
	}
	f, err := c.plain(path)
	if err != nil {
		return Disk{}, err
	}
	if name == "" {
		name = baseName(path)
	}
	if err := checkName(name); err != nil {
		return Disk{}, err
	}
	c.dropFile(f)
	v := &volume{Volume: Volume{Disk: Disk{ID: f.ID, Name: name, Datastore: f.Datastore, CapacityMB: f.CapacityMB,
		DiskPath: f.Path, Created: f.Created, Provisioning: f.Provisioning}}}
	c.appear(v)
	c.putDisk(v)
	return v.Disk.clone(), nil
}

// Demote makes a plain virtual disk of a first class disk that is no volume.
// Errors: NotFound, InUse (a volume of CNS), Attached, HasSnapshots,
// NotSupported (linked clone).
func (c *Core) Demote(id string) (File, error) {
	d, err := c.PlanDeleteDisk(id)
	if err != nil {
		return File{}, err
	}
	if _, registered := c.volumes[id]; registered {
		return File{}, &Error{Kind: InUse, Field: "id", Value: id, Holder: id, Reason: "the disk is a volume of CNS"}
	}
	if d.LinkedTo != nil {
		return File{}, &Error{Kind: NotSupported, Field: "id", Value: id, Holder: d.LinkedTo.Volume, Reason: "a linked clone has no backing of its own"}
	}
	c.lose(c.disks[id])
	f := File{ID: d.ID, Path: d.DiskPath, Datastore: d.Datastore, CapacityMB: d.CapacityMB, Provisioning: d.Provisioning, Created: d.Created}
	c.putFile(&file{f})
	return f, nil
}

func baseName(p string) string {
	for i := len(p) - 1; i >= 0; i-- {
		if p[i] == '/' || p[i] == ' ' {
			p = p[i+1:]
			break
		}
	}
	if n := len(p) - len(".vmdk"); n > 0 && p[n:] == ".vmdk" {
		p = p[:n]
	}
	return p[:min(len(p), MaxName)]
}
