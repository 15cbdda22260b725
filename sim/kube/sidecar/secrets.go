package sidecar

import (
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/csilab/csilab/sim/kube/store"
)

// ParameterPrefix marks the parameters of a class that are for the sidecars,
// not for the driver.
const ParameterPrefix = "csi.storage.k8s.io/"

// SecretKeys name the two parameters of a class that refer to a secret.
type SecretKeys struct {
	// For says what the secret is for, as error texts spell it, e.g. "Provisioner".
	For             string
	Name, Namespace string
}

// Prefixed is the keys csi.storage.k8s.io/<what>-secret-{name,namespace}; what
// "" is the default secret's.
func Prefixed(label, what string) SecretKeys {
	if what != "" {
		what += "-"
	}
	return SecretKeys{label, ParameterPrefix + what + "secret-name", ParameterPrefix + what + "secret-namespace"}
}

// Reference resolves the secret that a class refers to, nil where it refers to
// none. The templates may use ${token} for the tokens of forName and
// forNamespace. Errors: one key of the two, an unknown token, no valid name.
// Source: external-provisioner v5.3.0 pkg/controller/controller.go:1765
// getSecretReference, external-snapshotter v8.6.0 pkg/utils/util.go:347.
func (k SecretKeys) Reference(params, forName, forNamespace map[string]string) (*corev1.SecretReference, error) {
	name, hasName := params[k.Name]
	ns, hasNS := params[k.Namespace]
	switch {
	case !hasName && !hasNS:
		return nil, nil
	case hasName != hasNS:
		return nil, fmt.Errorf("either name and namespace for %s secrets specified, Both must be specified", k.For)
	case name == "" || ns == "":
		return nil, fmt.Errorf("%s secrets specified in parameters but value of either namespace or name is empty", k.For)
	}
	rns, err := expand(ns, forNamespace)
	if err != nil {
		return nil, err
	}
	if len(validation.IsDNS1123Label(rns)) > 0 {
		return nil, fmt.Errorf("%q resolved to %q which is not a valid namespace name", ns, rns)
	}
	rname, err := expand(name, forName)
	if err != nil {
		return nil, err
	}
	if len(validation.IsDNS1123Subdomain(rname)) > 0 {
		return nil, fmt.Errorf("%q resolved to %q which is not a valid secret name", name, rname)
	}
	return &corev1.SecretReference{Name: rname, Namespace: rns}, nil
}

func expand(template string, tokens map[string]string) (string, error) {
	var missing []string
	out := os.Expand(template, func(k string) string {
		v, ok := tokens[k]
		if !ok {
			missing = append(missing, k)
		}
		return v
	})
	if len(missing) > 0 {
		slices.Sort(missing)
		return "", fmt.Errorf("error resolving value %q: invalid tokens: %q", template, missing)
	}
	return out, nil
}

// Credentials reads a secret; nil for a nil reference.
func Credentials(c *store.Client, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	secret, err := store.Get[corev1.Secret](c, ref.Namespace, ref.Name)
	if err != nil {
		return nil, fmt.Errorf("error getting secret %s in namespace %s: %w", ref.Name, ref.Namespace, err)
	}
	out := map[string]string{}
	for k, v := range secret.Data {
		out[k] = string(v)
	}
	return out, nil
}
