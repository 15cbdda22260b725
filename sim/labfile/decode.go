package labfile

import (
	"regexp"

	"github.com/csilab/csilab/sim/yamlfile"
)

// decoder reads a file and checks what more than one field says.
type decoder struct{ *yamlfile.Decoder }

// Parse reads the content of a file. name is what errors call it. The error is
// Problems.
func Parse(name string, b []byte) (*Lab, error) {
	d := &decoder{yamlfile.NewDecoder(name, forms)}
	lab := &Lab{}
	d.Document(b, lab)
	if !d.Failed() {
		d.check(lab)
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return lab, nil
}

func (d *decoder) wrong(path, format string, args ...any) { d.Wrong(path, format, args...) }

var (
	nameForm    = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	versionForm = regexp.MustCompile(`^[0-9]{1,5}(\.[0-9]{1,5}){2,3}$`)
	userForm    = regexp.MustCompile(`^[^@\\\s]+@[^@\\\s]+$`)
)

// forms are the forms of texts, as expression and in words.
var forms = map[string]yamlfile.Form{
	// Labels of Kubernetes take no more, and zones become labels.
	"name":    {RE: nameForm, Words: "1 to 63 letters, digits, - _ and ., with a letter or digit at both ends"},
	"version": {RE: versionForm, Words: "three or four numbers with dots, e.g. 8.0.3"},
	"user":    {RE: userForm, Words: "name@domain"},

	"object":   {RE: objectForm, Words: "letters, digits, _ and, after the first, - and ."},
	"position": {RE: positionForm, Words: "node:slot:port with nodes 0 to 7, slots 0 to 9, ports 1 to 4, e.g. 0:2:1"},
	"iqn":      {RE: iqnForm, Words: "an iSCSI name, e.g. iqn.1994-05.com.redhat:node-1"},
	"wwpn":     {RE: wwpnForm, Words: "16 hex digits"},
}

// Schema is the format as JSON Schema (draft 2020-12), for editors. What it
// can't say, such as names that must exist, Parse checks.
func Schema() []byte {
	return yamlfile.Schema(Lab{}, "csilab lab.yaml, "+APIVersion, forms)
}

// Markdown is a table of the fields of each type, for docs/lab-yaml.md.
func Markdown() string { return yamlfile.Markdown(Lab{}) }
