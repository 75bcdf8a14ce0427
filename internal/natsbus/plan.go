package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/moorebus/moorebus/internal/natsbus/api"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Change is something that [Init] would do.
type Change struct {
	// Action is create or update.
	Action string `json:"action"`
	// Thing is what it would do it to, such as `stream MOORE_0` or `consumer planning of MOORE_0`.
	Thing string `json:"thing"`
	// Settings are those that an update changes, each as `name: old → new`, sorted.
	Settings []string `json:"settings,omitempty"`
}

// Plan returns what [Init] would do with the same options, in its order, and does nothing. It fails
// as Init would, but for what only a server can refuse, such as a limit that it cannot reserve.
func Plan(ctx context.Context, conn *nats.Conn, o InitOptions) ([]Change, error) {
	r := &rehearsal{conn: conn, prefix: conn.NewRespInbox() + ".", streams: map[string]json.RawMessage{}}
	sub, err := conn.Subscribe(r.prefix+">", r.answer)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", api.Classify(err))
	}
	defer func() { _ = sub.Unsubscribe() }()
	o.Alone = false
	o.Resynced = nil
	err = o.guarded(ctx, conn, func(ctx context.Context) error {
		js, err := jetstream.NewWithAPIPrefix(conn, strings.TrimSuffix(r.prefix, "."), jetstream.WithDefaultTimeout(initTimeout))
		if err != nil {
			return err
		}
		return o.run(ctx, js)
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changes, err
}

// rehearsal answers requests to JetStream in the place of a server: it passes on those that read, and
// answers those that create and update as if that was done.
type rehearsal struct {
	conn   *nats.Conn
	prefix string

	mu      sync.Mutex
	changes []Change
	// streams are the configurations of streams that would be made.
	streams map[string]json.RawMessage
}

// answer is called for one request at a time.
func (r *rehearsal) answer(msg *nats.Msg) {
	subject := strings.TrimPrefix(msg.Subject, r.prefix)
	words := strings.SplitN(subject, ".", 5)
	verb := strings.Join(words[:min(2, len(words))], ".")
	var out any
	switch verb {
	case "STREAM.UPDATE", "STREAM.CREATE":
		out = r.putStream(verb == "STREAM.CREATE", words[2], msg.Data)
	case "CONSUMER.CREATE":
		out = r.putConsumer(words[2], words[3], msg.Data)
	case "INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO", "CONSUMER.INFO", "CONSUMER.LIST":
		out = r.pass(subject, msg.Data)
	default:
		out = refused(codeBadRequest, "a plan changes nothing: "+subject)
	}
	body, err := json.Marshal(out)
	if err == nil {
		err = msg.Respond(body)
	}
	if err != nil { // the request times out
		return
	}
}

// codeBadRequest is what a server answers a request with that it cannot read.
const codeBadRequest = 10003

// object is a JSON object.
type object = map[string]any

func refused(code int, why string) object {
	return object{"error": object{"code": 400, "err_code": code, "description": why}}
}

// pass has the server answer a request that reads. What would be made is not there yet.
func (r *rehearsal) pass(subject string, body []byte) any {
	if stream, ok := strings.CutPrefix(subject, "CONSUMER.INFO."); ok {
		stream, _, _ = strings.Cut(stream, ".")
		if r.streams[stream] != nil {
			return refused(api.CodeConsumerNotFound, "consumer not found")
		}
	}
	answer, err := r.conn.Request(api.Prefix+subject, body, initTimeout)
	if err != nil {
		return refused(codeBadRequest, err.Error())
	}
	return json.RawMessage(answer.Data)
}

// putStream notes a stream that would be made, or updated.
func (r *rehearsal) putStream(create bool, name string, wanted json.RawMessage) any {
	if create {
		r.note(Change{Action: "create", Thing: "stream " + name})
		r.streams[name] = wanted
		return object{"config": wanted, "state": object{}}
	}
	has, found := r.config("STREAM.INFO." + name)
	if !found {
		return refused(api.CodeStreamNotFound, "stream not found")
	}
	r.note(Change{Action: "update", Thing: "stream " + name, Settings: changed(has, wanted)})
	return object{"config": wanted, "state": object{}}
}

// putConsumer notes a consumer that would be made, or updated.
func (r *rehearsal) putConsumer(stream, name string, request []byte) any {
	var wanted struct {
		Config json.RawMessage `json:"config"`
	}
	if err := json.Unmarshal(request, &wanted); err != nil {
		return refused(codeBadRequest, err.Error())
	}
	c := Change{Action: "create", Thing: "consumer " + name + " of " + stream}
	if r.streams[stream] == nil {
		if has, found := r.config("CONSUMER.INFO." + stream + "." + name); found {
			c.Action, c.Settings = "update", changed(has, wanted.Config)
		}
	}
	r.note(c)
	return object{"stream_name": stream, "name": name, "config": wanted.Config}
}

// note keeps a change, unless it changes nothing.
func (r *rehearsal) note(c Change) {
	if c.Action == "update" && len(c.Settings) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes = append(r.changes, c)
}

// config returns the configuration that a request for information answers with.
func (r *rehearsal) config(subject string) (config json.RawMessage, found bool) {
	answer, err := r.conn.Request(api.Prefix+subject, nil, initTimeout)
	if err != nil {
		return nil, false
	}
	var info struct {
		Config json.RawMessage `json:"config"`
	}
	err = json.Unmarshal(answer.Data, &info)
	return info.Config, err == nil && info.Config != nil
}

// serverChooses has the settings that a server chooses where none is asked for.
var serverChooses = map[string]bool{"name": true, "duplicate_window": true, "max_waiting": true, "num_replicas": true}

// changed returns the settings of which what is there differs from what is wanted.
func changed(has, wanted json.RawMessage) []string {
	var a, b object
	if json.Unmarshal(has, &a) != nil || json.Unmarshal(wanted, &b) != nil {
		return []string{"it cannot be read"}
	}
	var found []string
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		_, asked := b[key]
		switch {
		case key == "metadata":
			found = append(found, metadata(a[key], b[key])...)
		case !alike(a[key], b[key]) && (asked || !serverChooses[key]):
			found = append(found, fmt.Sprintf("%s: %s → %s", key, text(a[key]), text(b[key])))
		}
	}
	return found
}

// alike compares two values; one that is not there is as good as an empty one, and no limit (-1) as
// one of 0.
func alike(a, b any) bool {
	empty := func(v any) bool {
		return v == nil || v == -1.0 || reflect.ValueOf(v).IsZero() || fmt.Sprint(v) == "[]" || fmt.Sprint(v) == "map[]"
	}
	return empty(a) && empty(b) || reflect.DeepEqual(a, b)
}

// metadata compares what is noted beside a stream or consumer, without what the server notes.
func metadata(has, wanted any) []string {
	a, _ := has.(object)
	b, _ := wanted.(object)
	all := map[string]bool{}
	for _, m := range []object{a, b} {
		for key := range m {
			all[key] = !strings.HasPrefix(key, "_nats.")
		}
	}
	var found []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key] && !alike(a[key], b[key]) {
			found = append(found, fmt.Sprintf("metadata %s: %s → %s", key, text(a[key]), text(b[key])))
		}
	}
	return found
}

func text(v any) string {
	if v == nil {
		return "none"
	}
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(body)
}
