package san

import (
	"bytes"
	"context"
	"io/fs"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"k8s.io/utils/exec"
	testingexec "k8s.io/utils/exec/testing"
)

// tree is a node of files that does nothing by itself.
type tree struct {
	fstest.MapFS
	// commands are outputs by command line.
	commands map[string]string
	// broken are the errors of files and command lines that can't be read or run.
	broken map[string]error
}

func newTree(files map[string]string) *tree {
	t := &tree{MapFS: fstest.MapFS{}, commands: map[string]string{}}
	for p, data := range files {
		t.MapFS[p[1:]] = &fstest.MapFile{Data: []byte(data), Mode: 0o644}
	}
	return t
}

func (t *tree) Stat(p string) (fs.FileInfo, error)      { return t.MapFS.Stat(p[1:]) }
func (t *tree) ReadDir(p string) ([]fs.DirEntry, error) { return t.MapFS.ReadDir(p[1:]) }
func (t *tree) ReadFile(p string) ([]byte, error) {
	if err := t.broken[p]; err != nil {
		return nil, err
	}
	return t.MapFS.ReadFile(p[1:])
}
func (t *tree) MkdirAll(string, fs.FileMode) error    { return nil }
func (t *tree) EvalSymlinks(p string) (string, error) { return p, nil }
func (t *tree) DeviceSize(string) (int64, error)      { return 0, syscall.ENOENT }
func (t *tree) Remove(p string) error                 { delete(t.MapFS, p[1:]); return nil }
func (t *tree) WriteFile(p string, data []byte, m fs.FileMode) error {
	t.MapFS[p[1:]] = &fstest.MapFile{Data: bytes.Clone(data), Mode: m}
	return nil
}

func (t *tree) Exec() exec.Interface { return &treeExec{t: t} }

type treeExec struct {
	testingexec.FakeExec
	t *tree
}

func (e *treeExec) Command(cmd string, args ...string) exec.Cmd {
	return e.CommandContext(context.Background(), cmd, args...)
}

func (e *treeExec) CommandContext(_ context.Context, cmd string, args ...string) exec.Cmd {
	line := strings.Join(append([]string{cmd}, args...), " ")
	out, ok := e.t.commands[line]
	return &testingexec.FakeCmd{CombinedOutputScript: []testingexec.FakeAction{func() ([]byte, []byte, error) {
		if err := e.t.broken[line]; err != nil {
			return nil, nil, err
		}
		if !ok {
			return nil, nil, exec.ErrExecutableNotFound
		}
		return []byte(out), nil, nil
	}}}
}

// logTo is a log that the test prints.
func logTo(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(testLog{t}, nil)) }

type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

func newSAN(t testing.TB, cfg Config) *SAN {
	t.Helper()
	if cfg.NodeName == "" {
		cfg.NodeName = "worker-1"
	}
	cfg.Log = logTo(t)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
