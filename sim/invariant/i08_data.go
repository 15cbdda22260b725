package invariant

import "fmt"

func init() {
	register(Invariant{
		ID:       "I8",
		Sentence: "what a pod wrote and synced is read back by the next pod, the clone and the restored snapshot (as of the snapshot)",
		Check: func(w *World) (out []string) {
			for _, r := range w.Reads {
				switch {
				case r.Err != "":
					out = append(out, fmt.Sprintf("%s: reading %s of volume %s: %s", r.Where, r.What, r.VolumeID, r.Err))
				case r.Want != r.Got:
					out = append(out, fmt.Sprintf("%s: %s of volume %s is %s, written was %s", r.Where, r.What, r.VolumeID, r.Got, r.Want))
				}
			}
			return out
		},
	})
}
