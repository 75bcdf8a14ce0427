package events

import (
	"fmt"
)

// What the observer decides after results, and what reflection and paging come to.
const (
	TypeContinue        Type = "Continue"
	TypeNeedsReflection Type = "NeedsReflection"
	TypeNeedsPaging     Type = "NeedsPaging"
	TypeReflectDone     Type = "ReflectDone"
	TypePageDone        Type = "PageDone"
)

var observingRows = []row{
	define("The results are committed and the model is asked again.", func(*Continue) string { return "" }),
	define("The history is compressed first: after a number of steps, or because a request to the model was too long.", func(*NeedsReflection) string { return "" }),
	define("The results are committed and working memory is paged out first.", func(*NeedsPaging) string { return "" }),
	define("A summary replaces the history.", func(p *ReflectDone) string { return p.Summary + p.Failed }),
	define("Entries of working memory were moved to storage.", func(p *PageDone) string {
		return fmt.Sprintf("%d entries to storage, %d dropped", len(p.Paged), len(p.Dropped))
	}),
}

// Continue commits the results and goes back to planning.
type Continue struct{}

func (*Continue) eventType() Type { return TypeContinue }

// NeedsReflection has the history compressed. Out of Observing it commits the results; out
// of Planning a request was too long for the model.
type NeedsReflection struct{}

func (*NeedsReflection) eventType() Type { return TypeNeedsReflection }

// NeedsPaging commits the results and shrinks working memory first.
type NeedsPaging struct{}

func (*NeedsPaging) eventType() Type { return TypeNeedsPaging }

// ReflectDone ends a reflection. An empty Summary keeps the history; Failed
// then says why.
type ReflectDone struct {
	// MessageID names the reply of a client model.
	MessageID string `json:"message_id,omitempty"`
	Summary   string `json:"summary,omitempty"`
	Failed    string `json:"failed,omitempty"`
	Model     string `json:"model,omitempty"`
	Usage     *Usage `json:"usage,omitempty"`
}

func (*ReflectDone) eventType() Type { return TypeReflectDone }

// PageDone ends paging: Paged went to storage, Dropped had to go regardless of
// its priority to get below the hard limit.
type PageDone struct {
	Paged   []Entry `json:"paged,omitempty"`
	Dropped []Entry `json:"dropped,omitempty"`
}

func (*PageDone) eventType() Type { return TypePageDone }
