package store

import (
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"errors"
	"strings"

	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/ledger"
	"github.com/csilab/csilab/sim/nearest"
)

// made are errors of the API server by reason.
var made = map[metav1.StatusReason]func(r schema.GroupResource, text string) *apierrors.StatusError{
	metav1.StatusReasonUnauthorized: func(_ schema.GroupResource, t string) *apierrors.StatusError { return apierrors.NewUnauthorized(t) },
	metav1.StatusReasonForbidden: func(r schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewForbidden(r, "", errors.New(t))
	},
	metav1.StatusReasonNotFound:      func(r schema.GroupResource, t string) *apierrors.StatusError { return apierrors.NewNotFound(r, t) },
	metav1.StatusReasonAlreadyExists: func(r schema.GroupResource, t string) *apierrors.StatusError { return apierrors.NewAlreadyExists(r, t) },
	metav1.StatusReasonConflict: func(r schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewConflict(r, "", errors.New(t))
	},
	metav1.StatusReasonInvalid: func(r schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewInvalid(schema.GroupKind{Group: r.Group, Kind: r.Resource}, t, nil)
	},
	metav1.StatusReasonServerTimeout: func(r schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewServerTimeout(r, t, 1)
	},
	metav1.StatusReasonTimeout: func(_ schema.GroupResource, t string) *apierrors.StatusError { return apierrors.NewTimeoutError(t, 1) },
	metav1.StatusReasonTooManyRequests: func(_ schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewTooManyRequests(t, 1)
	},
	metav1.StatusReasonBadRequest: func(_ schema.GroupResource, t string) *apierrors.StatusError { return apierrors.NewBadRequest(t) },
	metav1.StatusReasonInternalError: func(_ schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewInternalError(errors.New(t))
	},
	metav1.StatusReasonServiceUnavailable: func(_ schema.GroupResource, t string) *apierrors.StatusError {
		return apierrors.NewServiceUnavailable(t)
	},
}

func init() {
	for _, k := range kinds {
		for _, verb := range []string{"create", "update", "update-status", "delete"} {
			fault.RegisterOps(ledger.Kube, verb+" "+k.resource.Resource)
		}
	}
	fault.RegisterErrors(fault.Protocol{
		Doc:   "a reason of the API server",
		Codes: reasons,
		Make: func(op string, s fault.ErrorSpec) (error, error) {
			if s.Status != 0 {
				return nil, fault.Wrong("status", "the reason says it")
			}
			of, ok := made[metav1.StatusReason(s.Code)]
			if !ok {
				return nil, fault.Wrong("code", "%q is no reason of the API server%s", s.Code, nearest.Name(s.Code, reasons()))
			}
			_, resource, _ := strings.Cut(op, " ")
			text := s.Message
			if text == "" {
				text = "a rule of the fault plan says so"
			}
			return of(schema.GroupResource{Resource: resource}, text), nil
		},
		Typical: func(op string) []string {
			if strings.HasPrefix(op, "update") {
				return []string{"Conflict", "ServiceUnavailable", "InternalError"}
			}
			return []string{"ServiceUnavailable", "InternalError"}
		},
	}, ledger.Kube)
}

func reasons() (out []string) {
	for r := range made {
		out = append(out, string(r))
	}
	slices.Sort(out)
	return out
}
