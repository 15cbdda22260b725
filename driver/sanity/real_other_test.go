//go:build !linux

package sanity_test

import (
	"errors"
	"testing"
)

func main(m *testing.M) int { return m.Run() }

func real(*testing.T) (*platform, error) {
	return nil, errors.New("real nodes are for Linux")
}
