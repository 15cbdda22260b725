// Package scsi is the SCSI side of one node: what Linux and its daemons make of
// a storage network. A Stack has the SCSI hosts, iSCSI sessions and FC remote
// ports, the disks that a scan found behind them, and the multipath maps over
// those. It answers the commands and the files of sysfs by which a node plugin
// deals with them.
//
// It is a core: it has no goroutines and no clock, and never waits. Whoever
// owns it serialises all calls, and shows what it tells (Uevents, Sysfs, Nodes,
// Link) to the programs of the node.
//
// As on Linux, what the network changes is not seen by itself. A logical unit
// shows up with a scan; one that is no longer exported leaves its disk behind,
// whose I/O fails; and where its number was given to another unit meanwhile, the
// disk leads there although its identity is that of the old one, until it is
// rescanned or deleted. Nobody notices: multipathd looks at the identity of a
// path when it is added, and again only with recheck_wwid, which is off unless
// the configuration says so, and then only when a path that had failed is back.
//
// There is no time: what Linux does some seconds after a loss (replacement
// timeout, fast_io_fail_tmo, the path checker's turn) it has done by the next
// look. So it has with the wait for a path (no_path_retry), unless Config says
// that maps queue: then I/O without a path is answered with ErrQueued, and
// whoever owns the stack asks again after whatever may have ended the wait, and
// has a Turn of the path checker in between. dev_loss_tmo is infinity, as
// multipath's defaults for this kind of array set it, so that disks outlive the
// loss of their port.
//
// Not modelled: partitions, SCSI reservations, NVMe, LUN numbers of more than
// one addressing method (Linux shows a unit at LUN 256 and up of an array that
// uses flat addressing at 16384 and up).
package scsi
