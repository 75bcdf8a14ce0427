package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/refusal"
)

func writeError(w http.ResponseWriter, e *refusal.Error) {
	setRetryAfter(w, e)
	_ = route.WriteJSON(w, route.StatusOf(e.Kind), e) // a client that is gone needs no error
}

func setRetryAfter(w http.ResponseWriter, e *refusal.Error) {
	after := e.RetryAfter
	if after <= 0 && e.Kind == refusal.Unavailable {
		after = time.Second
	}
	if after > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10))
	}
}
