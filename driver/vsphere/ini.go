package vsphere

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// entry is one key of an INI file in the dialect of gcfg, which upstream's
// csi-vsphere.conf is written in: [section] or [section "sub"], key = value,
// a bare key is "true", # and ; begin a comment outside quotes, and \" \\ \n
// \t \b are the escapes within quotes. Names are case-insensitive.
type entry struct {
	section, sub, key, value string
	line                     int
}

// parseINI never puts a value into an error: it may be a password.
func parseINI(r io.Reader) ([]entry, error) {
	var out []entry
	var section, sub string
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(strings.TrimPrefix(sc.Text(), "\ufeff"))
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
			continue
		case line[0] == '[':
			var err error
			if section, sub, err = parseSection(line); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
			out = append(out, entry{section: section, sub: sub, line: n})
			continue
		}
		key, rest, hasValue := strings.Cut(line, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if section == "" {
			return nil, fmt.Errorf("line %d: a key before the first section", n)
		}
		if !validKey(key) {
			return nil, fmt.Errorf("line %d: not a key: letters, digits and - are allowed before =", n)
		}
		value := "true"
		if hasValue {
			var err error
			if value, err = parseValue(rest); err != nil {
				return nil, fmt.Errorf("line %d: key %s: %w", n, key, err)
			}
		}
		out = append(out, entry{section, sub, key, value, n})
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

func validKey(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s != ""
}

func parseSection(line string) (name, sub string, err error) {
	body, rest, ok := strings.Cut(line[1:], "]")
	if strings.Contains(body, `"`) {
		// A quoted name may hold a bracket.
		head, tail, _ := strings.Cut(line[1:], `"`)
		var n int
		if sub, n, err = unquote(tail); err != nil {
			return "", "", fmt.Errorf("section: %w", err)
		}
		body, ok = head, strings.HasPrefix(strings.TrimSpace(tail[n:]), "]")
		if ok {
			rest = strings.TrimSpace(tail[n:])[1:]
		}
	}
	if !ok {
		return "", "", fmt.Errorf("section: ] is missing")
	}
	if rest = strings.TrimSpace(rest); rest != "" && rest[0] != '#' && rest[0] != ';' {
		return "", "", fmt.Errorf("section: text after ]")
	}
	name = strings.ToLower(strings.TrimSpace(body))
	if !validKey(name) {
		return "", "", fmt.Errorf("section: not a name: letters, digits and - are allowed")
	}
	return name, sub, nil
}

// unquote reads up to the closing quote; n is what it consumed.
func unquote(s string) (v string, n int, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			return b.String(), i + 1, nil
		case '\\':
			i++
			if i == len(s) {
				return "", 0, fmt.Errorf(`\ at the end of the line`)
			}
			r, ok := map[byte]byte{'"': '"', '\\': '\\', 'n': '\n', 't': '\t', 'b': '\b'}[s[i]]
			if !ok {
				return "", 0, fmt.Errorf(`unknown escape, allowed: \" \\ \n \t \b`)
			}
			b.WriteByte(r)
		default:
			b.WriteByte(c)
		}
	}
	return "", 0, fmt.Errorf("closing quote is missing")
}

func parseValue(s string) (string, error) {
	s = strings.TrimSpace(s)
	var b strings.Builder
	for i := 0; i < len(s); {
		switch s[i] {
		case '"':
			v, n, err := unquote(s[i+1:])
			if err != nil {
				return "", err
			}
			b.WriteString(v)
			i += 1 + n
			if rest := strings.TrimSpace(s[i:]); rest == "" || rest[0] == '#' || rest[0] == ';' {
				return b.String(), nil
			}
		case '#', ';':
			return strings.TrimSpace(b.String()), nil
		default:
			b.WriteByte(s[i])
			i++
		}
	}
	return strings.TrimSpace(b.String()), nil
}
