package csp

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/csilab/csilab/sim/csp/wsapi"
)

// fileACL is the key of a record's parameters that holds who may mount a file
// share.
const fileACL = "access_control_list"

type fileInfo struct {
	ExportIP  string `json:"export_ip"`
	MountPath string `json:"mount_path"`
}

// publishFile shares a volume as files. What a node would mount is not
// simulated.
func (s *Server) publishFile(c *call, id string, acl any) (reply, error) {
	if s.cfg.Files.Address == "" {
		return reply{}, wrong("access_protocol", protoFile, "the array has no file service")
	}
	text, err := json.Marshal(acl)
	if err != nil || acl == nil {
		return reply{}, refuse(http.StatusBadRequest, "access_control_list is required")
	}
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if x.Config[fileACL] != string(text) {
		x.Config = mergeConfig(x.Config, map[string]string{fileACL: string(text)})
		if err := save(c.ctx, c.array, x.vv.Name, x.record); err != nil {
			return reply{}, failed("sharing volume "+clip(id), err)
		}
	}
	return reply{body: fileInfo{s.cfg.Files.Address, "/" + strings.TrimPrefix(x.vv.Name, "/")}}, nil
}

func (s *Server) unpublishFile(c *call, id string) (reply, error) {
	x, leave, err := s.hold(c, id)
	if err != nil {
		return reply{}, err
	}
	defer leave()
	if _, shared := x.Config[fileACL]; !shared {
		return reply{}, nil
	}
	x.Config = mergeConfig(x.Config, nil)
	delete(x.Config, fileACL)
	err = save(c.ctx, c.array, x.vv.Name, x.record)
	if wsapi.NotFound(err) {
		return reply{}, nil
	}
	return reply{}, failed("sharing volume "+clip(id)+" no more", err)
}
