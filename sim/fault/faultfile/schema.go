package faultfile

import (
	"github.com/csilab/csilab/sim/fault"
	"github.com/csilab/csilab/sim/yamlfile"
)

// Schema is the format as JSON Schema (draft 2020-12), for editors. What it
// can't say, such as operations that a hop must have, Parse checks.
func Schema() []byte { return yamlfile.Schema(File{}, "csilab fault plan, "+APIVersion, nil) }

// ValueWords implements yamlfile.Worded.
func (Do) ValueWords() string { return "kind, or kind and parameters" }

// JSONSchema implements yamlfile.Schemed: a kind's name, or a mapping of one to
// its parameters.
func (Do) JSONSchema(forms map[string]yamlfile.Form) map[string]any {
	var plain []string
	var named []any
	for _, k := range fault.Kinds() {
		if k.Mutants {
			continue
		}
		params := map[string]any{"type": []string{"object", "null"}, "maxProperties": 0}
		needs := false
		if k.Params != nil {
			params = yamlfile.SchemaOf(k.Params, forms)
			_, needs = params["required"]
		}
		params["description"] = k.Doc
		if !needs {
			plain = append(plain, k.Name)
		}
		named = append(named, map[string]any{"type": "object", "additionalProperties": false, "required": []string{k.Name},
			"properties": map[string]any{k.Name: params}})
	}
	return map[string]any{"anyOf": append([]any{map[string]any{"enum": plain}}, named...)}
}
