package san

import (
	"context"
	"errors"
	"strings"
	"time"
)

// Monitor looks at the paths of all volumes on the node every so often, until
// ctx ends: a volume that was taken from the node by force keeps its paths, and
// once its LUN is another volume's they lead there. Such a path is deleted, so
// that what the node still writes fails. Nothing else is changed: a volume
// without a path that works waits for one.
//
// What happens between two looks it can't know. Errors are logged.
func (s *SAN) Monitor(ctx context.Context, every time.Duration) {
	for pause(ctx, every) == nil {
		if err := s.inspect(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("look at paths", "err", err)
		}
	}
}

// inspect asks the paths of each volume that is held who they are.
func (s *SAN) inspect(ctx context.Context) error {
	names, err := s.names(s.holdings(), "")
	if err != nil {
		return err
	}
	var errs []error
	seen := map[string]bool{}
	for _, n := range names {
		_, serial, ok := strings.Cut(n, "-")
		if !ok || seen[serial] {
			continue
		}
		seen[serial] = true
		m, mapped, err := s.mapOf(serial)
		if err == nil && mapped {
			_, err = s.ask(ctx, m)
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}
