package vcenter

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"

	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"
)

var vimType = types.TypeFunc()

// typeFunc finds the Go type of an element in a namespace (vim25, vsan, pbm,
// vslm), with the types of vim25 as the fallback.
func typeFunc(namespace string) func(string) (reflect.Type, bool) {
	find := func(name string) (reflect.Type, bool) {
		if t, ok := vimType(name); ok {
			return t, true
		}
		// Go's decoder leaves prefixes in xsi:type values.
		if _, local, ok := strings.Cut(name, ":"); ok {
			return vimType(local)
		}
		return nil, false
	}
	return func(name string) (reflect.Type, bool) {
		if namespace != vim25.Namespace {
			if t, ok := find(namespace + ":" + name); ok {
				return t, true
			}
		}
		return find(name)
	}
}

type envelope struct {
	XMLName xml.Name `xml:"soapenv:Envelope"`
	Enc     string   `xml:"xmlns:soapenc,attr"`
	Env     string   `xml:"xmlns:soapenv,attr"`
	XSD     string   `xml:"xmlns:xsd,attr"`
	XSI     string   `xml:"xmlns:xsi,attr"`
	Body    any      `xml:"soapenv:Body"`
}

// result encodes the Res field of a method body under its response name.
type result struct {
	namespace string
	body      soap.HasFault
}

func (r result) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	body := reflect.ValueOf(r.body).Elem()
	res := body.FieldByName("Res")
	if !res.IsValid() || res.IsNil() {
		return fmt.Errorf("%T has neither a result nor a fault", r.body)
	}
	name := xml.Name{Space: "urn:" + r.namespace, Local: res.Elem().Type().Name()}
	info, err := xml.GetTypeInfo(body.Type())
	if err != nil {
		return err
	}
	if f, ok := info.Fields["Res"]; ok {
		if f.Name != "" {
			name.Local = f.Name
		}
		if f.Xmlns != "" {
			name.Space = f.Xmlns
		}
	}
	if err := e.EncodeToken(start); err != nil {
		return err
	}
	if err := e.EncodeElement(res.Interface(), xml.StartElement{Name: name}); err != nil {
		return err
	}
	return e.EncodeToken(start.End())
}

type faultBody struct {
	Fault *faultElement
}

type faultElement struct {
	XMLName xml.Name    `xml:"soapenv:Fault"`
	Code    string      `xml:"faultcode"`
	String  string      `xml:"faultstring"`
	Detail  faultDetail `xml:"detail"`
}

type faultDetail struct {
	Fault typedFault
}

// typedFault encodes a fault as an element named after its type.
type typedFault struct{ fault any }

func (t typedFault) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	if t.fault == nil {
		return nil
	}
	kind := reflect.Indirect(reflect.ValueOf(t.fault)).Type().Name()
	start.Name.Local = kind + "Fault"
	start.Attr = append(start.Attr,
		xml.Attr{Name: xml.Name{Local: "xmlns"}, Value: "urn:" + vim25.Namespace},
		xml.Attr{Name: xml.Name{Local: "xsi:type"}, Value: kind})
	return e.EncodeElement(t.fault, start)
}

// encode renders a reply.
func encode(namespace string, res soap.HasFault) ([]byte, bool, error) {
	var body any = result{namespace, res}
	f := res.Fault()
	if f != nil {
		f = localize(namespace, f)
		body = faultBody{&faultElement{Code: "ServerFaultCode", String: f.String, Detail: faultDetail{typedFault{f.Detail.Fault}}}}
	}
	var out bytes.Buffer
	out.WriteString(xml.Header)
	e := xml.NewEncoder(&out)
	err := e.Encode(envelope{
		Enc:  "http://schemas.xmlsoap.org/soap/encoding/",
		Env:  "http://schemas.xmlsoap.org/soap/envelope/",
		XSD:  "http://www.w3.org/2001/XMLSchema",
		XSI:  "http://www.w3.org/2001/XMLSchema-instance",
		Body: body,
	})
	return out.Bytes(), f == nil, err
}

// replyFault is a body that holds nothing but a fault.
type replyFault struct{ fault *soap.Fault }

func (r replyFault) Fault() *soap.Fault { return r.fault }
