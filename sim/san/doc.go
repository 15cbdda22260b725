// Package san is the storage that nodes reach over a network: arrays, each a
// core of package array with its REST API (package wsapi) and its content in a
// disk.Store, and the network between their ports and the adapters of nodes,
// which implements host.SAN.
//
// All arrays of a SAN are one state under one lock; those that are paired can
// copy to each other.
//
// # Network
//
// Every node reaches every port: iSCSI ports at their address and TCP port
// 3260, FC ports as one zone of all. A path is a node and a port; it can be
// cut, and so can a port, an array, the link between two arrays, and a node.
// A log-in outlasts that: once the path is back, the array sees the initiator
// again, if its CHAP secret is still the right one. The addresses of ports are
// names here, nothing listens on them.
//
// What an initiator finds at a port is looked up in the array's core each time
// it asks: a LUN that was given to another volume meanwhile leads there.
//
// # Content
//
// Content is looked up by the names that the core gives to images. A copy is as
// of one moment for all volumes of a command: writes to them wait. Content that
// is replaced (a promoted copy, the secondary volume of a periodic group) is
// the new one for handles that were opened before, too.
//
// # State
//
// With a StateDir, every change is in a file before it is acknowledged, and a
// start goes on from there: against the end of the process, not against a power
// cut of the machine. Sessions and log-ins end with the process.
package san
