package face

import "strings"

// Fits says whether the parts of a path, without escapes, are what a pattern as
// "volumes/{name}" stands for, and gives what stands for its names.
func Fits(pattern string, parts []string) (vars map[string]string, ok bool) {
	want := strings.Split(pattern, "/")
	if len(want) != len(parts) {
		return nil, false
	}
	vars = map[string]string{}
	for i, w := range want {
		if strings.HasPrefix(w, "{") {
			vars[w[1:len(w)-1]] = parts[i]
		} else if w != parts[i] {
			return nil, false
		}
	}
	return vars, true
}
