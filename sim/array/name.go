package array

import (
	"fmt"
	"strings"
)

// Lengths of names, in bytes (WSAPI guide: name31; forklift#7127 for the 27 of
// host sets; OpenStack's driver for groups).
const (
	MaxName        = 31
	MaxSetName     = 27
	MaxGroupName   = 22
	MaxComment     = 511
	MaxISCSIName   = 223
	MaxKey         = 31
	MaxValue       = 511
	MaxDescription = 254
)

// checkName refuses what is no name of an object: letters, digits, '_', '-'
// and '.', not beginning with '-' or '.' (unverified: the beginning).
func checkName(field, name string, limit int) error {
	if name == "" {
		return &Error{Kind: EmptyString, Field: field, Reason: "a name is required"}
	}
	if len(name) > limit {
		return &Error{Kind: ExceedsLength, Field: field, Value: name, Reason: fmt.Sprintf("allowed are %d bytes", limit)}
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_':
		case (c == '-' || c == '.') && i > 0:
		default:
			return &Error{Kind: IllegalChar, Field: field, Value: name, Reason: "allowed are letters, digits, '_', and after the first '-' and '.'"}
		}
	}
	return nil
}

// checkText refuses what is no printable text of at most limit bytes.
func checkText(field, text string, limit int) error {
	if len(text) > limit {
		return &Error{Kind: ExceedsLength, Field: field, Value: text[:32] + "...", Reason: fmt.Sprintf("allowed are %d bytes", limit)}
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }); i >= 0 {
		return &Error{Kind: IllegalChar, Field: field, Value: text, Reason: "allowed is printable text"}
	}
	return nil
}
