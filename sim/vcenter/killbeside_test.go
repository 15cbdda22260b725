package vcenter_test

import (
	"context"
	"sync"
	"testing"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// TestSessionEndsWhileItsViewChanges: under -race, what the end of a session
// reads of its objects is not what their calls are changing.
func TestSessionEndsWhileItsViewChanges(t *testing.T) {
	ctx := context.Background()
	v := start(t, vcenter.Config{})
	for range 4 {
		c := login(t, v)
		root := c.ServiceContent.RootFolder
		var begun, ended sync.WaitGroup
		for range 8 {
			view, err := methods.CreateListView(ctx, c, &types.CreateListView{This: *c.ServiceContent.ViewManager, Obj: []types.ManagedObjectReference{root}})
			if err != nil {
				t.Fatal(err)
			}
			begun.Add(1)
			ended.Go(func() {
				for i := 0; ; i++ {
					req := &types.ModifyListView{This: view.Returnval, Add: []types.ManagedObjectReference{root}}
					if i%2 == 0 {
						req.Add, req.Remove = nil, req.Add
					}
					if _, err := methods.ModifyListView(ctx, c, req); err != nil {
						return
					}
					if i == 3 {
						begun.Done()
					}
				}
			})
		}
		begun.Wait()
		v.KillSessions()
		ended.Wait()
	}
}
