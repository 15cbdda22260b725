package host

import "strings"

// redactCommand leaves secrets out of the arguments of a command.
func redactCommand(name string, args []string) []string {
	out := redact(args)
	if name != "iscsiadm" {
		return out
	}
	// iscsiadm … -n node.session.auth.password -v SECRET
	secret := false
	for _, a := range args {
		secret = secret || strings.Contains(a, "password")
	}
	for i, a := range args {
		switch {
		case !secret:
		case (a == "-v" || a == "--value") && i+1 < len(args):
			out[i+1] = masked
		case strings.HasPrefix(a, "--value="):
			out[i] = "--value=" + masked
		case strings.HasPrefix(a, "-v"):
			out[i] = "-v" + masked
		}
	}
	return out
}

const masked = "<masked>"

// redact leaves out the values of options that look like secrets.
func redact(words []string) []string {
	out := make([]string, 0, len(words)+2)
	for _, w := range words {
		parts := strings.Split(w, ",")
		for i, p := range parts {
			k, _, ok := strings.Cut(p, "=")
			low := strings.ToLower(k)
			if ok && (strings.Contains(low, "pass") || strings.Contains(low, "secret") || strings.Contains(low, "key") || strings.Contains(low, "cred")) {
				parts[i] = k + "=" + masked
			}
		}
		out = append(out, strings.Join(parts, ","))
	}
	return out
}
