package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Client asks a control API.
type Client struct {
	URL, Token string
	HTTP       *http.Client // nil: one with a limit of 30 s
}

// ErrToken says that the server does not take the token.
var ErrToken = errors.New("the token is missing or wrong")

// Get returns the list of a kind as the server gave it: that of one vCenter, or
// array, or with of "" of all.
func (c Client) Get(ctx context.Context, kind, of string) (json.RawMessage, error) {
	if err := CheckKind(kind); err != nil {
		return nil, err
	}
	rest := kind
	if of != "" {
		by := "vcenter"
		if OfArrays(kind) {
			by = "array"
		}
		rest += "?" + by + "=" + url.QueryEscape(of)
	}
	return c.get(ctx, rest)
}

// get asks for what is at a path below /v1alpha1/.
func (c Client) get(ctx context.Context, rest string) (json.RawMessage, error) {
	return c.do(ctx, http.MethodGet, rest, nil)
}

// do makes a request to a path below /v1alpha1/.
func (c Client) do(ctx context.Context, method, rest string, body io.Reader) (json.RawMessage, error) {
	u := strings.TrimSuffix(c.URL, "/") + "/v1alpha1/" + rest
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.Token)
	h := c.HTTP
	if h == nil {
		// No proxy: the server is on this machine.
		t := &http.Transport{}
		defer t.CloseIdleConnections()
		h = &http.Client{Timeout: 30 * time.Second, Transport: t}
	}
	res, err := h.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return answerOf(res, u)
}

// answerOf reads the JSON of an answer, or the error that it tells.
func answerOf(res *http.Response, u string) (json.RawMessage, error) {
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<30))
	switch {
	case err != nil:
		return nil, err
	case res.StatusCode == http.StatusUnauthorized:
		return nil, ErrToken
	case res.StatusCode != http.StatusOK:
		var e struct{ Error string }
		if json.Unmarshal(b, &e) == nil && e.Error != "" {
			return nil, errors.New(e.Error)
		}
		return nil, fmt.Errorf("%s: %s", u, res.Status)
	case !json.Valid(b):
		return nil, fmt.Errorf("%s: the answer is no JSON", u)
	}
	return b, nil
}
