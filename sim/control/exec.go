package control

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Node is a real node beside what is served.
type Node struct {
	Name string `json:"name"`
	// KubeletDir is where the machine sees the node's /var/lib/kubelet, without
	// what is mounted in it: a driver's socket, for one.
	KubeletDir string   `json:"kubeletDir"`
	IQN        string   `json:"iqn,omitempty"`
	WWPNs      []string `json:"wwpns,omitempty"`
	Networks   []string `json:"networks,omitempty"`
	Disks      []string `json:"disks"` // WWNs that it sees
}

// Command is a program to run in a node.
type Command struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"` // KEY=value, all of it
	Dir  string   `json:"dir"` // absolute
}

// ErrNoNode says that there is no such node.
var ErrNoNode = errors.New("no node")

// Nodes are the nodes that programs can be run in.
type Nodes interface {
	List() []Node
	// Exec runs a program to its end, or until a while after that of ctx. Errors:
	// ErrNoNode.
	Exec(ctx context.Context, node string, c Command, stdin io.Reader, stdout, stderr io.Writer, signals <-chan syscall.Signal) (status int, err error)
}

// protocolExec is what the connection of an exec is upgraded to: frames of a
// kind, a length in 4 bytes, big endian, and data.
const protocolExec = "csilab-exec/1"

// Kinds of frames. The client sends the command first.
const (
	frameCommand = 'c' // JSON of Command
	frameStdin   = 'i'
	frameEnd     = 'I' // standard input has ended
	frameSignal  = 's' // its number, one byte
	frameStdout  = 'o'
	frameStderr  = 'e'
	frameStatus  = 'x' // the last one: exit status, 4 bytes, big endian
	frameError   = 'f' // the last one: why it did not run
	framePing    = 'p' // means nothing: whether somebody is there
)

// pingEvery is how often the server looks whether the client is still there. It
// can't see the end of the connection while it waits for the program to read
// what it got before.
const pingEvery = 500 * time.Millisecond

// maxFrame bounds the data of a frame, in bytes.
const maxFrame = 4 << 20

func writeFrame(w io.Writer, kind byte, data []byte) error {
	b := make([]byte, 0, 5+len(data))
	b = append(binary.BigEndian.AppendUint32(append(b, kind), uint32(len(data))), data...)
	_, err := w.Write(b)
	return err
}

func readFrame(r io.Reader) (kind byte, data []byte, err error) {
	var h [5]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(h[1:])
	if n > maxFrame {
		return 0, nil, fmt.Errorf("a frame of %d bytes, allowed are %d", n, maxFrame)
	}
	data = make([]byte, n)
	_, err = io.ReadFull(r, data)
	return h[0], data, err
}

// frames writes frames of one kind; it shares the connection.
type frames struct {
	mu   *sync.Mutex
	w    io.Writer
	kind byte
}

func (f frames) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for rest := b; len(rest) > 0; {
		n := min(len(rest), maxFrame)
		if err := writeFrame(f.w, f.kind, rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(b), nil
}

// serveNodes answers GET /v1alpha1/nodes and POST /v1alpha1/nodes/NAME/exec. rest
// is the path after /v1alpha1/nodes.
func serveNodes(w http.ResponseWriter, r *http.Request, nodes Nodes, rest string) {
	name, isExec := strings.CutSuffix(strings.TrimPrefix(rest, "/"), "/exec")
	switch {
	case nodes == nil:
		refuse(w, http.StatusNotFound, "no nodes are served (csilab serve --hosts)")
	case rest == "" && r.Method == http.MethodGet:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(List[Node]{APIVersion, "NodeList", nodes.List()})
	case !isExec || name == "":
		refuse(w, http.StatusNotFound, "the path must be /v1alpha1/nodes or /v1alpha1/nodes/NAME/exec")
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, http.StatusMethodNotAllowed, "only POST is served")
	case r.Header.Get("Upgrade") != protocolExec:
		refuse(w, http.StatusUpgradeRequired, "the connection must be upgraded to "+protocolExec)
	default:
		hijacker, ok := w.(http.Hijacker)
		if !ok {
			refuse(w, http.StatusInternalServerError, "the connection can't be upgraded")
			return
		}
		c, rw, err := hijacker.Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", protocolExec); err != nil {
			return
		}
		execOver(c, rw.Reader, nodes, name)
	}
}

