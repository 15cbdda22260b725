// Package hpe is the driver's backend for HPE storage behind a Container
// Storage Provider (CSP): 3PAR, Primera, Alletra 9000 and their like, over
// iSCSI and Fibre Channel.
//
// Where a volume lies is said by the Secret of each request: the provider, the
// storage system behind it and the login. The backend keeps a session for each
// such account, and nothing else that it couldn't do without: what is true is
// read from the provider each time.
//
// # Nothing is made twice
//
// Making a volume or a snapshot is the one kind of call that the provider
// doesn't promise to be idempotent. So it is looked for by name before it is
// made, and again when a reply is missing or says that the name is taken; then
// it is compared with the request. Names are the provider's keys: two calls
// that make one name at once end with one volume. All other calls may be
// repeated: publish, unpublish, hosts, changes and deletes, the latter with
// "not found" for success.
//
// # One node at a time
//
// The storage system would export a volume to any number of hosts, and the
// provider only tells whether a volume is published, not where. So the backend
// keeps a record of the nodes of each volume, written before the volume is
// exported and taken back after the export is gone. With it a second node is
// refused for a volume that isn't shared, and a second publication in another
// mode. Without it (the records are lost) neither is noticed, and the
// orchestrator's own care is all there is, as with upstream's driver.
package hpe
