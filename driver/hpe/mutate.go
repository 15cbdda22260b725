package hpe

import (
	"context"
	"slices"
	"strings"

	"github.com/csilab/csilab/driver/controller"
)

// Mutate brings a volume to what the annotations of its claim say
// (csi.hpe.com/<parameter>), for the parameters that its class lets them change:
// allowMutations in the volume's context. It is for a watch of claims, which
// upstream has in a sidecar of its own; ctx carries the secrets
// (controller.WithSecrets). Annotations of other parameters say nothing here:
// they may be overrides, which were for the making of the volume.
//
// Errors are those of ModifyVolume; Invalid also for a class that allows what
// can't be changed.
func (b *Backend) Mutate(ctx context.Context, volume string, volumeContext, annotations map[string]string) error {
	want := map[string]string{}
	for _, k := range names(volumeContext[paramMutations]) {
		if !slices.Contains(mutable, k) {
			return controller.Errorf(controller.Invalid, "allowMutations: %s can't be changed, allowed: %s", k, strings.Join(mutable, ", "))
		}
		if v, ok := annotations[annotation+k]; ok {
			want[k] = v
		}
	}
	if len(want) == 0 {
		return nil
	}
	return b.ModifyVolume(ctx, volume, want)
}
