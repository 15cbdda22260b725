package vcenter

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	core "github.com/csilab/csilab/sim/vcenter/cns"
	"github.com/csilab/csilab/sim/vcenter/task"
)

// Fault is an error that a rule of the fault plan gives to the hop vcenter: it
// is answered as a SOAP fault. An empty Message gets the text that a vCenter
// sends with that fault, where it is known.
type Fault struct {
	Fault   types.BaseMethodFault
	Message string
	// Result puts the fault on the volume's result in a task that succeeds,
	// as CNS reports most refusals. It counts for operations task:… only;
	// otherwise the task itself fails.
	Result bool
}

func (f *Fault) Error() string {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", f.Fault), "*types.")
	msg := f.Message
	if msg == "" {
		msg = textOf(f.Fault)
	}
	return kind + ": " + msg
}

// Code is the name of the fault's type: the code of a call in the ledger.
func (f *Fault) Code() string {
	if t := reflect.TypeOf(f.Fault); t != nil {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		return t.Name()
	}
	return ""
}

// HTTPError is an error that a rule of the fault plan gives to the hop vcenter:
// the call is answered with that status of HTTP, as by the proxy in front of a
// service that is down (503 at /vsanHealth, vsphere-csi-driver#2083).
type HTTPError struct{ Status int }

func (e *HTTPError) Error() string {
	return fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))
}

// Code of a call in the ledger.
func (e *HTTPError) Code() string { return fmt.Sprint("HTTP", e.Status) }

// CodeOf is the code that the ledger shows for an error of this hop, or "".
func CodeOf(err error) string {
	var f *Fault
	if errors.As(err, &f) {
		return f.Code()
	}
	var h *HTTPError
	if errors.As(err, &h) {
		return h.Code()
	}
	var r refusedREST
	if errors.As(err, &r) {
		return r.Code()
	}
	// Of the work of a task.
	var refused *core.Error
	var failed *task.Error
	switch {
	case errors.As(err, &refused):
		return fmt.Sprint(refused.Kind)
	case errors.As(err, &failed) && failed.Fault != nil:
		return (&Fault{Fault: failed.Fault.Fault}).Code()
	}
	return ""
}

func asFault(err error) (*soap.Fault, bool) {
	var f *Fault
	if errors.As(err, &f) {
		return simulator.Fault(f.Message, f.Fault), true
	}
	return nil, false
}

// faultError is the error that the ledger keeps of a reply.
func faultError(res soap.HasFault) error {
	f := res.Fault()
	if f == nil {
		return nil
	}
	bf, _ := f.Detail.Fault.(types.BaseMethodFault)
	return &Fault{Fault: bf, Message: f.String}
}

// maxRequest bounds a request; a batch of 1000 volumes has about 1 MiB.
const maxRequest = 32 << 20

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
}

// component tells who calls: a client whose User-Agent is csilab/<component>
// says so itself, all others are the configured one.
func (v *VCenter) component(agent string) string {
	if rest, ok := strings.CutPrefix(agent, "csilab/"); ok && rest != "" {
		name, _, _ := strings.Cut(rest, " ")
		return name
	}
	return v.cfg.Component
}

// describe derives the ledger entry of a request: operation, subjects and a
// digest. Only operations whose requests can hold no secret get a digest.
func (v *VCenter) describe(r *request) fault.Call {
	m := r.method
	c := fault.Call{Hop: ledger.VCenter, Op: m.Name, Component: v.component(r.agent)}
	if m.This.Type == "VirtualMachine" {
		c.Node = v.nodeName(m.This)
	}
	switch {
	case strings.HasPrefix(m.Name, "Cns"):
		v.subjects(reflect.ValueOf(m.Body), &c, 0)
		c.Request = digest(m.Body)
	case ownDisks[m.This.Type], m.Name == "AttachDisk_Task", m.Name == "DetachDisk_Task":
		v.diskSubjects(m.Body, &c)
	case m.Name == "FindByUuid" || m.Name == "FindAllByUuid":
		if q, ok := m.Body.(*types.FindByUuid); ok {
			c.Node = v.nodeByUUID(q.Uuid)
		}
		c.Request = digest(m.Body)
	case m.Name == "CreateListView", m.Name == "ModifyListView", m.Name == "ResetListView",
		m.Name == "PbmCheckCompatibility", m.Name == "PbmQueryProfile", m.Name == "PbmRetrieveContent":
		c.Request = digest(m.Body)
	}
	return c
}

// maxDigest keeps entries of batch calls small.
const maxDigest = 2048

func digest(body any) string {
	b, err := json.Marshal(body)
	if err != nil {
		return ""
	}
	if len(b) > maxDigest {
		b = append(b[:maxDigest], "…"...)
	}
	return string(b)
}

// subjects walks a CNS request for the first volume, snapshot and VM in it.
// A create has no id yet: its name is the subject.
func (v *VCenter) subjects(x reflect.Value, c *fault.Call, depth int) {
	if depth > 12 {
		return
	}
	switch x.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !x.IsNil() {
			v.subjects(x.Elem(), c, depth+1)
		}
	case reflect.Slice:
		for i := range x.Len() {
			v.subjects(x.Index(i), c, depth+1)
		}
	case reflect.Struct:
		switch t := x.Interface().(type) {
		case cnstypes.CnsVolumeId:
			if c.Volume == "" {
				c.Volume = t.Id
			}
			return
		case cnstypes.CnsSnapshotId:
			if c.Snapshot == "" {
				c.Snapshot = t.Id
			}
			return
		case types.ManagedObjectReference:
			if t.Type == "VirtualMachine" && c.Node == "" {
				c.Node = v.nodeName(t)
			}
			return
		case cnstypes.CnsVolumeCreateSpec:
			if c.Volume == "" {
				c.Volume = t.Name
			}
		}
		for i := range x.NumField() {
			if x.Type().Field(i).IsExported() {
				v.subjects(x.Field(i), c, depth+1)
			}
		}
	}
}
