package api

import (
	"context"
	"errors"
	"fmt"

	"github.com/moorebus/moorebus/internal/ports"
	"github.com/moorebus/moorebus/pkg/journal"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The server's error codes that mean something to a journal.
const (
	CodeAccountFull       = 10002
	CodeNoPeers           = 10005
	CodeConsumerNotFound  = 10014
	CodeNoResources       = 10023
	CodeJetStreamOff      = 10076
	CodeStoreFailed       = 10077
	CodeJetStreamOffHere  = 10039
	CodeNoStorage         = 10047
	CodeMessageTooLarge   = 10054
	CodeStreamNotFound    = 10059
	CodeWrongLastSequence = 10071
	CodeHeaderTooLarge    = 10097
	CodeWrongLastConstant = 10164
	CodePurgeFailed       = 10110
	CodeNoMessage         = 10037
	CodeOtherStream       = 10060
	CodeBatchIncomplete   = 10176
	CodeBatchTooLarge     = 10199
	CodeBatchDuplicate    = 10201
	CodeBatchesInFlight   = 10210
)

// InitCommand makes what is missing.
const InitCommand = "moorebus init"

// Error is an error as the server answers it.
type Error struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s (code %d)", e.Description, e.ErrCode)
}

// Retryable reports whether the server stored nothing and may take the same
// message a moment later. Storage that is full stays so for longer than that.
func (e *Error) Retryable() bool {
	if e.ErrCode == CodeNoResources || e.ErrCode == CodeNoStorage || e.limited() {
		return false
	}
	return e.ErrCode == CodeBatchesInFlight || e.ErrCode == CodeBatchIncomplete || e.Code == 503
}

// limited reports whether the stream is at one of its own limits. The server has
// one code for all errors of its storage, which differ only in their text.
func (e *Error) limited() bool {
	return e.ErrCode == CodeStoreFailed && (e.Description == "maximum bytes exceeded" || e.Description == "maximum messages exceeded")
}

// DeniedError carries the subject that the connection may not publish on.
type DeniedError struct{ Subject string }

func (e *DeniedError) Error() string {
	return fmt.Sprintf("publish on %q is not permitted by the bus for this user", e.Subject)
}

func (e *DeniedError) Unwrap() error { return journal.ErrDenied }

// deafError carries the subject on which the connection may not hear answers.
type deafError struct{ inbox string }

func (e *deafError) Error() string {
	return fmt.Sprintf("answers on %q are not permitted by the bus for this user: set NATS_INBOX_PREFIX to the user's own prefix", e.inbox)
}

func (e *deafError) Unwrap() error { return journal.ErrDenied }

// Classify gives whatever nats.go or the server answered the meaning that the
// port has for it. It is the only place that does. An error that it does not
// know stays as it is.
func Classify(err error) error {
	if err == nil {
		return nil
	}
	var denied *DeniedError
	if errors.As(err, &denied) {
		return denied
	}
	var deaf *deafError
	if errors.As(err, &deaf) {
		return deaf
	}
	if code, ok := Code(err); ok {
		return classifyCode(code, err)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return Join(journal.ErrTooLarge, err)
	case errors.Is(err, nats.ErrPermissionViolation), errors.Is(err, nats.ErrAuthorization):
		return Join(journal.ErrDenied, err)
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerNotFound):
		return notReady(err)
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrMsgNotFound):
		return Join(journal.ErrNotFound, err)
	}
	return err
}

func classifyCode(code int, err error) error {
	switch code {
	case CodeWrongLastSequence, CodeWrongLastConstant, CodeBatchDuplicate:
		return Join(journal.ErrConflict, err)
	case CodeMessageTooLarge, CodeHeaderTooLarge, CodeBatchTooLarge:
		return Join(journal.ErrTooLarge, err)
	case CodeNoResources, CodeNoStorage, CodeStoreFailed, CodeAccountFull:
		return Join(journal.ErrFull, err)
	case CodePurgeFailed:
		return Join(ports.ErrPurgeDenied, err)
	case CodeStreamNotFound, CodeConsumerNotFound:
		return notReady(err)
	case CodeJetStreamOff, CodeJetStreamOffHere:
		return fmt.Errorf("%w: the server has no JetStream for this account, start it with -js: %w", journal.ErrNotReady, err)
	}
	return err
}

// Code returns the server's code of an error, and whether it has one.
func Code(err error) (int, bool) {
	var own *Error
	if errors.As(err, &own) {
		return own.ErrCode, true
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return int(api.ErrorCode), true
	}
	return 0, false
}

// UnknownOutcome classifies what went wrong after an append was sent. Only an answer of
// the server, or a refusal before sending, says that nothing was stored.
func UnknownOutcome(err error) error {
	known := Classify(err)
	for _, sure := range [...]error{journal.ErrConflict, journal.ErrTooLarge, journal.ErrDenied, journal.ErrNotReady, journal.ErrFull, journal.ErrUnknownOutcome} {
		if errors.Is(known, sure) {
			return known
		}
	}
	if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrInvalidConnection) {
		return Join(journal.ErrUnknownOutcome, err)
	}
	var api *Error
	if errors.As(err, &api) && !api.Retryable() {
		return err
	}
	return Join(journal.ErrUnknownOutcome, err)
}

func notReady(err error) error {
	return fmt.Errorf("%w: run `%s`: %w", journal.ErrNotReady, InitCommand, err)
}

// Join gives an error a meaning.
func Join(meaning, cause error) error {
	return fmt.Errorf("%w: %w", meaning, cause)
}

// IsAway reports whether an error may pass by itself: the bus does not answer.
func IsAway(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrDisconnected) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrConnectionReconnecting) || errors.Is(err, context.DeadlineExceeded)
}
