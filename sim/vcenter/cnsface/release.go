package cnsface

import (
	"fmt"
	"strconv"
	"strings"
)

// release is a version of vCenter: what CNS offers and how it answers differs
// between them.
type release struct{ major, minor, patch int }

// releaseOf reads a version of two to four numbers, e.g. "8.0.3".
func releaseOf(version string) (r release, err error) {
	parts := strings.Split(version, ".")
	if len(parts) < 2 || len(parts) > 4 {
		return r, fmt.Errorf("cnsface: Version is %q, allowed are two to four numbers with dots", version)
	}
	for i, n := range []*int{&r.major, &r.minor, &r.patch} {
		if i == len(parts) {
			break
		}
		if *n, err = strconv.Atoi(parts[i]); err != nil || *n < 0 {
			return r, fmt.Errorf("cnsface: Version is %q, allowed are two to four numbers with dots", version)
		}
	}
	return r, nil
}

// atLeast compares releases.
func (r release) atLeast(o release) bool {
	if r.major != o.major {
		return r.major > o.major
	}
	if r.minor != o.minor {
		return r.minor > o.minor
	}
	return r.patch >= o.patch
}

// Releases from which on CNS behaves otherwise.
var (
	// A volume that is attached to the same VM again, or registered again, is
	// no error any more: govmomi's cns/client_test.go demands the first of 9.1
	// and later; govmomi#3804 says that the second "has changed". Unverified:
	// that the second came with the same release.
	release91 = release{9, 1, 0}
	// Changed block tracking of volumes (govmomi's cns/client_test.go,
	// TestBlockVolumeCBT).
	release92 = release{9, 2, 0}
)

// since is the release that brought a method, where that is known: from
// comments of govmomi's cns/client_test.go, and of kubernetes-sigs/
// vsphere-csi-driver for snapshots and CnsQueryAsync. The others count as
// always there.
var since = map[string]release{
	"CnsConfigureVolumeACLs":     {7, 0, 0},
	"CnsQueryVolumeInfo":         {7, 0, 1},
	"CnsRelocateVolume":          {7, 0, 1},
	"CnsQueryAsync":              {7, 0, 3},
	"CnsCreateSnapshots":         {7, 0, 3},
	"CnsDeleteSnapshots":         {7, 0, 3},
	"CnsQuerySnapshots":          {7, 0, 3},
	"CnsUnregisterVolume":        release91,
	"CnsSetVolumeControlFlags":   release92,
	"CnsClearVolumeControlFlags": release92,
	// Of disks: govmomi's table of minimal versions.
	"DeleteVStorageObjectEx_Task":                {7, 0, 2},
	"VCenterUpdateVStorageObjectMetadataEx_Task": {7, 0, 2},
	"RenameVStorageObjectEx":                     {8, 0, 2},
	"RevertVStorageObjectEx_Task":                {8, 0, 2},
	"VStorageObjectCreateSnapshotEx_Task":        {8, 0, 2},
	"VStorageObjectDeleteSnapshotEx_Task":        {8, 0, 2},
	"VStorageObjectExtendDiskEx_Task":            {8, 0, 2},
	"ReconcileDatastoreInventoryEx_Task":         {9, 0, 0},
}

// Offers says whether the release of this vCenter has a method of CNS or of
// the managers of disks. Calls of one that it lacks are MethodNotFound.
func (f *Face) Offers(method string) bool { return f.release.atLeast(since[method]) }
