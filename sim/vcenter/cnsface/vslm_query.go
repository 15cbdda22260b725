package cnsface

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vslm/methods"
	vslm "github.com/vmware/govmomi/vslm/types"

	"github.com/csilab/csilab/sim/vcenter/cns"
)

// maxResult is the most that one answer lists. Unverified: VSLM's "internal
// limit" (VslmVsoVStorageObjectQueryResult).
const maxResult = 1000

// condition is a part of a query: a disk meets all of them.
type condition func(cns.Disk) bool

// badQuery is what VSLM answers to a query that it can't read. Unverified:
// vcsim, which says that it copies the real one, answers so.
func badQuery(format string, args ...any) error {
	return &wireError{local(&vim.SystemError{
		RuntimeFault: vim.RuntimeFault{MethodFault: vim.MethodFault{FaultCause: local(&vslm.VslmFault{Msg: "Unexpected exception"}, "")}},
		Reason:       "Undeclared fault",
	}, fmt.Sprintf(format, args...))}
}

// conditionOf reads a part of a query.
func conditionOf(q vslm.VslmVsoVStorageObjectQuerySpec) (condition, error) {
	if len(q.QueryValue) != 1 { // more are not supported (vcsim; Unverified)
		return nil, &cns.Error{Kind: cns.InvalidArgument, Field: "values", Value: strings.Join(q.QueryValue, ","), Reason: "allowed is one value"}
	}
	value := q.QueryValue[0]
	switch vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnum(q.QueryField) {
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumCapacity:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return nil, badQuery("capacity %q: allowed is a number", value)
		}
		return compared(q, func(d cns.Disk) int { return sign(d.CapacityMB, n) })
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumCreateTime:
		at, err := time.Parse(time.RFC3339Nano, value)
		if err != nil {
			return nil, badQuery("createTime %q: allowed is a time as of RFC 3339", value)
		}
		return compared(q, func(d cns.Disk) int { return d.Created.Compare(at) })
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumId:
		return text(q, func(d cns.Disk) []string { return []string{d.ID} })
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumName:
		return text(q, func(d cns.Disk) []string { return []string{d.Name} })
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumMetadataKey:
		return text(q, func(d cns.Disk) (keys []string) {
			for _, l := range d.Values {
				keys = append(keys, l.Key)
			}
			return keys
		})
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumMetadataValue:
		return text(q, func(d cns.Disk) (values []string) {
			for _, l := range d.Values {
				values = append(values, l.Value)
			}
			return values
		})
	case vslm.VslmVsoVStorageObjectQuerySpecQueryFieldEnumDatastoreMoId:
		// The number of a reference will do: clients give it without "datastore-".
		return text(q, func(d cns.Disk) []string { return []string{d.Datastore, strings.TrimPrefix(d.Datastore, "datastore-")} })
	}
	// backingObjectId is in the API, but a vCenter does not support it (vcsim).
	return nil, badQuery("query field %q is not supported", q.QueryField)
}

