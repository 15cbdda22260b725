package invariant

import "fmt"

func init() {
	register(Invariant{
		ID:       "I4",
		Sentence: "no mkfs on a device that holds a finished filesystem or data that a pod wrote",
		Check: func(w *World) (out []string) {
			for _, f := range w.Formats {
				if f.HadData {
					out = append(out, fmt.Sprintf("%s on %s formatted device %s, which held data", f.Tool, f.Node, f.Serial))
				}
			}
			return out
		},
	})
}
