package fault

import "context"

// Crash kills a component by name (e.g. "driver-controller",
// "driver@node-1", "kubelet@node-1"); "" means the component that made the
// call. The lab restarts it.
func Crash(component string) Action { return crashAction(component) }

type crashAction string

// crasher is a world whose components can be killed. It fences the component
// before it returns, and does not wait for its calls to end: the crash comes
// from inside one of them.
type crasher interface{ Crash(component string) }

func (a crashAction) Act(_ context.Context, in *Interceptor, c Call) error {
	name := string(a)
	if name == "" {
		name = c.Component
	}
	switch {
	case in.OnCrash != nil:
		in.OnCrash(name)
		return ErrCrashed
	case in.World == nil: // nobody to tell: the call ends as if
		return ErrCrashed
	}
	w, err := WorldOf[crasher](in, "crash components")
	if err != nil {
		return err
	}
	w.Crash(name)
	return ErrCrashed
}
func (a crashAction) String() string { return "crash " + string(a) }

// CrashParams are those of kind crash.
type CrashParams struct {
	Component string `yaml:"component" default:"the one that makes the call" doc:"who is killed, e.g. driver-controller, driver@node-1, kubelet@node-1, csi-attacher, csp"`
}

func init() {
	Register(Kind{
		Name:   "crash",
		Doc:    "A component is killed and started again from what it has on disk: nothing that the dead one does later has an effect. No reply leaves.",
		Phases: []Phase{After, Before},
		Params: CrashParams{},
		Needs:  NeedsWorld[crasher]("crash components"),
		New:    Make(func(_ Rule, p CrashParams) (Action, error) { return Crash(p.Component), nil }),
		Example: `name: the driver dies when the volume is attached
hop: vcenter
op: CnsAttachVolume
phase: after
nth: 1
do:
  crash: {component: driver-controller}`,
	})
}
