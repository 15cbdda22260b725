package vcenter_test

import (
	"context"
	"testing"
	"time"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/performance"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/csilab/csilab/sim/vcenter"
)

// TestQueryPerfIsBounded: what a client asks of statistics is answered, and no
// request makes the server allocate without bound.
func TestQueryPerfIsBounded(t *testing.T) {
	ctx := context.Background()
	v := start(t, vcenter.Config{})
	client := login(t, v)
	cc, err := cnsClient(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	vm, err := cc.vm(ctx, v, "node-1")
	if err != nil {
		t.Fatal(err)
	}
	c := client.Client
	m := performance.NewManager(c)
	hour := time.Now().Add(-time.Hour)
	res, err := m.SampleByName(ctx, types.PerfQuerySpec{IntervalId: 20, MaxSample: 10, StartTime: &hour}, []string{"cpu.usage.average"}, []types.ManagedObjectReference{vm})
	if err != nil || len(res) != 1 {
		t.Fatalf("%d series, %v", len(res), err)
	}
	year := time.Now().AddDate(-1, 0, 0)
	for name, q := range map[string]types.PerfQuerySpec{
		"a year of 1 s":     {IntervalId: 1, StartTime: &year},
		"negative interval": {IntervalId: -20},
		"negative samples":  {MaxSample: -1},
		"backwards":         {EndTime: &year},
		"since ever":        {IntervalId: 1 << 30, StartTime: &time.Time{}},
	} {
		q.Entity, q.MetricId = vm, make([]types.PerfMetricId, 100)
		_, err := methods.QueryPerf(ctx, c, &types.QueryPerf{This: *c.ServiceContent.PerfManager, QuerySpec: []types.PerfQuerySpec{q}})
		if !fault.Is(err, &types.InvalidArgument{}) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
