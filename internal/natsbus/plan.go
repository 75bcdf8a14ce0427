package natsbus

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

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
func Plan(ctx context.Context, conn *nats.Conn, o InitOptions) (changes []Change, err error) {
	o.Alone, o.Resynced = false, nil
	o.plan = func(c Change) { changes = append(changes, c) }
	err = o.guarded(ctx, conn, func(ctx context.Context) error {
		js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(initTimeout))
		if err != nil {
			return err
		}
		return o.run(ctx, js)
	})
	return changes, err
}

// object is a JSON object.
type object = map[string]any

// serverChooses has the settings that a server chooses where none is asked for.
var serverChooses = map[string]bool{"name": true, "duplicate_window": true, "max_waiting": true, "num_replicas": true}

// changed returns the settings of which the configuration that is there differs from what is wanted.
func changed(has, wanted any) (found []string) {
	a, b := settingsOf(has), settingsOf(wanted)
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

func settingsOf(config any) (all object) {
	data, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil {
		panic("a configuration has no JSON: " + err.Error())
	}
	return all
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
