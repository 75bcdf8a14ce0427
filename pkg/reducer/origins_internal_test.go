package reducer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/moorebus/moorebus/pkg/events"
)

// TestOwnStateIsAmongTheOrigins: the short answer is never wider than the list.
func TestOwnStateIsAmongTheOrigins(t *testing.T) {
	codec, table := events.DefaultCodec(), DefaultTable()
	for _, typ := range events.Types() {
		p := payloadOf(t, codec, typ)
		for _, state := range table.States() {
			if ownState(p) {
				require.Contains(t, Origins(table, &Memory{State: state}, p), state, "%s in %s", typ, state)
			}
		}
	}
}

// payloadOf is an empty payload of a type.
func payloadOf(t *testing.T, codec *events.Codec, typ events.Type) events.Payload {
	t.Helper()
	const id = "01932c07-89a1-7cde-8f01-23456789abcd"
	e, err := codec.Decode([]byte(`{"specversion":"1.0","id":"` + id + `","type":"` + string(typ) + `","source":"s","subject":"` + id +
		`","time":"2026-03-04T05:06:07Z","datacontenttype":"application/json","dataschema":"moorebus/` + string(typ) +
		`/1","n":1,"from":"idle","to":"idle","step":0,"data":{}}`))
	require.NoError(t, err)
	return e.Data
}

// TestExitsAreTheRows: the table that is worked out says what the rows say.
func TestExitsAreTheRows(t *testing.T) {
	table := DefaultTable()
	for _, typ := range append(events.Types(), "Unknown") {
		for _, state := range append(table.States(), "unknown") {
			to, ok := table.next(state, typ)
			gotTo, gotOK := table.Next(state, typ)
			require.Equal(t, []any{to, ok}, []any{gotTo, gotOK}, "%s in %s", typ, state)
			require.Equal(t, table.transition(state, typ), table.Transition(state, typ), "%s in %s", typ, state)
		}
	}
}
