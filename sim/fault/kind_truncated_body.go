package fault

// TruncatedBody sends the reply's body up to a share of keep percent, then
// closes the connection; as a document, it sends that share as if it were all.
func TruncatedBody(keep int, document bool) Action {
	return bodyAction{Body{Cut: true, Keep: keep, Document: document}}
}

// TruncatedBodyParams are those of kind truncated-body.
type TruncatedBodyParams struct {
	Keep *int   `yaml:"keep" min:"0" max:"99" default:"50" doc:"how much of the body comes, in percent"`
	End  string `yaml:"end" enum:"connection|document" default:"connection" doc:"how it ends: the connection is closed in the middle, or the document ends as if it were whole"`
}

func init() {
	Register(Kind{
		Name:   "truncated-body",
		Doc:    "The operation is done, and only a part of its reply arrives.",
		Phases: []Phase{After},
		Hops:   documents,
		Fits:   notOfTask,
		Params: TruncatedBodyParams{},
		New: Make(func(_ Rule, p TruncatedBodyParams) (Action, error) {
			keep := 50
			if p.Keep != nil {
				keep = *p.Keep
			}
			return TruncatedBody(keep, p.End == "document"), nil
		}),
		Samples: func(Call) []any { return []any{&TruncatedBodyParams{}, &TruncatedBodyParams{End: "document"}} },
		Example: `name: half of the session's key
hop: wsapi
op: POST /credentials
nth: 1
do:
  truncated-body: {end: document}`,
	})
}
