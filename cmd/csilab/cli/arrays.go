package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csilab/csilab/sim"
	"github.com/csilab/csilab/sim/csp"
	"github.com/csilab/csilab/sim/disk"
	"github.com/csilab/csilab/sim/labfile"
	"github.com/csilab/csilab/sim/san"
)

// secretFile ends the name of the Secrets for a driver, by array, which are
// written beside the environment.
const secretFile = "hpe-secret.yaml"

// planArrays makes the configuration of arrays from the flags.
func (f serveFlags) planArrays() (*labfile.Storage, error) {
	if f.arrays < 1 || f.arrays > 8 {
		return nil, exitf(ExitUsage, "--arrays %d: allowed are 1 to 8", f.arrays)
	}
	for flag, addr := range map[string]string{"--csp-listen": f.cspListen, "--wsapi-listen": f.wsapiListen} {
		if _, _, err := checkListen(flag, addr); err != nil {
			return nil, err
		}
	}
	var lab labfile.Lab
	for i := range f.arrays {
		lab.Arrays = append(lab.Arrays, labfile.Array{Name: fmt.Sprintf("array%d", i+1)})
		if i%2 == 1 {
			lab.Pairs = append(lab.Pairs, labfile.Pair{First: lab.Arrays[i-1].Name, Second: lab.Arrays[i].Name})
		}
	}
	lab.Arrays[0].Listen, lab.CSPListen = f.wsapiListen, f.cspListen
	s, _ := lab.Storage()
	s.SAN.Seed = f.seed
	return &s, nil
}

// startArrays starts the arrays and the storage provider before them.
func (r *serving) startArrays(ctx context.Context, s labfile.Storage, stateDir string, log *slog.Logger, fail func(error)) error {
	cfg := s.SAN
	cfg.Component, cfg.Log, cfg.OnStateError, cfg.In = "csp", log, fail, r.faults
	var store disk.Store = disk.NewMemory()
	if stateDir != "" {
		cfg.StateDir = filepath.Join(stateDir, "arrays")
		var err error
		if store, err = disk.NewFiles(filepath.Join(cfg.StateDir, "disks")); err != nil {
			return exitf(ExitEnvironment, "--state %q: %w", stateDir, err)
		}
	}
	r.closers = append(r.closers, func() { store.Close() })
	cfg.Store = store
	var hosts []string
	for i := range cfg.Arrays {
		addr := s.Listen[i]
		if addr == "" {
			addr = fmt.Sprintf("127.0.0.%d:0", i+1) // the provider tells them apart by host
		}
		l, err := listen(addr)
		if err != nil {
			for _, a := range cfg.Arrays[:i] {
				a.Listener.Close()
			}
			return exitf(ExitEnvironment, "listen on %q for %s: %w", addr, cfg.Arrays[i].Name, err)
		}
		cfg.Arrays[i].Listener = l
		hosts = append(hosts, l.Addr().(*net.TCPAddr).IP.String())
	}
	network, err := san.New(ctx, cfg)
	if err != nil {
		return refusedStart(err)
	}
	r.closers = append(r.closers, network.Close)
	provider := csp.Config{ReplicationDevices: s.Devices, Seed: cfg.Seed, Log: log, In: r.faults}
	for i, a := range network.Arrays() {
		// Shares are published, and nothing serves them: who mounts one all the same
		// is refused by this machine.
		provider.Arrays = append(provider.Arrays, csp.Array{Name: a.Name(), URL: a.URL(), Backends: []string{hosts[i]}, FileService: hosts[i]})
	}
	addr := s.CSPListen
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := listen(addr)
	if err != nil {
		return exitf(ExitEnvironment, "listen on %q for the storage provider: %w", addr, err)
	}
	provider.Listener = l
	c, err := csp.New(ctx, provider)
	if err != nil {
		l.Close()
		return &exitError{ExitUsage, err}
	}
	r.closers = append(r.closers, c.Close)
	r.storage, r.san, r.csp = &s, network, c
	return nil
}

// tellArrays says where arrays and storage provider are.
func (r *serving) tellArrays(w io.Writer) {
	if r.san == nil {
		return
	}
	for i, a := range r.san.Arrays() {
		fmt.Fprintf(w, "csilab: %s: %s %s at %s, backend %s\n", a.Name(), a.Family(), a.Serial(), a.URL(), hostOf(a.URL()))
		if i == 0 {
			fmt.Fprintf(w, "csilab: storage provider at %s\n", r.csp.URL())
		}
	}
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

// arraysEnv are the variables of a client of the arrays; their Secrets are
// written beside them.
func (r *serving) arraysEnv(files *envFiles) ([][2]string, error) {
	env := [][2]string{{"CSILAB_CSP_URL", r.csp.URL()}}
	var names, docs []string
	for i, a := range r.san.Arrays() {
		n := ""
		if i > 0 {
			n = fmt.Sprint(i + 1)
		}
		env = append(env, [2]string{"CSILAB_WSAPI" + n + "_URL", a.URL()})
		names = append(names, a.Name())
		doc, err := r.secret(i)
		if err != nil {
			return nil, err
		}
		docs = append(docs, doc)
	}
	secrets := files.beside(secretFile)
	if err := files.write(secrets, []byte(strings.Join(docs, "---\n"))); err != nil {
		return nil, err
	}
	first := r.storage.Users[0]
	return append(env, [2]string{"CSILAB_ARRAY_USER", first.Name}, [2]string{"CSILAB_ARRAY_PASSWORD", first.Password},
		[2]string{"CSILAB_ARRAYS", strings.Join(names, ",")}, [2]string{"CSILAB_CPG", r.storage.CPGs[0]}, [2]string{"CSILAB_HPE_SECRET", secrets}), nil
}

// secret is the Secret of a StorageClass on the i-th array.
func (r *serving) secret(i int) (string, error) {
	u, err := url.Parse(r.csp.URL())
	if err != nil {
		return "", err
	}
	a := r.san.Arrays()[i]
	name := "hpe-backend"
	if i > 0 {
		name += "-" + strings.ToLower(strings.Trim(strings.ReplaceAll(a.Name(), "_", "-"), "-."))
	}
	s := corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: sim.SecretNamespace},
		StringData: map[string]string{"serviceName": u.Hostname(), "servicePort": u.Port(), "backend": hostOf(a.URL()),
			"username": r.storage.Users[i].Name, "password": r.storage.Users[i].Password}}
	b, err := yaml.Marshal(s)
	return string(b), err
}
