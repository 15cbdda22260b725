package fault

import (
	"context"
	"time"
)

// Delay holds the call for d, or until its context ends.
func Delay(d time.Duration) Action { return Latency(d, 0) }

// Latency holds the call for d and a share of jitter that is drawn from the
// plan's seed, or until its context ends.
func Latency(d, jitter time.Duration) Action { return latencyAction{d, jitter} }

type latencyAction struct{ d, jitter time.Duration }

func (a latencyAction) Act(ctx context.Context, in *Interceptor, c Call) error {
	d := a.d
	if a.jitter > 0 {
		d += time.Duration(c.Draw("jitter") * float64(a.jitter))
	}
	return in.wait(ctx, d, c)
}

func (a latencyAction) String() string {
	if a.jitter > 0 {
		return "latency " + a.d.String() + " to " + (a.d + a.jitter).String()
	}
	return "delay " + a.d.String()
}

// LatencyParams are those of kind latency.
type LatencyParams struct {
	Time   time.Duration `yaml:"time" need:"yes" unit:"duration" min:"0" max:"86400000000000" doc:"how long the call is held"`
	Jitter time.Duration `yaml:"jitter" unit:"duration" min:"0" max:"86400000000000" default:"0" doc:"up to so much more, drawn from the lab's seed"`
}

func init() {
	Register(Kind{
		Name:   "latency",
		Doc:    "The call takes longer: before it is carried out, while its task runs, or before its reply leaves. Who waits with a deadline may have given up by then.",
		Phases: []Phase{Before, Task, After},
		Params: LatencyParams{},
		New: Make(func(_ Rule, p LatencyParams) (Action, error) {
			if p.Time == 0 && p.Jitter == 0 {
				return nil, Wrong("time", "is 0 and there is no jitter: the rule would do nothing")
			}
			return Latency(p.Time, p.Jitter), nil
		}),
		Samples: func(Call) []any { return []any{&LatencyParams{Time: 3 * time.Second, Jitter: 4 * time.Second}} },
		Example: `name: the array is slow
hop: wsapi
every: 3
do:
  latency: {time: 2s, jitter: 8s}`,
	})
}
