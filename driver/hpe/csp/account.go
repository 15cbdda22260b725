package csp

import (
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Account is one login at one storage system: what a driver's Secret says
// without the password. It is comparable.
type Account struct {
	// URL is the provider's address up to and with /containers/v1.
	URL string
	// Backend is the storage system behind the provider, as the Secret has it.
	Backend string
	User    string
	// Header says that Backend goes into x-array-ip, which it does with a
	// provider that serves several systems: one that is a service.
	Header bool
	// Slow: the provider is known to take minutes, hpe.md 1.2 rule 7.
	Slow bool
}

// ErrSecret says what is wrong with a Secret. Its text never has a value of a
// password.
type ErrSecret struct{ Key, Reason string }

func (e *ErrSecret) Error() string { return "secrets: " + e.Key + " " + e.Reason }

// FromSecret reads the keys of upstream's Secret: serviceName, servicePort,
// backend, username, password, path.
//
// With serviceName the provider is a service of the cluster, spoken to in plain
// HTTP; without, it is on the storage system itself, behind HTTPS on port 443
// and a path (default csp).
func FromSecret(secret map[string]string) (a Account, password string, err error) {
	for _, k := range []string{"backend", "username", "password"} {
		if secret[k] == "" {
			return a, "", &ErrSecret{k, "is missing"}
		}
	}
	a.Backend, a.User = secret["backend"], secret["username"]
	service := secret["serviceName"]
	if service == "" {
		host := a.Backend
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		path := strings.Trim(secret["path"], "/")
		if path == "" {
			path = "csp"
		}
		u := url.URL{Scheme: "https", Host: net.JoinHostPort(host, "443"), Path: "/" + path + "/containers/v1"}
		a.URL = u.String()
		if _, err := url.Parse(a.URL); err != nil {
			return a, "", &ErrSecret{"backend", fmt.Sprintf("is %q, must be a host name or an address", a.Backend)}
		}
		a.Slow = true
		return a, secret["password"], nil
	}
	port := secret["servicePort"]
	if port == "" {
		return a, "", &ErrSecret{"servicePort", "is missing"}
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return a, "", &ErrSecret{"servicePort", fmt.Sprintf("is %q, allowed are 1 to 65535", port)}
	}
	if strings.ContainsAny(service, "/?#@ \t\r\n") {
		return a, "", &ErrSecret{"serviceName", fmt.Sprintf("is %q, must be a host name or an address", service)}
	}
	a.URL = "http://" + net.JoinHostPort(strings.Trim(service, "[]"), port) + "/containers/v1"
	if _, err := url.Parse(a.URL); err != nil {
		return a, "", &ErrSecret{"serviceName", fmt.Sprintf("is %q, must be a host name or an address", service)}
	}
	a.Header = true
	a.Slow = strings.Contains(service, "primera") || strings.Contains(service, "alletra9000")
	return a, secret["password"], nil
}

// String names the account in logs and errors.
func (a Account) String() string { return a.User + " at " + a.Backend + " (" + a.URL + ")" }