// execOver runs a command over an upgraded connection. Its end ends the command.
func execOver(c net.Conn, in *bufio.Reader, nodes Nodes, name string) {
	var mu sync.Mutex
	last := func(kind byte, data []byte) {
		mu.Lock()
		defer mu.Unlock()
		_ = writeFrame(c, kind, data)
	}
	var cmd Command
	kind, data, err := readFrame(in)
	if err == nil && kind != frameCommand {
		err = fmt.Errorf("the first frame is of kind %q, not a command", kind)
	}
	if err == nil {
		err = json.Unmarshal(data, &cmd)
	}
	if err != nil {
		last(frameError, []byte(err.Error()))
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stdin, feed := io.Pipe()
	signals := make(chan syscall.Signal)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer cancel()
		defer feed.Close()
		for {
			kind, data, err := readFrame(in)
			switch {
			case err != nil:
				return
			case kind == frameStdin:
				_, _ = feed.Write(data) // it fails when the command reads no more
			case kind == frameEnd:
				feed.Close()
			case kind == frameSignal && len(data) == 1:
				select {
				case signals <- syscall.Signal(data[0]):
				case <-ctx.Done():
				}
			}
		}
	}()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		t := time.NewTicker(pingEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
				if _, err := (frames{&mu, c, framePing}).Write([]byte{0}); err != nil {
					cancel()
					return
				}
			}
		}
	}()
	status, err := nodes.Exec(ctx, name, cmd, stdin, frames{&mu, c, frameStdout}, frames{&mu, c, frameStderr}, signals)
	stdin.Close()
	cancel()
	if err != nil {
		last(frameError, []byte(err.Error()))
	} else {
		last(frameStatus, binary.BigEndian.AppendUint32(nil, uint32(status)))
	}
	c.Close()
	<-read
	<-pinged
}

// Nodes lists the nodes of a server.
func (c Client) Nodes(ctx context.Context) (List[Node], error) {
	var l List[Node]
	b, err := c.get(ctx, "nodes")
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	return l, err
}

// Exec runs a program in a node of the server, until it ends, and returns its
// exit status. Once ctx has ended the program is told to. Signals are passed on
// to it.
func (c Client) Exec(ctx context.Context, node string, cmd Command, stdin io.Reader, stdout, stderr io.Writer, signals <-chan syscall.Signal) (status int, err error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return 0, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	req := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: u.Host, Path: strings.TrimSuffix(u.Path, "/") + "/v1alpha1/nodes/" + node + "/exec"},
		Header: http.Header{"Authorization": {"Bearer " + c.Token}, "Connection": {"Upgrade"}, "Upgrade": {protocolExec}}}
	if err := req.Write(conn); err != nil {
		return 0, err
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, req)
	if err != nil {
		return 0, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer res.Body.Close()
		_, err := answerOf(res, req.URL.String())
		if err == nil {
			err = fmt.Errorf("%s: %s", req.URL, res.Status)
		}
		return 0, err
	}
	var mu sync.Mutex
	data, err := json.Marshal(cmd)
	if err == nil {
		err = writeFrame(conn, frameCommand, data)
	}
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	defer close(ended)
	// Neither is waited for: a terminal may be read for good.
	go func() {
		if stdin != nil {
			_, _ = io.Copy(frames{&mu, conn, frameStdin}, stdin)
		}
		mu.Lock()
		defer mu.Unlock()
		_ = writeFrame(conn, frameEnd, nil)
	}()
	go func() {
		for {
			select {
			case s := <-signals:
				_, _ = frames{&mu, conn, frameSignal}.Write([]byte{byte(s)})
			case <-ended:
				return
			}
		}
	}()
	for {
		kind, data, err := readFrame(in)
		switch {
		case ctx.Err() != nil:
			return 0, context.Cause(ctx)
		case err != nil:
			return 0, fmt.Errorf("the server ended the connection: %w", err)
		case kind == frameStdout:
			_, err = stdout.Write(data)
		case kind == frameStderr:
			_, err = stderr.Write(data)
		case kind == frameError:
			return 0, errors.New(string(data))
		case kind == frameStatus && len(data) == 4:
			return int(binary.BigEndian.Uint32(data)), nil
		}
		if err != nil {
			return 0, err
		}
	}
}
