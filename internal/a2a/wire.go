package a2a

import (
	"encoding/json"
	"time"

	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/pkg/events"
)

// What follows is the protocol's data in its JSON form.

const (
	roleUser  = "ROLE_USER"
	roleAgent = "ROLE_AGENT"
)

type taskState string

const (
	submitted     taskState = "TASK_STATE_SUBMITTED"
	working       taskState = "TASK_STATE_WORKING"
	completed     taskState = "TASK_STATE_COMPLETED"
	failed        taskState = "TASK_STATE_FAILED"
	canceled      taskState = "TASK_STATE_CANCELED"
	inputRequired taskState = "TASK_STATE_INPUT_REQUIRED"
)

func (s taskState) terminal() bool { return s == completed || s == failed || s == canceled }

// part has exactly one of Text, Raw, URL and Data.
type part struct {
	Text      *string         `json:"text,omitempty"`
	Raw       route.Base64    `json:"raw,omitempty"`
	URL       string          `json:"url,omitempty"`
	Data      json.RawMessage `json:"data,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	// ref is where the object store has the file.
	ref *events.Ref
}

func textPart(text string) part { return part{Text: &text} }

type message struct {
	MessageID string          `json:"messageId"`
	ContextID string          `json:"contextId,omitempty"`
	TaskID    string          `json:"taskId,omitempty"`
	Role      string          `json:"role"`
	Parts     []part          `json:"parts"`
	Metadata  json.RawMessage `json:"metadata,omitempty"`
}

// labels returns the labels that the message's metadata has for the run that it starts.
func (m *message) labels() (events.Labels, error) {
	var metadata struct {
		Labels events.Labels `json:"labels"`
	}
	if len(m.Metadata) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(m.Metadata, &metadata); err != nil {
		return nil, badRequest("message.metadata: %s", err.Error())
	}
	return metadata.Labels, nil
}

type status struct {
	State     taskState `json:"state"`
	Message   *message  `json:"message,omitempty"`
	Timestamp string    `json:"timestamp,omitempty"`
}

type artifact struct {
	ArtifactID  string         `json:"artifactId"`
	Name        string         `json:"name,omitempty"`
	Description string         `json:"description,omitempty"`
	Parts       []part         `json:"parts"`
	Metadata    map[string]any `json:"metadata,omitempty"`
}

// task1 is a task.
type task1 struct {
	ID        string         `json:"id"`
	ContextID string         `json:"contextId"`
	Status    status         `json:"status"`
	Artifacts []artifact     `json:"artifacts,omitempty"`
	History   []message      `json:"history,omitempty"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

type statusUpdate struct {
	TaskID    string         `json:"taskId"`
	ContextID string         `json:"contextId"`
	Status    status         `json:"status"`
	Metadata  map[string]any `json:"metadata,omitempty"`
}

type artifactUpdate struct {
	TaskID    string   `json:"taskId"`
	ContextID string   `json:"contextId"`
	Artifact  artifact `json:"artifact"`
	Append    bool     `json:"append"`
	LastChunk bool     `json:"lastChunk"`
}

// update is one event of a stream. One of the fields is set.
type update struct {
	Task     *task1          `json:"task,omitempty"`
	Status   *statusUpdate   `json:"statusUpdate,omitempty"`
	Artifact *artifactUpdate `json:"artifactUpdate,omitempty"`
}

type sendRequest struct {
	Tenant        string        `json:"tenant,omitempty"`
	Message       *message      `json:"message"`
	Configuration configuration `json:"configuration,omitzero"`
}

type configuration struct {
	AcceptedOutputModes []string    `json:"acceptedOutputModes,omitempty"`
	Push                *pushConfig `json:"taskPushNotificationConfig,omitempty"`
	HistoryLength       *int        `json:"historyLength,omitempty"`
	ReturnImmediately   bool        `json:"returnImmediately,omitempty"`
}

type sendResponse struct {
	Task *task1 `json:"task"`
}

type taskList struct {
	Tasks         []task1 `json:"tasks"`
	NextPageToken string  `json:"nextPageToken"`
	PageSize      int     `json:"pageSize"`
	TotalSize     int     `json:"totalSize"`
}

type card struct {
	Name                string                     `json:"name"`
	Description         string                     `json:"description"`
	SupportedInterfaces []cardInterface            `json:"supportedInterfaces"`
	Version             string                     `json:"version"`
	Capabilities        capabilities               `json:"capabilities"`
	SecuritySchemes     map[string]securityScheme  `json:"securitySchemes,omitempty"`
	Security            []map[string]schemeOptions `json:"securityRequirements,omitempty"`
	DefaultInputModes   []string                   `json:"defaultInputModes"`
	DefaultOutputModes  []string                   `json:"defaultOutputModes"`
	Skills              []skill                    `json:"skills"`
}

type cardInterface struct {
	URL             string `json:"url"`
	ProtocolBinding string `json:"protocolBinding"`
	ProtocolVersion string `json:"protocolVersion"`
}

type capabilities struct {
	Streaming         bool `json:"streaming"`
	PushNotifications bool `json:"pushNotifications"`
	ExtendedAgentCard bool `json:"extendedAgentCard"`

	Extensions []extension `json:"extensions"`
}

type extension struct {
	URI         string `json:"uri"`
	Description string `json:"description"`
}

type securityScheme struct {
	HTTP httpScheme `json:"httpAuthSecurityScheme"`
}

type httpScheme struct {
	Description string `json:"description,omitempty"`
	Scheme      string `json:"scheme"`
}

type schemeOptions map[string]struct {
	List []string `json:"list"`
}

type skill struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Description string   `json:"description"`
	Tags        []string `json:"tags"`
}

// timestamp is a time as the protocol writes it.
func timestamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
