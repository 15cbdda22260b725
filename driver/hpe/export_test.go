package hpe_test

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/csilab/csilab/driver/hpe"
	"github.com/csilab/csilab/sim/array"
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
)

// A provider that says that a volume is unpublished and leaves its exports is
// not believed (#518), and the volume counts as the node's until they are gone.
func TestUnpublishThatLeavesTheExports(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Fatal(err)
	}
	lie := s.plan.Arm(fault.Rule{Hop: ledger.CSP, Op: "PUT /volumes/{id}/actions/unpublish", Do: fault.Skip()})
	for range 2 {
		check(t, s.unpublish(ctx, "pvc-1", "uuid-1"), codes.Unavailable, "still published")
	}
	_, err := s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "uuid-1")
	// Of a node that never had it this says nothing.
	if err := s.unpublish(ctx, "pvc-1", "uuid-2"); err != nil {
		t.Error(err)
	}
	s.plan.Disarm(lie)
	if err := s.unpublish(ctx, "pvc-1", "uuid-1"); err != nil || s.exportedTo() != "" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
	if _, err := s.publish(ctx, "pvc-1", "uuid-2"); err != nil {
		t.Error(err)
	}
}

// One that leaves them since it doesn't know the host, which an older version
// made, is told whose initiators it has.
func TestUnpublishFromAHostOfAnotherName(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Fatal(err)
	}
	a, _ := s.san.Array("array1")
	name := "node-1"
	if err := a.Change(func(now time.Time) ([]array.ContentOp, error) {
		_, err := a.Core().ModifyHost(now, a.Core().Hosts()[0].Name, array.HostChange{NewName: &name, Descriptors: &array.Descriptors{}})
		return nil, err
	}); err != nil {
		t.Fatal(err)
	}
	s.restartProvider(t)
	if err := s.unpublish(ctx, "pvc-1", "uuid-1"); err != nil || len(a.Exports()) > 0 || len(a.Hosts()) > 0 {
		t.Errorf("%v, exports %v, hosts %v", err, a.Exports(), a.Hosts())
	}
}

// A volume that is exported to somebody that the driver doesn't know of is not
// exported to a node beside that, unless it may have several, or the driver
// forgets its nodes with its process.
func TestPublishBesideAnUnknownExport(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	raw := block(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER)
	shared := func(q *csi.ControllerPublishVolumeRequest) { q.VolumeCapability = raw }
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.create(t, "pvc-2", func(q *csi.CreateVolumeRequest) { q.VolumeCapabilities = []*csi.VolumeCapability{raw} }); err != nil {
		t.Fatal(err)
	}
	a, _ := s.san.Array("array1")
	if err := a.Change(func(now time.Time) ([]array.ContentOp, error) {
		if _, err := a.Core().CreateHost(now, array.HostSpec{Name: "backup", ISCSINames: []string{"iqn.2020-01.org.example:backup"}}); err != nil {
			return nil, err
		}
		for _, v := range a.Core().Volumes() {
			if _, err := a.Core().CreateVLUN(now, array.VLUNSpec{Volume: v.Name, Host: "backup", Auto: true}); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := s.publish(ctx, "pvc-1", "uuid-1")
		check(t, err, codes.FailedPrecondition, "left at the storage system")
	}
	if got := s.exportedTo(); got != "" {
		t.Errorf("exported to %q", got)
	}
	if err := s.unpublish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Error(err)
	}
	if _, err := s.publish(ctx, "pvc-2", "uuid-1", shared); err != nil {
		t.Error(err)
	}
	if err := s.unpublish(ctx, "pvc-2", "uuid-1"); err != nil {
		t.Error(err)
	}
	s.options = func(o *hpe.Options) { o.Forgetful = true }
	s.start()
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Error(err)
	}
}

// A record that was lost, with all of a driver's state, is made again.
func TestPublishWithoutItsRecord(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Fatal(err)
	}
	s.records.Delete(ctx, "nodes-of-volume pvc-1")
	_, err := s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "left at the storage system")
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil || s.exportedTo() != "iqn-node-1" {
		t.Errorf("%v, exported to %q", err, s.exportedTo())
	}
	_, err = s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "uuid-1")
}

// A publish that the array refused in the middle has made some of the exports:
// the node keeps the volume until it is unpublished from it.
func TestPublishThatFailedMidway(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	if _, err := s.create(t, "pvc-1"); err != nil {
		t.Fatal(err)
	}
	s.plan.Arm(fault.Rule{Hop: ledger.WSAPI, Op: "POST /vluns", Nth: 2, Do: fault.Error(&array.Error{Kind: array.InvalidInput, Reason: "no"})})
	_, err := s.publish(ctx, "pvc-1", "uuid-1")
	check(t, err, codes.InvalidArgument, "")
	_, err = s.publish(ctx, "pvc-1", "uuid-2")
	check(t, err, codes.FailedPrecondition, "uuid-1")
	if _, err := s.publish(ctx, "pvc-1", "uuid-1"); err != nil {
		t.Error(err)
	}
}

// Old classes and volumes spell words in capitals (CON-4431); words that nobody
// knows are refused, not taken for another (CON-4439, CON-4448).
func TestSpelling(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	v, err := s.create(t, "pvc-1", parameters(map[string]string{"accessProtocol": "iSCSI", "targetScope": "Group"}))
	if err != nil || v.GetVolumeContext()["accessProtocol"] != "iscsi" {
		t.Fatalf("%v, %v", v, err)
	}
	pc, err := s.publish(ctx, "pvc-1", "uuid-1", func(q *csi.ControllerPublishVolumeRequest) { q.VolumeContext["accessProtocol"] = "ISCSI" })
	if err != nil || pc["accessProtocol"] != "iscsi" {
		t.Errorf("%v, %v", pc, err)
	}
	for k, word := range map[string]string{"accessProtocol": "pigeon", "replicationPolicy": "sometimes", "targetScope": "galaxy"} {
		_, err := s.create(t, "pvc-2", parameters(map[string]string{k: word}))
		check(t, err, codes.InvalidArgument, word)
	}
}
