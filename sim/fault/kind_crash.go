package fault

import (
	"context"
	"time"
)

// Crash kills a component by name (e.g. "driver-controller",
// "driver@node-1", "kubelet@node-1"); "" means the component that made the
// call. The lab restarts it.
func Crash(component string) Action { return CrashWith(CrashParams{Component: component}) }

// CrashWith kills a component with its state, or keeps it down.
func CrashWith(p CrashParams) Action { return &crashAction{wounds{last: p.For}, p} }

type crashAction struct {
	wounds
	CrashParams
}

// crasher is a world whose components can be killed. It fences the component
// before it returns, and does not wait for its calls to end: the crash comes
// from inside one of them.
type crasher interface{ Crash(component string) }

// loser is one whose components lose what they keep over a restart as well.
type loser interface {
	CrashLosingState(component string) error
}

// stopper is one whose components can be kept down.
type stopper interface {
	Stop(component string) error
	StartAgain(component string) error
}

// placer is one that knows who answers whom.
type placer interface {
	// TakesPart says whether a component makes or answers a call: its death ends it.
	TakesPart(component string, c Call) bool
}

func (a *crashAction) Act(_ context.Context, in *Interceptor, c Call) error {
	name := a.Component
	if name == "" {
		name = c.Component
	}
	if err := a.kill(in, name); err != nil {
		return &MissedError{a.String(), err}
	}
	if w, ok := in.World.(placer); ok && !w.TakesPart(name, c) {
		return nil
	}
	return ErrCrashed
}

func (a *crashAction) kill(in *Interceptor, name string) error {
	if w, ok := in.World.(interface{ CheckComponent(name string) error }); ok {
		if err := w.CheckComponent(name); err != nil {
			return err
		}
	}
	switch {
	case a.For > 0:
		w, err := WorldOf[stopper](in, "keep components down")
		if err != nil {
			return err
		}
		if a.State == "lost" {
			l, err := WorldOf[loser](in, "lose the state of components")
			if err != nil {
				return err
			}
			if err := l.CrashLosingState(name); err != nil {
				return err
			}
		}
		if err := w.Stop(name); err != nil {
			return err
		}
		// A component that does not come back shows by itself.
		a.lasts(in, a.String(), func() { _ = w.StartAgain(name) })
		return nil
	case a.State == "lost":
		w, err := WorldOf[loser](in, "lose the state of components")
		if err != nil {
			return err
		}
		return w.CrashLosingState(name)
	case in.OnCrash != nil:
		in.OnCrash(name)
		return nil
	case in.World == nil: // nobody to tell: the call ends as if
		return nil
	}
	w, err := WorldOf[crasher](in, "crash components")
	if err == nil {
		w.Crash(name)
	}
	return err
}

func (a *crashAction) String() string {
	text := "crash " + a.Component
	if a.State == "lost" {
		text += " with its state"
	}
	return text
}

// CrashParams are those of kind crash.
type CrashParams struct {
	Component string        `yaml:"component" default:"the one that makes the call" doc:"who is killed, e.g. driver-controller, driver@node-1, kubelet@node-1, csi-attacher, csp, vcenter, array1, its controller node array1:0"`
	State     string        `yaml:"state" enum:"kept|lost" default:"kept" doc:"what it keeps over a restart: with lost the operation records of the driver, the vol_data.json of a kubelet, the tasks of a vCenter that have not begun are gone too"`
	For       time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"its restart" doc:"how long it stays down"`
}

func init() {
	Register(Kind{
		Name:   "crash",
		Doc:    "A component is killed and started again from what it has on disk: nothing that the dead one does later has an effect. No reply leaves, unless the component neither makes nor answers the call.",
		Phases: []Phase{After, Before},
		Params: CrashParams{},
		Needs:  NeedsWorld[crasher]("crash components"),
		New:    Make(func(_ Rule, p CrashParams) (Action, error) { return CrashWith(p), nil }),
		Example: `name: the driver dies when the volume is attached
hop: vcenter
op: CnsAttachVolume
phase: after
nth: 1
do:
  crash: {component: driver-controller}`,
	})
}
