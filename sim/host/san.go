package host

import "github.com/csilab/csilab/sim/host/scsi"

// A node's side of a storage network is modelled in package scsi; these are its
// names here.
type (
	SAN      = scsi.SAN
	Protocol = scsi.Protocol
	Target   = scsi.Target
	LUN      = scsi.LUN
	CHAP     = scsi.CHAP
	Adapters = scsi.Adapters

	NoPathRetry = scsi.NoPathRetry
)

// What I/O does that has no path.
const (
	RetryPassed      = scsi.RetryPassed
	RetryRecommended = scsi.RetryRecommended
	RetryForever     = scsi.RetryForever
	RetryNever       = scsi.RetryNever
)

// Errors of a SAN.
var (
	ErrUnreachable    = scsi.ErrUnreachable
	ErrAuthentication = scsi.ErrAuthentication
	ErrNoLUN          = scsi.ErrNoLUN
)

// The protocols.
const (
	ISCSI = scsi.ISCSI
	FC    = scsi.FC
)
