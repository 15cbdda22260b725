package invariant

import "fmt"

func init() {
	register(Invariant{
		ID:       "I5",
		Sentence: "success of Unpublish or Delete means gone on the backend, on every array of a pair",
		Check: func(w *World) (out []string) {
			for _, p := range w.Promises {
				if p.StillThere != "" {
					out = append(out, fmt.Sprintf("%s of %s answered OK, but %s", p.Call, p.Subject, p.StillThere))
				}
			}
			return out
		},
	})
}
