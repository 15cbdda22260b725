package host

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
)

// cards are a node's network, as far as storage software reads it: a card and an
// address for each of Adapters.Networks.
type cards struct {
	seed     uint64
	node     string
	networks []string
}

func init() {
	commands["ip"] = func(h *Memory, out, errs io.Writer, args []string) int { return h.cards().ip(out, errs, args) }
}

func (h *Memory) cards() cards { return cards{h.cfg.Seed, h.cfg.Name, h.cfg.Adapters.Networks} }

// mac is the hardware address of a card.
func (c cards) mac(card int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d|host|%s|card|%d", c.seed, c.node, card))
	return fmt.Sprintf("94:18:82:%02x:%02x:%02x", sum[0], sum[1], sum[2])
}

// show shows the cards in /sys/class/net.
func (c cards) show(sys *inode) {
	text := func(s string) func() []byte { return func() []byte { return []byte(s + "\n") } }
	card := func(dir, name, mac string) {
		at := "devices/" + dir + "/net/" + name
		sys.file(at+"/address", text(mac), nil)
		sys.file(at+"/operstate", text("up"), nil)
		sys.at("class/net").add(name, fs.ModeSymlink|0o777).target = "../../" + at
	}
	card("virtual", "lo", "00:00:00:00:00:00")
	for i := range c.networks {
		pci := fmt.Sprintf("pci0000:00/0000:02:%02x.0", i)
		name := "eth" + strconv.Itoa(i)
		card(pci, name, c.mac(i))
		sys.at("devices/"+pci+"/net/"+name).add("device", fs.ModeSymlink|0o777).target = "../.."
	}
}

// ip is ip(8), of which it knows the list of addresses.
func (c cards) ip(out, errs io.Writer, args []string) int {
	family, oneline := "", false
	words := args
	for len(words) > 0 && strings.HasPrefix(words[0], "-") {
		switch words[0] {
		case "-o", "-oneline":
			oneline = true
		case "-4":
			family = "inet"
		case "-6":
			family = "inet6"
		default:
			fmt.Fprintf(errs, "Option %q is unknown, try \"ip -help\".\n", words[0])
			return 255
		}
		words = words[1:]
	}
	text := strings.Join(words, " ")
	if text != "addr" && text != "address" && text != "a" && text != "addr show" && text != "address show" && text != "a s" {
		fmt.Fprintf(errs, "ip: '%s' is not supported by simulated hosts\n", text)
		return 1
	}
	show := func(i int, name, scope, prefix string) {
		p, err := netip.ParsePrefix(prefix)
		if err != nil {
			return
		}
		kind := "inet"
		if p.Addr().Is6() {
			kind = "inet6"
		}
		if !oneline {
			mac, link := "00:00:00:00:00:00", "loopback"
			if i > 1 {
				mac, link = c.mac(i-2), "ether"
			}
			fmt.Fprintf(out, "%d: %s: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000\n    link/%s %s brd ff:ff:ff:ff:ff:ff\n", i, name, link, mac)
		}
		if family != "" && family != kind {
			return
		}
		if oneline {
			fmt.Fprintf(out, "%d: %s    %s %s scope %s %s\\       valid_lft forever preferred_lft forever\n", i, name, kind, prefix, scope, name)
		} else {
			fmt.Fprintf(out, "    %s %s scope %s %s\n       valid_lft forever preferred_lft forever\n", kind, prefix, scope, name)
		}
	}
	show(1, "lo", "host", "127.0.0.1/8")
	for i, n := range c.networks {
		show(i+2, "eth"+strconv.Itoa(i), "global", n)
	}
	return 0
}
