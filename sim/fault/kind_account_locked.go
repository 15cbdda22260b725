package fault

import (
	"context"
	"time"
)

// accounts is a world whose backend locks accounts.
type accounts interface {
	// LockAccount locks the driver's account: it can't log in, sessions stay.
	LockAccount() (heal func(), err error)
}

// LockAccount locks the driver's account at the backend; ended says that its
// sessions end too.
func LockAccount(ended bool, last time.Duration) Action {
	return NewChange("lock account", last, func(_ context.Context, in *Interceptor, _ Call) (func(), error) {
		w, err := WorldOf[accounts](in, "lock accounts")
		if err != nil {
			return nil, err
		}
		heal, err := w.LockAccount()
		if err != nil || !ended {
			return heal, err
		}
		s, err := WorldOf[sessionKiller](in, "end sessions")
		if err != nil {
			heal()
			return nil, err
		}
		s.KillSessions()
		return heal, nil
	})
}

// AccountLockedParams are those of kind account-locked.
type AccountLockedParams struct {
	Sessions string        `yaml:"sessions" enum:"kept|ended" default:"kept" doc:"whether the sessions that the account has end too"`
	For      time.Duration `yaml:"for" unit:"duration" min:"0" max:"86400000000000" default:"until the rule is cleared or the faulty phase ends" doc:"how long it lasts"`
}

func init() {
	Register(Kind{
		Name:   "account-locked",
		Doc:    "The driver's account at the vCenter is locked, as after too many wrong passwords: no login succeeds, also with the right password. It heals as an administrator unlocks it.",
		Phases: []Phase{Before, After},
		Params: AccountLockedParams{},
		Needs:  NeedsWorld[accounts]("lock accounts"),
		New: Make(func(_ Rule, p AccountLockedParams) (Action, error) {
			return LockAccount(p.Sessions == "ended", p.For), nil
		}),
		Sweep: func(c Call, p Phase) bool { return p == Before && toBackend(c) },
		Example: `name: somebody tried wrong passwords
hop: csi
op: ControllerPublishVolume
nth: 1
do:
  account-locked: {sessions: ended, for: 10m}`,
	})
}
