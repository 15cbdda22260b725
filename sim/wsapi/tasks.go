package wsapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/csilab/csilab/sim/array"
)

var taskRoutes = []route{
	get("tasks", (*Server).listTasks),
	get("tasks/{id}", (*Server).getTask),
	change(http.MethodPut, "tasks/{id}", (*Server).changeTask),
}

// taskOut shows a task. Its one phase has a hundred steps.
func taskOut(c *call, t array.Task) map[string]any {
	clock := func(x time.Time) string {
		if x.IsZero() {
			return "-"
		}
		return x.UTC().Format("2006-01-02 15:04:05 MST")
	}
	phases := 0
	if t.Status == array.TaskDone {
		phases = 1
	}
	out := map[string]any{"id": t.ID, "type": t.Type, "name": t.Name, "status": t.Status, "completedPhases": phases, "totalPhases": 1,
		"completedSteps": t.Percent(), "totalSteps": 100, "startTime": clock(t.Started), "finishTime": clock(t.Finished),
		"user": "3parsvc", "links": c.link("tasks", strconv.FormatInt(t.ID, 10))}
	if t.Priority > 0 {
		out["priority"] = t.Priority
	}
	if t.Reason != "" {
		out["detailedStatus"] = t.Reason
	}
	return out
}

func (s *Server) listTasks(c *call) (reply, error) {
	var out []map[string]any
	for _, t := range s.a.Tasks() {
		out = append(out, taskOut(c, t))
	}
	return reply{body: list(out)}, nil
}

func taskID(c *call) (int64, error) {
	id, ok := number(c.vars["id"])
	if !ok {
		return 0, refuse(array.WrongType, "id", "invalid input: wrong type, an integer is required")
	}
	return id, nil
}

func (s *Server) getTask(c *call) (reply, error) {
	id, err := taskID(c)
	if err != nil {
		return reply{}, err
	}
	t, err := s.a.Task(id)
	if err != nil {
		return reply{}, err
	}
	return reply{body: taskOut(c, t)}, nil
}

// changeTask cancels a task.
func (s *Server) changeTask(c *call) (reply, error) {
	id, err := taskID(c)
	if err != nil {
		return reply{}, err
	}
	var in struct {
		Action *int64 `json:"action"`
	}
	if err := decode(c.body, &in); err != nil {
		return reply{}, err
	}
	if err := required(in.Action != nil, "action"); err != nil {
		return reply{}, err
	}
	if *in.Action != 1 {
		return reply{}, refuse(array.BadEnum, "action", "invalid input: allowed is 1")
	}
	_, ops, err := s.a.CancelTask(c.now, id)
	if err == nil {
		s.owe(ops)
	}
	return reply{}, err
}
