package csp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// A file volume (access_protocol nfs) is a virtual volume that the array's file
// service exports to clients over NFS, and nothing else: no host sees it as a
// block device. Who may mount it is in its record.

// fileRules is the key of a record's parameters that holds who may mount a file
// share, between commas. Clients don't see it.
const fileRules = "file_rules"

// Limits of the rules of a share. Source: SCOD, Alletra Storage MP X10000,
// accessControlList.
const (
	maxRules     = 50
	maxRulesText = 253
)

type fileInfo struct {
	ExportIP  string `json:"export_ip"`
	MountPath string `json:"mount_path"`
}

// SharePath is where the file service of an array exports a virtual volume.
// Source: SCOD, Alletra Storage MP B10000 File Service, the volumeAttributes of
// a static PersistentVolume; there with the whole name of the volume.
func SharePath(vv string) string { return "/file/" + vv + "/" + vv }

// SharedAt is the virtual volume that is exported at a path, or false.
func SharedAt(path string) (vv string, ok bool) {
	rest, ok := strings.CutPrefix(path, "/file/")
	vv, again, _ := strings.Cut(rest, "/")
	return vv, ok && vv != "" && vv == again
}

// Share is a file volume as the file service exports it.
type Share struct {
	// Rules are the clients that may mount it: *, an address, a network
	// (10.0.0.0/8), an address with wildcards (10.0.*.1?). None: nobody may.
	Rules    []string
	ReadOnly bool
}

// ShareOf reads what a file volume is exported as out of its comment and
// key/values; false where the virtual volume is none.
func ShareOf(comment string, values map[string]string) (s Share, ok bool) {
	r, ok := decodeRecord(comment)
	if !ok || r.Kind != kindVolume {
		return s, false
	}
	r.read(values)
	if r.Todo || !r.isFile() {
		return s, false
	}
	s.ReadOnly, _ = config(r.Config).flag("share_read_only")
	return Share{Rules: config(r.Config).list(fileRules), ReadOnly: s.ReadOnly}, true
}

// Unshare is a comment with the rules of a share taken out, as an administrator
// does at the array.
func Unshare(comment string) (string, bool) {
	r, ok := decodeRecord(comment)
	if !ok || r.Chunks > 0 || r.Config[fileRules] == "" {
		return comment, false
	}
	delete(r.Config, fileRules)
	return ascii(r), true
}

func (r record) isFile() bool { return r.Config["access_protocol"] == protoFile }

// shared says whether somebody may mount the volume.
func (r record) shared() bool { return r.Config[fileRules] != "" }

// notAFile refuses what the file service has no like of. Source: SCOD, B10000
// File Service: "no data management such as snapshot, cloning or converting".
func (i item) notAFile(doing string) error {
	if !i.isFile() {
		return nil
	}
	return refuse(http.StatusBadRequest, "volume %s is a file share: %s is not supported", clip(i.id()), doing)
}

// checkFile refuses parameters that a file volume can't have, or that are not
// simulated.
func (c config) checkFile() error {
	if c["access_protocol"] != protoFile {
		return nil
	}
	for _, k := range append([]string{"replication_devices"}, sources...) {
		if c[k] != "" {
			return wrong(k, c[k], "not with access_protocol nfs")
		}
	}
	if v := c["share_squashing_option"]; v != "" && v != "no_root_squash" {
		return wrong("share_squashing_option", v, "simulated is no_root_squash")
	}
	if _, err := c.flag("share_read_only"); err != nil {
		return err
	}
	if v := c["access_control_list"]; v != "" {
		if _, err := rules(v); err != nil {
			return err
		}
	}
	return nil
}

var hostName = regexp.MustCompile(`^[a-zA-Z0-9*?]([a-zA-Z0-9*?.\-]*[a-zA-Z0-9*?])?$`)

// rules reads an access_control_list: text with commas, or a list of texts.
// Unverified: that both are taken; the real client sends what it is given.
func rules(acl any) ([]string, error) {
	var out []string
	add := func(text string) {
		for e := range strings.SplitSeq(text, ",") {
			if e = strings.TrimSpace(e); e != "" && !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	switch a := acl.(type) {
	case string:
		add(a)
	case []any:
		for _, e := range a {
			text, ok := e.(string)
			if !ok {
				b, _ := json.Marshal(e)
				return nil, wrong("access_control_list", string(b), "allowed are texts")
			}
			add(text)
		}
	}
	if len(out) == 0 {
		return nil, refuse(http.StatusBadRequest, "access_control_list is required")
	}
	if n := len(strings.Join(out, ",")); len(out) > maxRules || n > maxRulesText {
		return nil, wrong("access_control_list", fmt.Sprintf("%d entries of %d bytes", len(out), n), fmt.Sprintf("allowed are %d entries and %d bytes", maxRules, maxRulesText))
	}
	for _, e := range out {
		if _, err := netip.ParsePrefix(e); err != nil && !hostName.MatchString(e) {
			if _, err := netip.ParseAddr(e); err != nil {
				return nil, wrong("access_control_list", e, "allowed are *, addresses, networks, names, and wildcards in them")
			}
		}
	}
	return out, nil
}

// publishFile exports a volume to the clients of a list, and to no others.
func (s *Server) publishFile(c *call, id string, acl any) (reply, error) {
	if c.on.FileService == "" {
		return reply{}, noFileService()
	}
	who, err := rules(acl)
	if err != nil {
		return reply{}, err
	}
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if !x.isFile() {
		return reply{}, wrong("access_protocol", protoFile, "volume "+clip(id)+" is no file share")
	}
	if text := strings.Join(who, ","); x.Config[fileRules] != text {
		x.Config = mergeConfig(x.Config, map[string]string{fileRules: text})
		if err := save(c.ctx, c.array, x.vv.Name, x.record); err != nil {
			return reply{}, failed("sharing volume "+clip(id), err)
		}
	}
	return reply{body: fileInfo{c.on.FileService, SharePath(x.vv.Name)}}, nil
}

func noFileService() error {
	return wrong("access_protocol", protoFile, "the array has no file service")
}

// unpublishFile exports a volume to nobody any more.
func (s *Server) unpublishFile(c *call, id string) (reply, error) {
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if !x.shared() {
		return reply{}, nil
	}
	x.Config = mergeConfig(x.Config, nil)
	delete(x.Config, fileRules)
	err = save(c.ctx, c.array, x.vv.Name, x.record)
	if wsapi.NotFound(err) {
		return reply{}, nil
	}
	return reply{}, failed("sharing volume "+clip(id)+" no more", err)
}
