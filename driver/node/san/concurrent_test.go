package san_test

import (
	"fmt"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Many volumes come and go at once, over paths that go and come.
func TestConcurrent(t *testing.T) {
	protocols(t, func(t *testing.T, r *rig) {
		const volumes, rounds = 8, 3
		var ids []string
		for i := range volumes {
			// The first 31 characters are the array's name.
			ids = append(ids, fmt.Sprintf("pvc-%08d-1111-1111-1111-111111111111", i))
			r.create(ids[i], 256)
			r.export(ids[i])
		}
		s, c := r.Service, filesystem("ext4")
		retry := func(f func() error) error {
			for {
				// What an orchestrator tries again.
				if err := f(); status.Code(err) != codes.Unavailable {
					return err
				}
			}
		}
		var wg sync.WaitGroup
		for i, v := range ids {
			wg.Go(func() {
				for n := range rounds {
					text := fmt.Sprint(i, "/", n)
					for _, f := range []func() error{
						func() error { return retry(func() error { return r.stage(s, v, c) }) },
						func() error { return r.publish(s, v, "p1", c) },
						func() error { return r.host.WriteAt(targetOf(v, "p1")+"/data", 0, []byte(text), true) },
						func() error {
							b, err := r.host.ReadAt(targetOf(v, "p1")+"/data", 0, len(text))
							if err == nil && string(b) != text {
								err = fmt.Errorf("reads %q, wrote %q", b, text)
							}
							return err
						},
						func() error { return r.unpublish(s, v, "p1") },
						func() error { return r.unstage(s, v) },
					} {
						if err := f(); err != nil {
							t.Errorf("%s: %v", v, err)
							return
						}
					}
				}
			})
		}
		port := r.positions(r.array(1))[0]
		wg.Go(func() {
			for range rounds {
				for _, down := range []bool{true, false} {
					if err := r.fabric.PortDown("array1", port, down); err != nil {
						t.Error(err)
					}
				}
			}
		})
		wg.Wait()
		r.clean()
	})
}