func sign(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// compared makes a condition of the order of a field and the value.
func compared(q vslm.VslmVsoVStorageObjectQuerySpec, order func(cns.Disk) int) (condition, error) {
	ok, err := ordered(q.QueryOperator)
	if err != nil {
		return nil, err
	}
	return func(d cns.Disk) bool { return ok(order(d)) }, nil
}

// ordered says which orders an operator takes.
func ordered(operator string) (func(int) bool, error) {
	switch vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnum(operator) {
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumEquals:
		return func(n int) bool { return n == 0 }, nil
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumNotEquals:
		return func(n int) bool { return n != 0 }, nil
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumLessThan:
		return func(n int) bool { return n < 0 }, nil
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumGreaterThan:
		return func(n int) bool { return n > 0 }, nil
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumLessThanOrEqual:
		return func(n int) bool { return n <= 0 }, nil
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumGreaterThanOrEqual:
		return func(n int) bool { return n >= 0 }, nil
	}
	return nil, badQuery("query operator %q is not allowed here", operator)
}

// text makes a condition of texts of a disk, any of which has to meet it.
func text(q vslm.VslmVsoVStorageObjectQuerySpec, of func(cns.Disk) []string) (condition, error) {
	var ok func(string, string) bool
	switch vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnum(q.QueryOperator) {
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumContains:
		ok = strings.Contains
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumStartsWith:
		ok = strings.HasPrefix
	case vslm.VslmVsoVStorageObjectQuerySpecQueryOperatorEnumEndsWith:
		ok = strings.HasSuffix
	default:
		in, err := ordered(q.QueryOperator)
		if err != nil {
			return nil, err
		}
		ok = func(a, b string) bool { return in(strings.Compare(a, b)) }
	}
	value := q.QueryValue[0]
	return func(d cns.Disk) bool {
		for _, s := range of(d) {
			if ok(s, value) {
				return true
			}
		}
		return false
	}, nil
}

// VslmListVStorageObjectForSpec lists the disks that meet all conditions, by
// id. Where there are more than are asked for, a client goes on with the
// condition that the id be greater than the last one.
func (m *vslmObjects) VslmListVStorageObjectForSpec(_ *simulator.Context, req *vslm.VslmListVStorageObjectForSpec) soap.HasFault {
	body := &methods.VslmListVStorageObjectForSpecBody{}
	fail := func(err error) soap.HasFault {
		body.Fault_ = fcdSOAPFault(err)
		return body
	}
	if req.MaxResult < 1 { // Unverified
		return fail(&cns.Error{Kind: cns.InvalidArgument, Field: "maxResult", Value: strconv.Itoa(int(req.MaxResult)), Reason: "allowed are 1 and more"})
	}
	var conditions []condition
	for _, q := range req.Query {
		c, err := conditionOf(q)
		if err != nil {
			return fail(err)
		}
		conditions = append(conditions, c)
	}
	m.f.mu.Lock()
	page, more := m.f.core.FindDisks(int(min(req.MaxResult, maxResult)), func(d cns.Disk) bool {
		for _, ok := range conditions {
			if !ok(d) {
				return false
			}
		}
		return true
	})
	m.f.mu.Unlock()
	res := &vslm.VslmVsoVStorageObjectQueryResult{AllRecordsReturned: !more}
	for _, d := range page {
		res.Id = append(res.Id, vim.ID{Id: d.ID})
		res.QueryResults = append(res.QueryResults, objectResult(m.f, d))
	}
	body.Res = &vslm.VslmListVStorageObjectForSpecResponse{Returnval: res}
	return body
}

// VslmRetrieveVStorageObjects describes disks; what is not found has an error
// of its own.
func (m *vslmObjects) VslmRetrieveVStorageObjects(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObjects) soap.HasFault {
	res := &vslm.VslmRetrieveVStorageObjectsResponse{}
	for _, id := range req.Ids {
		d, _, err := m.f.disk(id.Id, "")
		if err != nil {
			res.Returnval = append(res.Returnval, vslm.VslmVsoVStorageObjectResult{Id: id, CapacityInMB: -1, Error: fcdFault(err)})
			continue
		}
		res.Returnval = append(res.Returnval, objectResult(m.f, d))
	}
	return &methods.VslmRetrieveVStorageObjectsBody{Res: res}
}

// VslmRetrieveVStorageObjectAssociations says which VMs hold disks.
func (m *vslmObjects) VslmRetrieveVStorageObjectAssociations(_ *simulator.Context, req *vslm.VslmRetrieveVStorageObjectAssociations) soap.HasFault {
	res := &vslm.VslmRetrieveVStorageObjectAssociationsResponse{}
	for _, id := range req.Ids {
		a := vslm.VslmVsoVStorageObjectAssociations{Id: id}
		_, holders, err := m.f.disk(id.Id, "")
		if err != nil {
			a.Fault = fcdFault(err)
		}
		for _, h := range holders {
			a.VmDiskAssociation = append(a.VmDiskAssociation, vslm.VslmVsoVStorageObjectAssociationsVmDiskAssociation{VmId: h.VM, DiskKey: m.f.diskKey(m.f.inv.context(), id.Id, h.VM)})
		}
		res.Returnval = append(res.Returnval, a)
	}
	return &methods.VslmRetrieveVStorageObjectAssociationsBody{Res: res}
}

// valuesOf are the key/value pairs of a disk, or those it had at a snapshot.
func (f *Face) valuesOf(id string, snap *vim.ID) ([]cns.Label, error) {
	d, _, err := f.disk(id, "")
	if err != nil || snap == nil || snap.Id == "" {
		return d.Values, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.core.DiskSnapshot(id, snap.Id)
	return s.Values, err
}

func (f *Face) values(id string, snap *vim.ID, prefix string) ([]vim.KeyValue, error) {
	all, err := f.valuesOf(id, snap)
	var out []vim.KeyValue
	for _, l := range all {
		if strings.HasPrefix(l.Key, prefix) {
			out = append(out, vim.KeyValue{Key: l.Key, Value: l.Value})
		}
	}
	return out, err
}

func (f *Face) value(id string, snap *vim.ID, key string) (string, error) {
	all, err := f.valuesOf(id, snap)
	if err != nil {
		return "", err
	}
	for _, l := range all {
		if l.Key == key {
			return l.Value, nil
		}
	}
	return "", &wireError{local(&vim.KeyNotFound{Key: key}, fmt.Sprintf("Key '%s' was not found.", key))}
}

// cleared are the flags to clear: all, where a request names none, as
// govmomi's ClearControlFlags sends it. Unverified.
func cleared(names []string) []string {
	if len(names) == 0 {
		return cns.FlagNames
	}
	return names
}
