package cnsface

import (
	cnstypes "github.com/vmware/govmomi/cns/types"
	"github.com/vmware/govmomi/vim25/xml"
)

// blockDetails are the backing details of a volume with their type on the
// wire. A real vCenter sends it and drivers depend on it; govmomi's field for
// it lacks the tag, so that a plain value would arrive as the base type.
type blockDetails struct {
	*cnstypes.CnsBlockBackingDetails
}

// MarshalXML implements govmomi's xml.Marshaler.
func (d blockDetails) MarshalXML(e *xml.Encoder, start xml.StartElement) error {
	start.Attr = append(start.Attr, xml.Attr{Name: xml.Name{Local: "xsi:type"}, Value: "CnsBlockBackingDetails"})
	return e.EncodeElement(d.CnsBlockBackingDetails, start)
}
