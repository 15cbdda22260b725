package kubeletsim

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A claim that said no is asked again when it has changed, and not because its
// events come later than it was read.
func TestClaimIsAskedAgainWhenItChanged(t *testing.T) {
	spec := volumeSpec{pv: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
		ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"}}}}
	for _, tc := range []struct {
		name         string
		events       []string // before it is read
		read         string
		later        []string
		askedAgainAt int // number of later events, from 1; 0 is never
	}{
		{"no event at all", nil, "9", nil, 0},
		{"its event comes later", []string{"9"}, "10", []string{"10"}, 0},
		{"two come later", []string{"8"}, "10", []string{"9", "10"}, 0},
		{"it changes", []string{"9"}, "10", []string{"10", "11"}, 2},
		{"it changed meanwhile", []string{"9", "10"}, "9", nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(1, 1)
			v := &actualVolume{}
			w.watchClaim(spec)
			for _, e := range tc.events {
				w.claimChanged("default/data", e)
			}
			w.waitForClaim(v, spec, tc.read)
			if got, want := w.claimUnchanged(v), tc.name != "it changed meanwhile"; got != want {
				t.Errorf("unchanged is %v", got)
			}
			at := 0
			for i, e := range tc.later {
				if w.claimChanged("default/data", e); at == 0 && !w.claimUnchanged(v) {
					at = i + 1
				}
			}
			if at != tc.askedAgainAt {
				t.Errorf("asked again at event %d, want %d", at, tc.askedAgainAt)
			}
		})
	}
}
