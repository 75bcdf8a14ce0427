package requests

import (
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// Transitions is the transition table that the gateway's runs follow.
type Transitions struct {
	Hash     string        `json:"hash"`
	Initial  events.State  `json:"initial"`
	States   []tableState  `json:"states"`
	Rows     []tableRow    `json:"rows"`
	StayRows []events.Type `json:"stay" jsonschema:"The events that leave a run in its state."`
}

type tableState struct {
	State    events.State `json:"state"`
	Terminal bool         `json:"terminal,omitempty"`
}

type tableRow struct {
	From  events.State `json:"from"`
	Event events.Type  `json:"event"`
	To    events.State `json:"to"`
}

func transitionsOf(t *reducer.Table) Transitions {
	answer := Transitions{Hash: t.Hash(), Initial: t.Initial(), StayRows: t.Spec().Stay}
	for _, state := range t.States() {
		answer.States = append(answer.States, tableState{state, t.Terminal(state)})
	}
	for _, row := range t.Spec().Rows {
		answer.Rows = append(answer.Rows, tableRow{row.From, row.Event, row.To})
	}
	return answer
}
