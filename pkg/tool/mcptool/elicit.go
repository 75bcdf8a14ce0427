package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/moorebus/moorebus/internal/callctx"
)

// inquiry is one request to the server, about which the server may ask a human.
type inquiry struct {
	server *server
	// ctx is that of the call; stop ends the request.
	ctx  context.Context
	stop context.CancelFunc

	mu sync.Mutex
	// open is why the request cannot continue: a question has no answer yet.
	open error
}

// inquiries are those of a session's requests in flight.
type inquiries struct {
	mu  sync.Mutex
	all []*inquiry
}

type inquiryKey struct{}

// inquire returns the context of a request about which the server may ask. end ends it and
// returns why the request could not continue, if a question is open.
func (s *session) inquire(ctx context.Context, server *server) (_ context.Context, end func() error) {
	q := &inquiry{server: server, ctx: ctx}
	ctx, q.stop = context.WithCancel(ctx)
	s.asking.mu.Lock()
	s.asking.all = append(s.asking.all, q)
	s.asking.mu.Unlock()
	return context.WithValue(ctx, inquiryKey{}, q), func() error {
		q.stop()
		s.asking.mu.Lock()
		s.asking.all = slices.DeleteFunc(s.asking.all, func(o *inquiry) bool { return o == q })
		s.asking.mu.Unlock()
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.open
	}
}

// only returns the inquiry of the only request in flight, else nil.
func (i *inquiries) only() *inquiry {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.all) != 1 {
		return nil
	}
	return i.all[0]
}

var errNotAsked = errors.New("no human is asked: it is unknown which call the question is about, or the question is not a form")

// elicited answers a server that asks a human. In the stateless protocol the question belongs
// to a request. In the older one it does not say to which, so it is put only if one request is
// in flight. A question without an answer ends the request: a human may take days, and no
// session lasts that long. The request is made again when there is an answer.
func (s *session) elicited(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	q, bound := ctx.Value(inquiryKey{}).(*inquiry)
	if !bound {
		q = s.asking.only()
	}
	if q == nil || req.Params.Mode != "" && req.Params.Mode != "form" {
		if bound {
			return nil, errNotAsked
		}
		return &mcp.ElicitResult{Action: "cancel"}, nil
	}
	content, err := q.answer(req.Params)
	if err == nil {
		return &mcp.ElicitResult{Action: "accept", Content: content}, nil
	}
	q.mu.Lock()
	q.open = err
	q.mu.Unlock()
	q.stop()
	if bound {
		return nil, err
	}
	return &mcp.ElicitResult{Action: "cancel"}, nil
}

// answer returns the content that a human gave.
func (q *inquiry) answer(p *mcp.ElicitParams) (content map[string]any, err error) {
	wanted, err := compact(p.RequestedSchema)
	if err != nil {
		return nil, err
	}
	var fields form
	if len(wanted) > 0 {
		if err := json.Unmarshal(wanted, &fields); err != nil {
			return nil, fmt.Errorf("the form of a question cannot be read: %w", err)
		}
	}
	question := fmt.Sprintf("The MCP server %s asks: %s", q.server.opts.Name, q.server.hide(q.server.conceal.Replace(p.Message+fields.help())))
	err = callctx.Ask(q.ctx, question, func(answer string) (err error) {
		content, err = fields.parse(answer)
		if err == nil {
			err = fields.check(content)
		}
		return err
	})
	return content, err
}

// form is what a server wants to know: an object of texts, numbers, truth values and choices.
type form struct {
	Properties map[string]field `json:"properties"`
	Required   []string         `json:"required"`
}

type field struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Enum        []any  `json:"enum"`
}

// help says how to answer.
func (f *form) help() string {
	switch names := slices.Sorted(maps.Keys(f.Properties)); len(names) {
	case 0:
		return " (any answer confirms)"
	case 1:
		return " (" + f.Properties[names[0]].line(names[0]) + ")"
	default:
		var b strings.Builder
		b.WriteString("\nAnswer with a JSON object of")
		for _, name := range names {
			b.WriteString("\n- " + f.Properties[name].line(name))
			if !slices.Contains(f.Required, name) {
				b.WriteString(" (optional)")
			}
		}
		return b.String()
	}
}

// line describes a field.
func (f field) line(name string) string {
	line := name
	if f.Type != "" {
		line += ": " + f.Type
	}
	if len(f.Enum) > 0 {
		line += fmt.Sprintf(", one of %v", f.Enum)
	}
	for _, more := range []string{f.Title, f.Description} {
		if more != "" && more != name {
			line += ", " + more
		}
	}
	return line
}

// parse makes content of an answer: a JSON object, or the value of the only field.
func (f *form) parse(answer string) (map[string]any, error) {
	answer = strings.TrimSpace(answer)
	if strings.HasPrefix(answer, "{") {
		content := map[string]any{}
		if err := json.Unmarshal([]byte(answer), &content); err != nil {
			return nil, fmt.Errorf("it is no JSON object: %w", err)
		}
		return content, nil
	}
	switch len(f.Properties) {
	case 0:
		return map[string]any{}, nil
	case 1:
		for name, field := range f.Properties {
			value, err := field.value(answer)
			return map[string]any{name: value}, err
		}
	}
	return nil, errors.New("the question has several fields: answer with a JSON object")
}

// check returns what is missing or not one of the choices. The server checks the rest.
func (f *form) check(content map[string]any) error {
	for _, name := range f.Required {
		if _, given := content[name]; !given {
			return fmt.Errorf("%s is missing", name)
		}
	}
	for name, value := range content {
		field, known := f.Properties[name]
		switch _, text := value.(string); {
		case !known:
			return fmt.Errorf("there is no field %s", name)
		case len(field.Enum) > 0 && !slices.ContainsFunc(field.Enum, func(choice any) bool { return reflect.DeepEqual(choice, value) }):
			return fmt.Errorf("%s is not one of %v", name, field.Enum)
		case field.Type == "string" && !text:
			return fmt.Errorf("%s is not a text", name)
		}
	}
	return nil
}

// value is an answer in the type of the field.
func (f field) value(answer string) (any, error) {
	switch f.Type {
	case "boolean":
		switch strings.ToLower(answer) {
		case "true", "yes", "y":
			return true, nil
		case "false", "no", "n":
			return false, nil
		}
		return nil, errors.New("answer yes or no")
	case "number", "integer":
		number, err := strconv.ParseFloat(answer, 64)
		if err != nil {
			return nil, errors.New("answer with a number")
		}
		return number, nil
	}
	return answer, nil
}
