package cli

import (
	"fmt"
	"io"
	"os"
)

// maxInput is how large a file that a command reads may be, in bytes: far more
// than manifests take, and an end where a device has none.
const maxInput = 16 << 20

// readInput reads a file, or stdin for "-". Errors: what opening and reading
// say, or that it is larger than maxInput.
func readInput(stdin io.Reader, name string) ([]byte, error) {
	if name == "-" {
		return readBounded(stdin)
	}
	return readFile(name)
}

// readFile reads a file. Errors: as readInput.
func readFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readBounded(f)
}

func readBounded(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxInput+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxInput {
		return nil, fmt.Errorf("is larger than %d MiB", maxInput>>20)
	}
	return b, nil
}
