package fault

import (
	"context"
	"fmt"
	"time"
)

// passwords is a world whose password for the backend can be changed.
type passwords interface {
	// ChangePassword gives the driver's account another password and ends its
	// sessions. heal makes driver and backend agree again.
	ChangePassword(ctx context.Context, password string) (heal func(), err error)
}

// RotatePassword changes the password at the backend.
func RotatePassword(last time.Duration) Action {
	return NewChange("rotate password", last, func(ctx context.Context, in *Interceptor, c Call) (func(), error) {
		w, err := WorldOf[passwords](in, "change passwords")
		if err != nil {
			return nil, err
		}
		return w.ChangePassword(ctx, fmt.Sprintf("rotated-%.9f", c.Draw("password")))
	})
}

// LastParams are those of kinds that only last.
type LastParams struct {
	For time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "password-rotated",
		Doc:    "The password of the driver's account at the backend is changed and its sessions end. It heals as a deployment of the driver with the new password does; beside csilab serve, by the old password.",
		Phases: []Phase{Before, After},
		Params: LastParams{},
		Needs:  NeedsWorld[passwords]("change passwords"),
		New:    Make(func(_ Rule, p LastParams) (Action, error) { return RotatePassword(p.For), nil }),
		Sweep:  func(c Call, p Phase) bool { return p == Before && toBackend(c) },
		Example: `name: somebody changes the password
hop: csi
op: ControllerPublishVolume
nth: 1
do:
  password-rotated: {for: 10m}`,
	})
}
