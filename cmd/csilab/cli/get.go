package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/csilab/csilab/sim/control"
)

// Variables that `get` finds a server by; `serve --env` writes them.
const (
	envControlURL   = "CSILAB_CONTROL_URL"
	envControlToken = "CSILAB_CONTROL_TOKEN"
)

type getFlags struct {
	server, token, env, vcenter, array, output string
}

func newGet(s Streams) *cobra.Command {
	var f getFlags
	cmd := &cobra.Command{
		Use:   "get " + strings.Join(control.Kinds, "|"),
		Short: "Look inside a running serve",
		Long: `Lists what the vCenters of a running "csilab serve" have (volumes, attachments, tasks,
sessions, datastores) or its arrays (the others). The server is, in this
order, the one of --server and --token, that of the file of --env, or that of
CSILAB_CONTROL_URL and CSILAB_CONTROL_TOKEN in the environment.

Exit codes: 0 ok, 2 usage, or there is no such vCenter or array, 3 no server answers, or it
does not take the token.`,
		Example: `  csilab get volumes --env lab.env
  csilab get vluns --env lab.env --array array2
  csilab get tasks -o json | jq '.items[] | select(.state != "success")'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return exitf(ExitUsage, "get: name one of %s", strings.Join(control.Kinds, ", "))
			}
			if err := control.CheckKind(args[0]); err != nil {
				return exitf(ExitUsage, "get: %w", err)
			}
			return nil
		},
		ValidArgs: control.Kinds,
		RunE:      func(cmd *cobra.Command, args []string) error { return get(cmd.Context(), s, f, args[0]) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.server, "server", "", "URL of the control API")
	fl.StringVar(&f.token, "token", "", "token of the control API (others on this machine see it: better in the environment)")
	fl.StringVar(&f.env, "env", "", "file that serve --env wrote")
	fl.StringVar(&f.vcenter, "vcenter", "", "only this vCenter")
	fl.StringVar(&f.array, "array", "", "only this array")
	fl.StringVarP(&f.output, "output", "o", "table", "table, json or yaml")
	return cmd
}

// where finds URL and token of the server.
func (f getFlags) where(of string) (c control.Client, err error) {
	c = control.Client{URL: f.server, Token: f.token}
	vars := os.Getenv
	if f.env != "" {
		b, err := readFile(f.env)
		if err != nil {
			return c, exitf(ExitUsage, "--env %q: %w", f.env, err)
		}
		m := map[string]string{}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			m[k] = strings.Trim(v, "'")
		}
		if m[envControlURL] == "" && c.URL == "" {
			return c, exitf(ExitUsage, "--env %q: there is no %s in it", f.env, envControlURL)
		}
		vars = func(k string) string { return m[k] }
	}
	if c.URL == "" {
		c.URL = vars(envControlURL)
	}
	if c.Token == "" {
		c.Token = vars(envControlToken)
	}
	switch {
	case c.URL == "":
		return c, exitf(ExitUsage, "%s: no server: give --env FILE, --server and --token, or set %s and %s", of, envControlURL, envControlToken)
	case !strings.HasPrefix(c.URL, "http://"):
		return c, exitf(ExitUsage, "%s: server %q: must be an http:// URL", of, c.URL)
	case c.Token == "":
		return c, exitf(ExitUsage, "%s: no token for %s: give --env FILE or --token, or set %s", of, c.URL, envControlToken)
	}
	return c, nil
}

func get(ctx context.Context, s Streams, f getFlags, kind string) error {
	if f.output != "table" && f.output != "json" && f.output != "yaml" {
		return exitf(ExitUsage, "--output %q: allowed are table, json, yaml", f.output)
	}
	c, err := f.where("get")
	if err != nil {
		return err
	}
	of, other, flag := f.vcenter, f.array, "--array"
	if control.OfArrays(kind) {
		of, other, flag = f.array, f.vcenter, "--vcenter"
	}
	if other != "" {
		return exitf(ExitUsage, "get: %s %q: there are no %s there", flag, other, kind)
	}
	list, err := c.Get(ctx, kind, of)
	var gone interface{ Timeout() bool } // what package net and http report
	switch {
	case context.Cause(ctx) == errSignal:
		return exitf(ExitInterrupted, "get: %w", errSignal)
	case errors.Is(err, control.ErrToken), errors.As(err, &gone):
		return exitf(ExitEnvironment, "get: %s: %w", c.URL, err)
	case err != nil:
		return exitf(ExitUsage, "get: %w", err)
	}
	return f.print(s, list, func() error { return control.Table(s.Out, kind, list, time.Now()) })
}

// print writes a list as it was asked for.
func (f getFlags) print(s Streams, list json.RawMessage, table func() error) error {
	switch f.output {
	case "json":
		var b bytes.Buffer
		if err := json.Indent(&b, list, "", "  "); err != nil {
			return err
		}
		_, err := fmt.Fprintln(s.Out, strings.TrimSpace(b.String()))
		return err
	case "yaml":
		b, err := yaml.JSONToYAML(list)
		if err != nil {
			return err
		}
		_, err = s.Out.Write(b)
		return err
	}
	return table()
}
