package cnsface

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	govcns "github.com/vmware/govmomi/cns"
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/simulator"
	"github.com/vmware/govmomi/vim25/soap"
	vim "github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/vcenter/cns"
)

func envelope(op, body string) []byte {
	return fmt.Appendf(nil, `<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.xmlsoap.org/soap/envelope/" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><Body>`+
		`<%[1]s xmlns="urn:vsan"><_this type="CnsVolumeManager">cns-volume-manager</_this>%[2]s</%[1]s></Body></Envelope>`, op, body)
}

// FuzzSOAP: whatever a request says, no method panics, every task ends, and
// the state stays one that a core would restore.
func FuzzSOAP(f *testing.F) {
	const cluster = `<metadata><containerCluster><clusterType>KUBERNETES</clusterType><clusterId>k1</clusterId><vSphereUser>u</vSphereUser></containerCluster>` +
		`<entityMetadata xsi:type="CnsKubernetesEntityMetadata"><entityName>pv</entityName><entityType>PERSISTENT_VOLUME</entityType></entityMetadata></metadata>`
	const size = `<backingObjectDetails xsi:type="CnsBlockBackingDetails"><capacityInMb>10</capacityInMb></backingObjectDetails>`
	const volume = `<volumeId><id>VOLUME</id></volumeId>`
	const vm = `<vm type="VirtualMachine">VM</vm>`
	for _, s := range [][2]string{
		{"CnsCreateVolume", ``},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + size + `</createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType><datastores type="Datastore">datastore-9</datastores>` + cluster + size + `</createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + size + `<volumeSource xsi:type="CnsSnapshotVolumeSource">` + volume + `<snapshotId><id>SNAPSHOT</id></snapshotId></volumeSource></createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + `<volumeSource></volumeSource></createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + volume + cluster + size + `<volumeSource xsi:type="CnsSnapshotVolumeSource">` + volume + `<snapshotId><id>SNAPSHOT</id></snapshotId></volumeSource></createSpecs>`},
		{"CnsAttachVolume", `<attachSpecs>` + volume + vm + `</attachSpecs>`},
		{"CnsAttachVolume", `<attachSpecs>` + volume + vm + `<controllerKey>1000</controllerKey><unitNumber>-1</unitNumber></attachSpecs>`},
		{"CnsAttachVolume", `<attachSpecs>` + volume + `<vm type="Folder">group-d1</vm></attachSpecs>`},
		{"CnsDetachVolume", `<detachSpecs>` + volume + vm + `</detachSpecs>`},
		{"CnsDeleteVolume", `<volumeIds><id>VOLUME</id></volumeIds><deleteDisk>true</deleteDisk>`},
		{"CnsExtendVolume", `<extendSpecs>` + volume + `<capacityInMb>-1</capacityInMb></extendSpecs>`},
		{"CnsExtendVolume", `<extendSpecs>` + volume + `<capacityInMb>9223372036854775807</capacityInMb></extendSpecs>`},
		{"CnsUpdateVolumeMetadata", `<updateSpecs>` + volume + cluster + `</updateSpecs>`},
		{"CnsQueryVolume", `<filter></filter>`},
		{"CnsQueryVolume", `<filter xsi:type="CnsKubernetesQueryFilter"><cursor><offset>9223372036854775807</offset><limit>9223372036854775807</limit></cursor><podNames>p</podNames></filter>`},
		{"CnsQueryAllVolume", `<filter></filter><selection><names>VOLUME_NAME</names></selection>`},
		{"CnsQueryAsync", `<filter><cursor><offset>-1</offset><limit>0</limit></cursor></filter>`},
		{"CnsQueryVolumeInfo", `<volumes><id>VOLUME</id></volumes><volumes><id></id></volumes>`},
		{"CnsCreateSnapshots", `<snapshotSpecs>` + volume + `<description>d</description></snapshotSpecs>`},
		{"CnsDeleteSnapshots", `<snapshotDeleteSpecs>` + volume + `<snapshotId><id>SNAPSHOT</id></snapshotId></snapshotDeleteSpecs>`},
		{"CnsQuerySnapshots", `<snapshotQueryFilter><snapshotQuerySpecs>` + volume + `</snapshotQuerySpecs><cursor><offset>9223372036854775807</offset><limit>1</limit></cursor></snapshotQueryFilter>`},
		{"CnsQuerySnapshots", `<snapshotQueryFilter></snapshotQueryFilter>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + size + `<volumeSource xsi:type="CnsSnapshotVolumeSource">` + volume + `<snapshotId><id>SNAPSHOT</id></snapshotId><linkedClone>true</linkedClone></volumeSource></createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + `<backingObjectDetails xsi:type="CnsBlockBackingDetails"><backingDiskId>VOLUME</backingDiskId></backingObjectDetails></createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + `<backingObjectDetails xsi:type="CnsBlockBackingDetails"><backingDiskUrlPath>https://vc/folder/fcd/DISKFILE.vmdk?dcPath=DC0&amp;dsName=LocalDS_0</backingDiskUrlPath></backingObjectDetails></createSpecs>`},
		{"CnsCreateVolume", `<createSpecs><name>a</name><volumeType>BLOCK</volumeType>` + cluster + size + `<activeClusters xsi:type="ManagedObjectReference" type="ClusterComputeResource">domain-c1</activeClusters><hosts type="HostSystem">host-1</hosts><createSpec xsi:type="CnsBlockCreateSpec"><cryptoSpec xsi:type="CryptoSpecEncrypt"></cryptoSpec></createSpec></createSpecs>`},
		{"CnsRelocateVolume", `<relocateSpecs xsi:type="CnsBlockVolumeRelocateSpec">` + volume + `<datastore type="Datastore">datastore-9</datastore></relocateSpecs>`},
		{"CnsRelocateVolume", `<relocateSpecs>` + volume + `</relocateSpecs>`},
		{"CnsRelocateVolume", ``},
		{"CnsReconfigVolumePolicy", `<volumePolicyReconfigSpecs>` + volume + `<profile xsi:type="VirtualMachineDefinedProfileSpec"><profileId>p</profileId></profile></volumePolicyReconfigSpecs>`},
		{"CnsUnregisterVolume", `<unregisterSpec>` + volume + `<targetVolumeType>FCD</targetVolumeType></unregisterSpec>`},
		{"CnsUnregisterVolume", `<unregisterSpec>` + volume + `<targetVolumeType>LEGACY_DISK</targetVolumeType></unregisterSpec>`},
		{"CnsSyncVolume", `<syncSpecs>` + volume + `<syncMode>SPACE_USAGE</syncMode></syncSpecs><syncSpecs></syncSpecs>`},
		{"CnsSyncDatastore", `<datastoreUrl>ds:///x/</datastoreUrl><fullSync>true</fullSync>`},
		{"CnsSyncDatastore", ``},
		{"CnsSetVolumeControlFlags", `<controlFlagsSpecs>` + volume + `<controlFlags>disableRelocation</controlFlags></controlFlagsSpecs>`},
		{"CnsClearVolumeControlFlags", `<controlFlagsSpecs></controlFlagsSpecs>`},
		{"CnsUpdateVolumeCrypto", `<updateSpecs>` + volume + `<disksCrypto><crypto xsi:type="CryptoSpecEncrypt"><cryptoKeyId><keyId>k</keyId></cryptoKeyId></crypto></disksCrypto></updateSpecs>`},
		{"CnsUpdateVolumeCrypto", `<updateSpecs>` + volume + `<disksCrypto></disksCrypto></updateSpecs>`},
	} {
		f.Add(envelope(s[0], s[1]))
	}

	var log syncBuffer // the face logs at level error what must not happen, panics too
	face, err := New(Config{Disks: disk.NewMemory(), Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		f.Fatal(err)
	}
	defer face.Close()
	model := SmallModel(f, 1)
	if err := face.Install(model.Service); err != nil {
		f.Fatal(err)
	}
	m, debug := &manager{govcns.CnsVolumeManagerInstance, face}, &debugManager{govcns.CnsDebugManagerInstance, face}
	vmRef := model.Service.Context.Map.Any("VirtualMachine").Reference()
	find := vim.TypeFunc()
	lookup := func(name string) (reflect.Type, bool) {
		if t, ok := find("vsan:" + name); ok {
			return t, ok
		}
		return find(name)
	}
	// do serves one request as vcsim does, waits for its tasks and returns it.
	do := func(data []byte) {
		method := decode(lookup, data)
		if method == nil {
			return
		}
		call := reflect.ValueOf(m).MethodByName(method.Name)
		if !call.IsValid() {
			call = reflect.ValueOf(debug).MethodByName(method.Name)
		}
		if !call.IsValid() || call.Type().NumIn() != 2 || call.Type().In(1) != reflect.TypeOf(method.Body) {
			return
		}
		c := face.inv.context()
		c.Session = &simulator.Session{UserSession: vim.UserSession{UserName: "fuzz"}}
		res := call.Call([]reflect.Value{reflect.ValueOf(c), reflect.ValueOf(method.Body)})[0].Interface().(soap.HasFault)
		if res.Fault() == nil && reflect.ValueOf(res).Elem().FieldByName("Res").IsNil() {
			panic(method.Name + ": neither result nor fault")
		}
		face.tasks.Wait()
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		// Something to act on: a volume with a snapshot.
		r, _ := face.create(face.ctx, face.inv.context(), cnstypes.CnsVolumeCreateSpec{Name: "there", VolumeType: "BLOCK",
			Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
			BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 10}}})
		volume := r.(*cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].GetCnsVolumeOperationResult().VolumeId.Id
		r, _ = face.createSnapshot(face.ctx, cnstypes.CnsSnapshotCreateSpec{VolumeId: volumeID(volume)})
		snap := r.(*cnstypes.CnsVolumeOperationBatchResult).VolumeResults[0].(*cnstypes.CnsSnapshotCreateResult).Snapshot.SnapshotId.Id

		do([]byte(strings.NewReplacer("VOLUME", volume, "DISKFILE", cns.BackingName(volume), "VM", vmRef.Value, "SNAPSHOT", snap).Replace(string(data))))

		if s := log.take(); s != "" {
			t.Fatal(s)
		}
		state := face.State()
		other := cns.New(0)
		for _, v := range state.Volumes {
			other.PutDatastore(cns.Datastore{ID: v.Datastore, CapacityMB: 1 << 40})
		}
		for _, d := range state.Disks {
			other.PutDatastore(cns.Datastore{ID: d.Datastore, CapacityMB: 1 << 40})
		}
		if err := other.Restore(state); err != nil {
			t.Fatal(err)
		}
		for _, v := range state.Volumes {
			if info, err := face.cfg.Disks.(disk.Store).Stat(v.ID); err != nil || info.Size != v.CapacityMB<<20 || len(info.Snapshots) != len(v.Snapshots) {
				t.Fatalf("volume %+v, image %+v %v", v, info, err)
			}
		}
		face.clean(t)
	})
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.b.Reset()
	return s.b.String()
}

