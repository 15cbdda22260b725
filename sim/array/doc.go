// Package array is the core of one HPE Primera or 3PAR array: CPGs, virtual
// volumes and their copies, hosts, exports (VLUNs), sets, QoS, remote copy
// groups, users, sessions, tasks and events. It is a deterministic state
// machine without I/O, goroutines or clock: times are passed in, ids derive
// from a seed, commands return a result or an *Error that carries the number
// and the HTTP status of the array's web API (WSAPI), and a refused command
// leaves the state as it was. It is not safe for concurrent use; its face
// serialises. Arrays that are linked for remote copy share one lock.
//
// It holds no data. Where a command needs content made, copied or shared, its
// Plan says so as ContentOps, which the consumer carries out.
//
// Its face is package wsapi, the REST API. The storage provider and the SAN side
// of hosts come on top.
package array
