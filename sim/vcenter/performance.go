package vcenter

import (
	"time"

	"github.com/vmware/govmomi/vim25/types"
)

// maxSamples is how many values a QueryPerf may ask for: one of each of 64
// metrics (vCenter's default limit, config.vpxd.stats.maxQueryMetrics) in each
// 20 s of a day.
const maxSamples = 64 * 24 * 60 * 3

// boundedPerf refuses a QueryPerf that would have vcsim make more values than
// a client can want, or that it divides by: it takes the numbers as they come.
func boundedPerf(req *types.QueryPerf) types.BaseMethodFault {
	total := 0.0
	for _, q := range req.QuerySpec {
		end, start := time.Now(), time.Now().AddDate(-1, 0, 0)
		if q.EndTime != nil {
			end = *q.EndTime
		}
		if q.StartTime != nil {
			start = *q.StartTime
		}
		interval := float64(q.IntervalId)
		if q.IntervalId == 0 || q.IntervalId == -1 {
			interval = 20
		}
		if interval < 0 || end.Before(start) || end.Sub(start) > 2*365*24*time.Hour || q.MaxSample < 0 {
			return &types.InvalidArgument{InvalidProperty: "querySpec"}
		}
		n := 1 + end.Sub(start).Seconds()/interval
		if q.MaxSample > 0 {
			n = min(n, float64(q.MaxSample))
		}
		if total += n * float64(1+len(q.MetricId)); total > maxSamples {
			return &types.InvalidArgument{InvalidProperty: "querySpec"}
		}
	}
	return nil
}
