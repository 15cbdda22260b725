package vcenter

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// tokenService is the STS. It issues SAML tokens for users with a password and
// knows which it has issued: log-ins by token take no others. Requests that
// come with a certificate instead of a password get a token of the vCenter's
// first user: neither certificates nor signatures are checked.
type tokenService struct {
	v *VCenter

	mu     sync.Mutex
	nth    int
	issued map[string]token // by the id of the assertion
}

type token struct {
	account
	expires time.Time
}

func newTokenService(v *VCenter) *tokenService {
	return &tokenService{v: v, issued: map[string]token{}}
}

// maxTokens is how many tokens are known; beyond it expired ones go.
const maxTokens = 10_000

// Lifetimes of tokens, as Single Sign-On has them by default.
const (
	bearerLifetime = 5 * time.Minute
	holderLifetime = 30 * 24 * time.Hour
)

// issue makes a token and returns its id.
func (s *tokenService) issue(a account, now, expires time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.issued) >= maxTokens {
		for id, t := range s.issued {
			if now.After(t.expires) {
				delete(s.issued, id)
			}
		}
	}
	s.nth++
	id := "_" + uuidOf(s.v.cfg.Seed, "saml", fmt.Sprintf("%d|%d", s.v.epoch, s.nth))
	s.issued[id] = token{a, expires}
	return id
}

// holder says whose a token is that is valid now. The user must still exist;
// a lock does not touch tokens that were issued before it.
func (s *tokenService) holder(id string, now time.Time) (account, bool) {
	s.mu.Lock()
	t, ok := s.issued[id]
	s.mu.Unlock()
	if !ok || now.After(t.expires) {
		return account{}, false
	}
	return s.v.accounts.find(t.who)
}

const wsTrust = "http://docs.oasis-open.org/ws-sx/ws-trust/200512"

func (s *tokenService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/xml; charset=utf-8")
	refuse := func(text string) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, `<S:Envelope xmlns:S="http://schemas.xmlsoap.org/soap/envelope/"><S:Body><S:Fault xmlns:ns0="%s/"><faultcode>ns0:FailedAuthentication</faultcode><faultstring>%s</faultstring></S:Fault></S:Body></S:Envelope>`, wsTrust, text)
	}
	req, err := parseTokenRequest(body)
	if err != nil {
		refuse("Invalid credentials")
		return
	}
	now := time.Now()
	var a account
	kind := path.Base(strings.Trim(r.Header.Get("SOAPAction"), `"`))
	switch {
	case kind == "Renew", kind == "Issue" && !req.password && req.assertion != "":
		var ok bool
		if a, ok = s.holder(req.assertion, now); !ok {
			refuse("Invalid credentials")
			return
		}
	case kind == "Issue" && req.password:
		a, err = s.v.accounts.check(req.user, req.secret, now)
		switch {
		case errors.Is(err, errLocked):
			refuse("User account is locked. Please contact your administrator.") // Unverified: the exact text
			return
		case errors.Is(err, errPasswordExpired):
			refuse("User password expired.") // Unverified: the exact text
			return
		case err != nil:
			refuse("Invalid credentials") // govmomi #2903
			return
		}
	case kind == "Issue" && req.certificate:
		var ok bool
		if a, ok = s.v.accounts.find(parsePrincipal(s.v.cfg.User)); !ok {
			refuse("Invalid credentials")
			return
		}
	case kind == "Issue":
		refuse("Invalid credentials")
		return
	default:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	life := bearerLifetime
	if req.certificate || req.assertion != "" {
		life = holderLifetime
	}
	if want := req.expires.Sub(now); !req.expires.IsZero() && want < life {
		life = want
	}
	expires := now.Add(life)
	id := s.issue(a, now, expires)
	const stamp = "2006-01-02T15:04:05.000Z"
	from, to := now.UTC().Format(stamp), expires.UTC().Format(stamp)
	var name bytes.Buffer
	_ = xml.EscapeText(&name, []byte(a.Name))
	assertion := fmt.Sprintf(`<saml2:Assertion xmlns:saml2="urn:oasis:names:tc:SAML:2.0:assertion" ID="%s" IssueInstant="%s" Version="2.0"><saml2:Issuer Format="urn:oasis:names:tc:SAML:2.0:nameid-format:entity">https://%s/websso/SAML2/Metadata/%s</saml2:Issuer><saml2:Subject><saml2:NameID Format="http://schemas.xmlsoap.org/claims/UPN">%s</saml2:NameID></saml2:Subject><saml2:Conditions NotBefore="%s" NotOnOrAfter="%s"></saml2:Conditions></saml2:Assertion>`,
		id, from, s.v.url.Host, a.who.Domain, name.String(), from, to)
	response := fmt.Sprintf(`<ns:RequestSecurityTokenResponse xmlns:ns="%[1]s"><ns:TokenType>urn:oasis:names:tc:SAML:2.0:assertion</ns:TokenType><ns:Lifetime><ns5:Created xmlns:ns5="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd">%[2]s</ns5:Created><ns5:Expires xmlns:ns5="http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd">%[3]s</ns5:Expires></ns:Lifetime><ns:RequestedSecurityToken>%[4]s</ns:RequestedSecurityToken></ns:RequestSecurityTokenResponse>`,
		wsTrust, from, to, assertion)
	if kind == "Issue" {
		response = fmt.Sprintf(`<ns:RequestSecurityTokenResponseCollection xmlns:ns="%s">%s</ns:RequestSecurityTokenResponseCollection>`, wsTrust, response)
	}
	_, _ = fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?><S:Envelope xmlns:S="http://schemas.xmlsoap.org/soap/envelope/"><S:Body>%s</S:Body></S:Envelope>`, response)
}

// tokenRequest is what matters of a RequestSecurityToken.
type tokenRequest struct {
	user, secret string
	password     bool // there was a UsernameToken
	certificate  bool // there was a certificate
	assertion    string
	expires      time.Time // wanted; zero where not said
}

// parseTokenRequest finds who asks: a UsernameToken, a certificate or a token.
func parseTokenRequest(body []byte) (t tokenRequest, err error) {
	d := xml.NewDecoder(bytes.NewReader(body))
	inLifetime := false
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return tokenRequest{}, err
		}
		if e, ok := tok.(xml.EndElement); ok && e.Name.Local == "Lifetime" {
			inLifetime = false
		}
		e, ok := tok.(xml.StartElement)
		if !ok {
			continue
		}
		switch e.Name.Local {
		case "UsernameToken":
			var u struct{ Username, Password string }
			if err := d.DecodeElement(&u, &e); err != nil {
				return tokenRequest{}, err
			}
			t.user, t.secret, t.password = u.Username, u.Password, true
		case "BinarySecurityToken":
			t.certificate = true
		case "Assertion":
			for _, a := range e.Attr {
				if a.Name.Local == "ID" {
					t.assertion = a.Value
				}
			}
			if err := d.Skip(); err != nil {
				return tokenRequest{}, err
			}
		case "Lifetime":
			inLifetime = true
		case "Expires":
			if !inLifetime {
				continue
			}
			var s string
			if err := d.DecodeElement(&s, &e); err != nil {
				return tokenRequest{}, err
			}
			if at, err := time.Parse(time.RFC3339, s); err == nil {
				t.expires = at
			}
		}
	}
}
