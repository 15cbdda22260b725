// Package api is the cluster that the HPE backend runs in, over the REST API of
// its API server: kube.Cluster for upstream's flavor "kubernetes". It asks each
// time and keeps nothing, so that what it says is what is there.
package api

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/csilab/csilab/driver/hpe/kube"
)

// ServiceAccount is where a pod finds the token of its service account and the
// certificate of the API server's authority.
const ServiceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config says where the API server is.
type Config struct {
	// URL of the server, e.g. https://10.96.0.1:443.
	URL string
	// Token gives the bearer token of a call; tokens that are mounted change.
	Token func() (string, error)
	// CA is the PEM of the authorities that the server's certificate may be of.
	CA []byte
	// Dial connects; nil is the operating system's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Timeout of one call; 0 means 30 s.
	Timeout time.Duration
}

// InCluster is the configuration of a program in a pod: the server of the
// environment (KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT), and token
// and ca.crt of a directory, which is ServiceAccount in a pod. Errors name what is missing.
func InCluster(getenv func(string) string, dir string) (Config, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Config{}, fmt.Errorf("kube: KUBERNETES_SERVICE_HOST is %q and KUBERNETES_SERVICE_PORT %q, both are set in a pod", host, port)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return Config{}, fmt.Errorf("kube: %w", err)
	}
	token := filepath.Join(dir, "token")
	if _, err := os.Stat(token); err != nil {
		return Config{}, fmt.Errorf("kube: %w", err)
	}
	return Config{URL: "https://" + net.JoinHostPort(host, port), CA: ca, Token: func() (string, error) {
		b, err := os.ReadFile(token)
		return strings.TrimSpace(string(b)), err
	}}, nil
}

// Cluster is a cluster by its API server.
type Cluster struct {
	url   string
	token func() (string, error)
	http  *http.Client
}

var _ kube.Cluster = (*Cluster)(nil)

// New returns a cluster. It calls nobody yet. Errors name what is wrong in the
// configuration.
func New(cfg Config) (*Cluster, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("kube: Config.URL is %q, allowed is https://HOST:PORT", cfg.URL)
	}
	if cfg.Token == nil {
		return nil, errors.New("kube: Config.Token is nil")
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(cfg.CA) {
		return nil, errors.New("kube: Config.CA has no certificate")
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DialContext: cfg.Dial, ForceAttemptHTTP2: true, IdleConnTimeout: 90 * time.Second}
	return &Cluster{url: strings.TrimSuffix(cfg.URL, "/"), token: cfg.Token, http: &http.Client{Transport: t, Timeout: cmp.Or(cfg.Timeout, 30*time.Second)}}, nil
}

// Close ends connections that are idle.
func (c *Cluster) Close() { c.http.CloseIdleConnections() }

// refusal is a call that the server refused.
type refusal struct {
	status  int
	message string
}

func (r *refusal) Error() string { return fmt.Sprintf("kube: %d: %s", r.status, r.message) }

func refused(err error, status int) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == status
}

// maxReply bounds what is read of a reply.
const maxReply = 64 << 20

// call asks the server. Errors: kube.ErrNotFound, a refusal, those of the
// network.
func (c *Cluster) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("kube: %w", err)
		}
		body = bytes.NewReader(b)
	}
	u := c.url + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	token, err := c.token()
	if err != nil {
		return fmt.Errorf("kube: token: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "application/json")
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxReply+1))
	switch {
	case err != nil:
		return fmt.Errorf("kube: %s %s: %w", method, path, err)
	case len(b) > maxReply:
		return fmt.Errorf("kube: %s %s: the reply has more than %d bytes", method, path, maxReply)
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%w: %s", kube.ErrNotFound, message(b, path))
	case res.StatusCode < 200 || res.StatusCode > 299:
		return &refusal{res.StatusCode, message(b, http.StatusText(res.StatusCode))}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("kube: %s %s: the reply can't be read: %w", method, path, err)
	}
	return nil
}

// message is that of a Status object, or another text where there is none.
func message(body []byte, or string) string {
	var s struct{ Message string }
	if json.Unmarshal(body, &s) == nil && s.Message != "" {
		return s.Message
	}
	return or
}

// meta is what is read of an object's metadata.
type meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
}

// listPage is how many objects are asked for at a time.
const listPage = 500

// list reads all objects of a path, a page after the other. A list that changed
// too much meanwhile (410) is read anew, once.
func list[T any](ctx context.Context, c *Cluster, path string) ([]T, error) {
	var out []T
	next, again := "", false
	for {
		var page struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		q := url.Values{"limit": {fmt.Sprint(listPage)}}
		if next != "" {
			q.Set("continue", next)
		}
		err := c.call(ctx, http.MethodGet, path, q, nil, &page)
		if refused(err, http.StatusGone) && !again {
			out, next, again = nil, "", true
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, page.Items...)
		if next = page.Metadata.Continue; next == "" {
			return out, nil
		}
	}
}
