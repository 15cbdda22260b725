package vcenter

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"path"
	"strings"
)

// tokenService is the STS. vcsim's issues a token to anybody; this one checks a
// user name and password where the request has them. Signatures of requests
// that come with a certificate instead are not checked.
type tokenService struct {
	v      *VCenter
	issuer http.Handler
}

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if path.Base(strings.Trim(r.Header.Get("SOAPAction"), `"`)) == "Issue" {
		user, password, given, err := credentials(body)
		if err != nil || given && !s.v.sessions.valid(user, password) {
			w.Header().Set("Content-Type", "text/xml; charset=utf-8")
			w.WriteHeader(http.StatusInternalServerError)
			// Unverified: the exact text.
			_, _ = io.WriteString(w, `<S:Envelope xmlns:S="http://schemas.xmlsoap.org/soap/envelope/"><S:Body><S:Fault xmlns:ns0="http://docs.oasis-open.org/ws-sx/ws-trust/200512/"><faultcode>ns0:FailedAuthentication</faultcode><faultstring>Invalid credentials</faultstring></S:Fault></S:Body></S:Envelope>`)
			return
		}
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.issuer.ServeHTTP(w, r)
}

// credentials finds the UsernameToken of a request.
func credentials(body []byte) (user, password string, given bool, err error) {
	d := xml.NewDecoder(bytes.NewReader(body))
	for {
		t, err := d.Token()
		if errors.Is(err, io.EOF) {
			return user, password, given, nil
		}
		if err != nil {
			return "", "", true, err
		}
		e, ok := t.(xml.StartElement)
		if !ok || e.Name.Local != "UsernameToken" {
			continue
		}
		var token struct{ Username, Password string }
		if err := d.DecodeElement(&token, &e); err != nil {
			return "", "", true, err
		}
		user, password, given = token.Username, token.Password, true
	}
}
