package natsbus

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The server's error codes that mean something to a journal.
const (
	codeAccountFull       = 10002
	codeNoPeers           = 10005
	codeConsumerNotFound  = 10014
	codeNoResources       = 10023
	codeJetStreamOff      = 10076
	codeStoreFailed       = 10077
	codeJetStreamOffHere  = 10039
	codeNoStorage         = 10047
	codeMessageTooLarge   = 10054
	codeStreamNotFound    = 10059
	codeWrongLastSequence = 10071
	codeHeaderTooLarge    = 10097
	codeWrongLastConstant = 10164
	codePurgeFailed       = 10110
	codeBatchIncomplete   = 10176
	codeBatchTooLarge     = 10199
	codeBatchDuplicate    = 10201
	codeBatchesInFlight   = 10210
)

const initCommand = "moorebus init"

// apiError is an error as the server answers it.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("%s (code %d)", e.Description, e.ErrCode)
}

// retryable reports whether the server stored nothing and may take the same
// message a moment later. Storage that is full stays so for longer than that.
func (e *apiError) retryable() bool {
	if e.ErrCode == codeNoResources || e.ErrCode == codeNoStorage || e.limited() {
		return false
	}
	return e.ErrCode == codeBatchesInFlight || e.ErrCode == codeBatchIncomplete || e.Code == 503
}

// limited reports whether the stream is at one of its own limits. The server has
// one code for whatever its storage answers, and tells these by their words alone.
func (e *apiError) limited() bool {
	return e.ErrCode == codeStoreFailed && (e.Description == "maximum bytes exceeded" || e.Description == "maximum messages exceeded")
}

// deniedError carries the subject that the connection may not publish on.
type deniedError struct{ subject string }

func (e *deniedError) Error() string {
	return fmt.Sprintf("publish on %q is not permitted by the bus for this user", e.subject)
}

func (e *deniedError) Unwrap() error { return journal.ErrDenied }

// deafError carries the subject on which the connection may not hear answers.
type deafError struct{ inbox string }

func (e *deafError) Error() string {
	return fmt.Sprintf("answers on %q are not permitted by the bus for this user: set NATS_INBOX_PREFIX to the user's own prefix", e.inbox)
}

func (e *deafError) Unwrap() error { return journal.ErrDenied }

// classify gives whatever nats.go or the server answered the meaning that the
// port has for it. It is the only place that does. An error that it does not
// know stays as it is.
func classify(err error) error {
	if err == nil {
		return nil
	}
	var denied *deniedError
	if errors.As(err, &denied) {
		return denied
	}
	var deaf *deafError
	if errors.As(err, &deaf) {
		return deaf
	}
	if code, ok := errorCode(err); ok {
		return classifyCode(code, err)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return join(journal.ErrTooLarge, err)
	case errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return join(journal.ErrDenied, err)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return notReady(err)
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrMsgNotFound):
		return join(journal.ErrNotFound, err)
	}
	return err
}

func classifyCode(code int, err error) error {
	switch code {
	case codeWrongLastSequence, codeWrongLastConstant, codeBatchDuplicate:
		return join(journal.ErrConflict, err)
	case codeMessageTooLarge, codeHeaderTooLarge, codeBatchTooLarge:
		return join(journal.ErrTooLarge, err)
	case codeNoResources, codeNoStorage, codeStoreFailed, codeAccountFull:
		return join(journal.ErrFull, err)
	case codePurgeFailed:
		return join(journal.ErrPurgeDenied, err)
	case codeStreamNotFound, codeConsumerNotFound:
		return notReady(err)
	case codeJetStreamOff, codeJetStreamOffHere:
		return fmt.Errorf("%w: the server has no JetStream for this account, start it with -js: %w", journal.ErrNotReady, err)
	}
	return err
}

func errorCode(err error) (int, bool) {
	var own *apiError
	if errors.As(err, &own) {
		return own.ErrCode, true
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return int(api.ErrorCode), true
	}
	return 0, false
}

// inDoubt classifies what went wrong after an append was sent. Only an answer of
// the server, or a refusal before sending, says that nothing was stored.
func inDoubt(err error) error {
	known := classify(err)
	for _, sure := range [...]error{journal.ErrConflict, journal.ErrTooLarge, journal.ErrDenied, journal.ErrNotReady, journal.ErrFull, journal.ErrInDoubt} {
		if errors.Is(known, sure) {
			return known
		}
	}
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrInvalidConnection) {
		return join(journal.ErrInDoubt, err)
	}
	var api *apiError
	if errors.As(err, &api) && !api.retryable() {
		return err
	}
	return join(journal.ErrInDoubt, err)
}

func notReady(err error) error {
	return fmt.Errorf("%w: run `%s`: %w", journal.ErrNotReady, initCommand, err)
}

func join(meaning, cause error) error {
	return fmt.Errorf("%w: %w", meaning, cause)
}

// isAway reports whether an error may pass by itself: the bus does not answer.
func isAway(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrConnectionReconnecting) || errors.Is(err, context.DeadlineExceeded)
}
