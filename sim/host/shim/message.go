package shim

import (
	"errors"
	"io"
)

// Message is what a command and its node say to each other. The command sends
// its name and arguments; the node answers go, or an exit status and the output
// of a command that it has emulated; after go the command sends its own exit
// status and the node answers with the one to end with.
type Message struct {
	Name string
	Args []string
	Go   bool
	Exit int    // 0–255
	Out  string // for the standard output
	Text string // for the standard error output
}

// maxMessage bounds a message in bytes. Linux takes 128 KiB for one argument,
// and some MiB for all.
const maxMessage = 16 << 20

var errMessage = errors.New("shim: not a message of a command")

// On the wire a message is its length and then its fields, each string with its
// length before it. Lengths are four bytes, the highest first.

// Write sends a message.
func (m Message) Write(w io.Writer) error {
	b := make([]byte, 4, 256)
	b = appendString(b, m.Name)
	b = appendSize(b, len(m.Args))
	for _, a := range m.Args {
		b = appendString(b, a)
	}
	flag := byte(0)
	if m.Go {
		flag = 1
	}
	b = append(b, flag, byte(m.Exit))
	b = appendString(appendString(b, m.Out), m.Text)
	if len(b)-4 > maxMessage {
		return errMessage
	}
	appendSize(b[:0], len(b)-4)
	_, err := w.Write(b)
	return err
}

// Read receives a message. Errors: those of r; it is no message.
func Read(r io.Reader) (Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Message{}, err
	}
	size, _, _ := takeSize(head[:])
	if size > maxMessage {
		return Message{}, errMessage
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return Message{}, err
	}
	return parse(b)
}

func parse(b []byte) (m Message, err error) {
	ok := true
	text := func() (s string) {
		if ok {
			s, b, ok = takeString(b)
		}
		return s
	}
	m.Name = text()
	n := 0
	if ok {
		n, b, ok = takeSize(b)
	}
	for ; ok && n > 0; n-- {
		m.Args = append(m.Args, text())
	}
	if !ok || len(b) < 2 {
		return Message{}, errMessage
	}
	m.Go, m.Exit, b = b[0] == 1, int(b[1]), b[2:]
	m.Out, m.Text = text(), text()
	if !ok || len(b) > 0 {
		return Message{}, errMessage
	}
	return m, nil
}

func appendSize(b []byte, n int) []byte {
	return append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func appendString(b []byte, s string) []byte { return append(appendSize(b, len(s)), s...) }

func takeSize(b []byte) (n int, rest []byte, ok bool) {
	if len(b) < 4 {
		return 0, nil, false
	}
	return int(b[0])<<24 | int(b[1])<<16 | int(b[2])<<8 | int(b[3]), b[4:], true
}

func takeString(b []byte) (s string, rest []byte, ok bool) {
	n, b, ok := takeSize(b)
	if !ok || n > len(b) {
		return "", nil, false
	}
	return string(b[:n]), b[n:], true
}
