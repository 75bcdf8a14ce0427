package approval_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/internal/approval"
)

func TestDistinct(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"properties":{"n":{},"N":{},"amount":{},
		"sub":{"properties":{"k":true,"K":{}}},"list":{"items":{"properties":{"k":{},"K":{}}}},"pair":{"items":[{}]},"ref":{"$ref":"#/properties/sub"}}}`)
	for _, wrong := range []string{
		`{"amount":1,"AMOUNT":1000}`, `{"n":1,"N":2,"amount":1,"Amount":2}`, `{"x":[{"a":1,"A":2}]}`, `{"x":{"n":1,"N":2}}`,
		`{"sub":{"n":1,"N":2}}`, `{"sub":{"k":{"k":1,"K":2}}}`, `{"list":{"k":1,"K":2}}`, `{"list":[[{"k":1,"K":2}]]}`, `{"pair":[{"k":1,"K":2}]}`, `{"ref":{"k":1,"K":2}}`, `{"k":1,"K":2}`,
		"{\"\u212Aey\":1,\"key\":2}", `{"straße":1,"STRASSE":2,"ſ":1,"s":2}`,
	} {
		require.ErrorContains(t, approval.Distinct(schema, wrong), "upper and lower case", wrong)
	}
	for _, right := range []string{`{"amount":1}`, `{"n":1,"N":2}`, `{"sub":{"k":1,"K":2}}`, `{"list":[{"k":1,"K":2}]}`, `[]`, `{"a":{"b":1},"B":{"b":1}}`, ``, `{`, `{"a":1,"a":2}`} {
		require.NoError(t, approval.Distinct(schema, right), right)
	}
	require.Error(t, approval.Distinct(nil, `{"n":1,"N":2}`))
	require.Error(t, approval.Distinct(json.RawMessage(`{"properties":7}`), `{"n":1,"N":2}`))
}
