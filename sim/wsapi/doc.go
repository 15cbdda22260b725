// Package wsapi is the face of an array: the REST API (WSAPI, version 1) of an
// HPE Primera, Alletra 9000 or 3PAR over a core of package array, served over
// one listener, HTTP or HTTPS. Every request passes the interceptor of the hop
// wsapi.
//
// Below /api/v1 there are
//
//	credentials          POST, DELETE /{key}
//	system, capacity, wsapiconfiguration                      GET
//	volumes              GET (query), POST; /{name} GET, PUT, POST, DELETE
//	volumes/{name}/objectKeyValues   GET, POST; /{key} GET, PUT, DELETE
//	cpgs                 GET, POST; /{name} GET, PUT, DELETE
//	spacereporter        POST
//	hosts                GET (query), POST; /{name} GET, PUT, DELETE
//	vluns                GET (query), POST; /{vol,lun[,host][,n:s:p]} GET, DELETE
//	ports                GET (query); /{n:s:p} GET; /{n:s:p}/iSCSIVlans GET
//	hostsets, volumesets GET, POST; /{name} GET, PUT, DELETE; POST of volumesets
//	tasks                GET; /{id} GET, PUT
//	qos                  GET, POST; /vvset:{name} GET, PUT, DELETE
//	remotecopy                                                GET
//	remotecopytargets, remotecopylinks                        GET; /{name} GET
//	remotecopygroups     GET, POST; /{name} GET, PUT, POST, DELETE; /{name}/volumes
//	flashcache           GET, POST, DELETE; PUT of system
//	users, roles         GET; /{name} GET
//	eventlog, systemreporter                                  GET
//
// Everything else is a resource that is not found (404, code 11), and a method
// that a resource has not is not supported (501, code 9). Not built: the event
// stream, and writing ports or remote copy targets and links.
package wsapi
