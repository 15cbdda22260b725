package hpe_test

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// An array rounds sizes up. What is larger than the limit then is not kept, and a
// claim with room for the rounding gets the name.
func TestLimitBelowTheArraysRounding(t *testing.T) {
	s := newSystem(t)
	limit := func(n int64) func(*csi.CreateVolumeRequest) {
		return func(q *csi.CreateVolumeRequest) {
			q.CapacityRange = &csi.CapacityRange{RequiredBytes: 300 << 20, LimitBytes: n}
		}
	}
	_, err := s.create(t, "pvc-1", limit(300<<20))
	check(t, err, codes.OutOfRange, "capacity_range.limit_bytes")
	a, _ := s.san.Array("array1")
	if n := len(a.Core().Volumes()); n != 0 {
		t.Errorf("%d volumes are left", n)
	}
	if v, err := s.create(t, "pvc-1", limit(1<<30)); err != nil || v.GetCapacityBytes() != 512<<20 {
		t.Errorf("%v, %v", v, err)
	}
}
