package events_test

import (
	"encoding/json"
	"testing"

	"github.com/moorebus/moorebus/pkg/events"
	"github.com/stretchr/testify/require"
)

func TestLabelsAreTexts(t *testing.T) {
	for body, says := range map[string]string{
		`["env"]`:    `want an object of texts, such as {"team": "search"}, not ["env"]`,
		`{"env":1}`:  `the value of "env" is not text`,
		`{"env":{}}`: `the value of "env" is not text`,
		`{"x":null}`: `the value of "x" is not text`,
	} {
		var l events.Labels
		require.EqualError(t, json.Unmarshal([]byte(body), &l), says)
	}
}
