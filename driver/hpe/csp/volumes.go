package csp

import (
	"context"
	"net/http"
	"net/url"
)

func volumePath(id string) string { return "/volumes/" + url.PathEscape(id) }

// Volume returns a volume by id.
func (s *Session) Volume(ctx context.Context, id string) (v Volume, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: volumePath(id)}.again(), &v)
	return v, err
}

// VolumeNamed returns the volume of a name; ok is false when there is none,
// which providers say as 404 and some as an empty list.
func (s *Session) VolumeNamed(ctx context.Context, name string) (v Volume, ok bool, err error) {
	return named(ctx, s, "/volumes", url.Values{"name": {name}}, func(v Volume) bool { return v.Name == name })
}

// Volumes returns all volumes.
func (s *Session) Volumes(ctx context.Context) (vs []Volume, err error) {
	err = s.do(ctx, call{method: http.MethodGet, path: "/volumes"}.again(), &vs)
	if StatusOf(err) == http.StatusNotFound {
		return nil, nil
	}
	return vs, err
}

// CreateVolume makes a volume, empty or a clone of v.Base. It is not sent
// again: see Unknown and VolumeNamed.
func (s *Session) CreateVolume(ctx context.Context, v Volume) (got Volume, err error) {
	err = s.do(ctx, call{method: http.MethodPost, path: "/volumes", body: v}, &got)
	return got, err
}

// ChangeVolume sets what v has.
func (s *Session) ChangeVolume(ctx context.Context, v Volume) (got Volume, err error) {
	err = s.do(ctx, call{method: http.MethodPut, path: volumePath(v.ID), body: v}.again(), &got)
	return got, err
}

// DeleteVolume removes a volume, unless it is in use. A missing one is no error;
// that it is missing the look-up says, for a 404 of the removal may be about what
// goes with it, as a remote copy group.
func (s *Session) DeleteVolume(ctx context.Context, id string) error {
	err := s.do(ctx, call{method: http.MethodDelete, path: volumePath(id), query: url.Values{"force": {"false"}}}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		if _, lookup := s.Volume(ctx, id); StatusOf(lookup) == http.StatusNotFound {
			return nil
		}
	}
	return err
}

// PutHost makes a host known or brings it up to date, by its uuid.
func (s *Session) PutHost(ctx context.Context, h Host) error {
	return s.do(ctx, call{method: http.MethodPost, path: "/hosts", body: h}.again(), nil)
}

type publication struct {
	Host     string `json:"host_uuid"`
	Protocol string `json:"access_protocol,omitempty"`
}

// filePublication is the variant for a share of files, which is for clients and
// not for a host.
type filePublication struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"access_protocol"`
	Clients  string `json:"access_control_list,omitempty"`
}

const fileProtocol = "nfs"

// PublishFile shares a file volume with the clients of a list (addresses,
// networks, names, *, between commas), and with no others.
func (s *Session) PublishFile(ctx context.Context, id, clients string) (p FilePublication, err error) {
	err = s.do(ctx, call{method: http.MethodPut, path: volumePath(id) + "/actions/publish", body: filePublication{id, fileProtocol, clients}}.again(), &p)
	return p, err
}

// UnpublishFile shares a file volume with nobody any more. A volume that isn't
// there is no error.
func (s *Session) UnpublishFile(ctx context.Context, id string) error {
	err := s.do(ctx, call{method: http.MethodPut, path: volumePath(id) + "/actions/unpublish", body: filePublication{Protocol: fileProtocol}}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// Publish exports a volume to a host.
func (s *Session) Publish(ctx context.Context, id, host, protocol string) (p Publication, err error) {
	err = s.do(ctx, call{method: http.MethodPut, path: volumePath(id) + "/actions/publish", body: publication{host, protocol}}.again(), &p)
	return p, err
}

// Unpublish takes a volume from a host. When either isn't known there, or the
// host doesn't have the volume, that is no error.
func (s *Session) Unpublish(ctx context.Context, id, host string) error {
	err := s.do(ctx, call{method: http.MethodPut, path: volumePath(id) + "/actions/unpublish", body: publication{Host: host}}.again(), nil)
	if StatusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// again marks a call that may be sent twice.
func (c call) again() call { c.repeat = true; return c }
