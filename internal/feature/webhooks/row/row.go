// Package row is the row of webhooks.
package row

import (
	"github.com/moorebus/moorebus/internal/feature/row"
	"github.com/moorebus/moorebus/internal/kv"
	"github.com/moorebus/moorebus/internal/meter"
	"github.com/moorebus/moorebus/internal/refusal"
)

// Bucket has the webhooks, and how their delivery stands.
var Bucket = kv.Bucket{Name: "webhooks", About: "webhooks, with their secrets", Keys: ">", Marks: true}

// Lease is what the gateway has that delivers.
const Lease = "webhooks"

// The metrics.
var (
	Tries = &meter.Metric{
		Kind: meter.Counter, By: meter.Gateway, Name: "moorebus_webhook_attempts_total", Labels: []meter.Label{meter.Outcome},
		Help: "Attempts to deliver notices: delivered; failed, which is tried again; given_up, the last of them; closed, by a receiver that wants no more.",
	}
	Waiting = &meter.Metric{
		Kind: meter.Gauge, By: meter.Gateway, Name: "moorebus_webhook_waiting", Help: "Notices that wait for their delivery, in the gateway that delivers.",
	}
)

// The error codes.
const (
	CodeBadWebhook      = "bad_webhook"
	CodeWebhookNotFound = "webhook_not_found"
)

// Row returns the row.
func Row() row.Row {
	return row.Row{
		Name: "webhooks", Buckets: []kv.Bucket{Bucket}, Leases: []string{Lease}, Metrics: []*meter.Metric{Tries, Waiting},
		Codes: map[string]refusal.Meaning{
			CodeBadWebhook:      {Kinds: []refusal.Kind{refusal.Invalid}, Text: "The webhook's name, URL, kinds, form, agents or secret is malformed."},
			CodeWebhookNotFound: {Kinds: []refusal.Kind{refusal.NotFound}, Text: "The namespace has no webhook of this name."},
		},
	}
}