// decode reads a request as vcsim does; what makes its decoder panic never
// gets to the face.
func decode(lookup func(string) (reflect.Type, bool), data []byte) (m *simulator.Method) {
	defer func() {
		if recover() != nil {
			m = nil
		}
	}()
	m, err := simulator.UnmarshalBody(lookup, data)
	if err != nil {
		return nil
	}
	return m
}

// clean deletes all volumes, as a client would, so that inputs don't pile up.
func (f *Face) clean(t *testing.T) {
	c := f.inv.context()
	all := f.Volumes()
	slices.Reverse(all) // a linked clone is younger than what it shares blocks with
	for _, v := range all {
		if a, ok := f.core.Attachment(v.ID); ok {
			if _, err := f.detach(f.ctx, c, cnstypes.CnsVolumeAttachDetachSpec{VolumeId: volumeID(v.ID), Vm: vim.ManagedObjectReference{Type: "VirtualMachine", Value: a.VM}}); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range v.Snapshots {
			if _, err := f.deleteSnapshot(f.ctx, cnstypes.CnsSnapshotDeleteSpec{VolumeId: volumeID(v.ID), SnapshotId: cnstypes.CnsSnapshotId{Id: s.ID}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.delete(f.ctx, c, v.ID, false, &deletion{}); err != nil {
			t.Fatal(err)
		}
	}
	// What was unregistered.
	for _, d := range f.core.Disks() {
		f.core.LoseDisk(d.ID)
		for _, s := range d.Snapshots {
			if err := f.cfg.Disks.DeleteSnapshot(d.ID, s.ID); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.cfg.Disks.Delete(d.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range f.core.Files() {
		if _, err := f.core.DeleteFile(x.Path); err != nil {
			t.Fatal(err)
		}
		if err := f.cfg.Disks.Delete(x.ID); err != nil {
			t.Fatal(err)
		}
	}
}
