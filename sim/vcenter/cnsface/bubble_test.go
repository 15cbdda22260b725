package cnsface

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	cnstypes "github.com/vmware/govmomi/cns/types"

	"github.com/vmware/govmomi/cns/methods"
	vim "github.com/vmware/govmomi/vim25/types"
)

// TestVirtualTime: the latency of tasks is the bubble's time, tasks wait for
// each other on channels, and Close ends what still runs.
func TestVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		f, m := bare(t, Config{
			Latency: map[string]time.Duration{"CnsCreateVolume": 10 * time.Minute, "CnsExtendVolume": 24 * time.Hour},
			OnTask: func(ctx context.Context, c TaskCall, commit func(context.Context) error) error {
				err := commit(ctx)
				if c.Op == "CnsQueryAsync" {
					select {
					case <-gate:
					case <-ctx.Done():
					}
				}
				return err
			},
		})
		start := time.Now()
		id := m.volume(t, "a")
		if took := time.Since(start); took != 10*time.Minute {
			t.Errorf("took %v", took)
		}
		for i := range 4 { // side by side: the calls return at once
			m.CnsCreateVolume(f.request(), &cnstypes.CnsCreateVolume{CreateSpecs: []cnstypes.CnsVolumeCreateSpec{{Name: fmt.Sprint("b", i), VolumeType: "BLOCK",
				Metadata:             cnstypes.CnsVolumeMetadata{ContainerCluster: cnstypes.CnsContainerCluster{ClusterId: "k1"}},
				BackingObjectDetails: &cnstypes.CnsBlockBackingDetails{CnsBackingObjectDetails: cnstypes.CnsBackingObjectDetails{CapacityInMb: 1}}}}})
		}
		f.tasks.Wait()
		if took := time.Since(start); took != 20*time.Minute || len(f.Volumes()) != 5 {
			t.Errorf("took %v, %d volumes", took, len(f.Volumes()))
		}
		state := func(ref vim.ManagedObjectReference) vim.TaskInfoState {
			info, _ := f.tasks.Info(ref.Value)
			return info.State
		}
		slow := m.CnsExtendVolume(f.request(), &cnstypes.CnsExtendVolume{ExtendSpecs: []cnstypes.CnsVolumeExtendSpec{{VolumeId: volumeID(id), CapacityInMb: 2}}}).(*methods.CnsExtendVolumeBody).Res.Returnval
		hung := m.CnsQueryAsync(f.request(), &cnstypes.CnsQueryAsync{}).(*methods.CnsQueryAsyncBody).Res.Returnval
		synctest.Wait()
		if state(slow) != vim.TaskInfoStateRunning || state(hung) != vim.TaskInfoStateRunning {
			t.Errorf("%s, %s", state(slow), state(hung))
		}
		close(gate)
		synctest.Wait()
		if state(hung) != vim.TaskInfoStateSuccess {
			t.Errorf("%s", state(hung))
		}
		f.Close()
		if state(slow) != vim.TaskInfoStateRunning || time.Since(start) != 20*time.Minute {
			t.Error("Close waited for the task, or it ended")
		}
		m.CnsQueryAsync(f.request(), &cnstypes.CnsQueryAsync{}) // too late: nothing runs
	})
}
