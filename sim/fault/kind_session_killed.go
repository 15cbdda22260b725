package fault

import "context"

// sessionKiller is a world that can end the sessions at the backend.
type sessionKiller interface{ KillSessions() }

// KillSessions ends all sessions at the backend.
func KillSessions() Action {
	return NewChange("kill sessions", 0, func(_ context.Context, in *Interceptor, _ Call) (func(), error) {
		w, err := WorldOf[sessionKiller](in, "end sessions")
		if err != nil {
			return nil, err
		}
		w.KillSessions()
		return nil, nil
	})
}

func init() {
	Register(Kind{
		Name:   "session-killed",
		Doc:    "All sessions at the backend end: those of the vCenter, of the arrays, and the tokens of the storage provider. Who has one is told so with its next call, this one in phase before: NotAuthenticated, 401, 403 code 6.",
		Phases: []Phase{Before, After},
		Needs:  NeedsWorld[sessionKiller]("end sessions"),
		New:    func(Rule, any) (Action, error) { return KillSessions(), nil },
		// The backend itself says so then: an error that said it and kept the session
		// would make its caller leak one.
		Sweep: func(c Call, p Phase) bool { return p == Before && toBackend(c) },
		Example: `name: the session ends before the attach
hop: vcenter
op: CnsAttachVolume
nth: 1
do: session-killed`,
	})
}
