package array

import "fmt"

// Sizes of volumes, in MiB.
const (
	// MinSizeMiB is the smallest volume, MaxSizeMiB the largest: 16 TiB (HPE's
	// python client and its test server; newer systems allow more).
	MinSizeMiB = 256
	MaxSizeMiB = 16 << 20
	// UnitMiB is what sizes are rounded up to: one chunklet of the smallest
	// kind. Unverified for the size that a volume is made with; the guide says
	// it of what a volume grows by.
	UnitMiB = 256
)

// roundMiB rounds a size up to whole units.
func roundMiB(mib int64) int64 { return (mib + UnitMiB - 1) / UnitMiB * UnitMiB }

// newSize says how large a volume becomes that is asked for with a size.
func newSize(mib int64) (int64, error) {
	switch {
	case mib <= 0:
		return 0, &Error{Kind: InvalidInput, Field: "sizeMiB", Value: fmt.Sprint(mib), Reason: "allowed is what is positive"}
	case mib < MinSizeMiB:
		// Unverified: that a smaller size is refused and not rounded up.
		return 0, &Error{Kind: BelowRange, Field: "sizeMiB", Value: fmt.Sprint(mib), Reason: fmt.Sprintf("allowed are %d to %d", MinSizeMiB, MaxSizeMiB)}
	case mib > MaxSizeMiB:
		return 0, &Error{Kind: TooLarge, Field: "sizeMiB", Value: fmt.Sprint(mib), Reason: fmt.Sprintf("allowed are %d to %d", MinSizeMiB, MaxSizeMiB)}
	}
	return roundMiB(mib), nil
}
