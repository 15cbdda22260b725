package disk

import "fmt"

// Flip changes a byte of an image by exclusive or with a mask. The second flip
// with the same mask undoes it. Errors: an offset beyond the end.
func Flip(img Image, offset int64, mask byte) error {
	b := make([]byte, 1)
	if n, err := img.ReadAt(b, offset); n != 1 {
		return fmt.Errorf("byte %d: %w", offset, err)
	}
	b[0] ^= mask
	if _, err := img.WriteAt(b, offset); err != nil {
		return fmt.Errorf("byte %d: %w", offset, err)
	}
	return img.Sync()
}
