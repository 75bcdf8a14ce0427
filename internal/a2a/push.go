package a2a

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/moorebus/moorebus/internal/control"
	"github.com/moorebus/moorebus/internal/control/runs"
	"github.com/moorebus/moorebus/internal/feature/webhooks/row"
	"github.com/moorebus/moorebus/internal/httpapi/route"
	"github.com/moorebus/moorebus/internal/httpapi/sse"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runlog"
	"github.com/moorebus/moorebus/pkg/journal"
)

// pushConfig says where the updates of a task are posted to.
type pushConfig struct {
	Tenant         string          `json:"tenant,omitempty"`
	ID             string          `json:"id,omitempty" jsonschema:"Default: one is made."`
	TaskID         string          `json:"taskId,omitempty"`
	URL            string          `json:"url" jsonschema:"https, or http to a loopback address, within the networks that webhooks may reach."`
	Token          string          `json:"token,omitempty" jsonschema:"Comes with each notification, in X-A2A-Notification-Token. Only the answer that makes the configuration shows it."`
	Authentication *authentication `json:"authentication,omitempty" jsonschema:"Becomes the header Authorization."`
}

type authentication struct {
	Scheme      string `json:"scheme"`
	Credentials string `json:"credentials,omitempty" jsonschema:"Only the answer that makes the configuration shows them."`
}

type pushList struct {
	Configs       []pushConfig `json:"configs"`
	NextPageToken string       `json:"nextPageToken"`
}

// codeBadPush is the code of a configuration that cannot be.
const codeBadPush = row.CodeBadWebhook

// shown is a configuration without what is secret.
func shown(p control.Push) pushConfig {
	c := pushConfig{ID: p.ID, TaskID: p.Run, URL: p.URL}
	if p.Scheme != "" {
		c.Authentication = &authentication{Scheme: p.Scheme}
	}
	return c
}

// push is what a configuration asks for. The error says what is wrong with it.
func (f *Face) push(ctx context.Context, c *pushConfig) (control.Push, error) {
	p := control.Push{ID: c.ID, URL: c.URL, Token: c.Token}
	if c.Authentication != nil {
		p.Scheme, p.Credentials = c.Authentication.Scheme, c.Authentication.Credentials
	}
	if c.Tenant != "" {
		return p, badRequest("tenant: is not supported; the header Moorebus-Namespace names the namespace")
	}
	return p, f.cfg.Control.Pushes.CheckPush(ctx, p)
}

// putPush stores a configuration for a task. Updates after event n are sent.
func (f *Face) putPush(ctx context.Context, to target, c pushConfig, n uint64) (pushConfig, error) {
	p, err := f.push(ctx, &c)
	if err != nil {
		return c, err
	}
	p.Run, p.Base, p.After = to.run, to.base, n
	made, err := f.cfg.Control.Pushes.PutPush(ctx, to.ns, p)
	c.ID, c.TaskID = made.ID, to.run
	return c, err
}

// createPush stores a configuration for a task that has not ended.
func (f *Face) createPush(ctx context.Context, to target, data []byte) (any, error) {
	var c pushConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, badRequest("the body is not a TaskPushNotificationConfig: %s", err.Error())
	}
	if to.run == "" {
		to.run = c.TaskID // over JSON-RPC
	}
	if c.TaskID != "" && c.TaskID != to.run {
		return nil, badRequest("taskId: is not that of the request, %.100q", to.run)
	}
	err := f.view(ctx, to.ns, to.agent, to.run, func(run *runlog.Run) error {
		if to.n = run.Memory().N; run.Terminal() {
			return refusal.New(refusal.Invalid, refusal.CodeUnsupported, "the task has ended; get it instead").With(map[string]any{"run": to.run})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f.putPush(ctx, to, c, to.n)
}

// seen refuses requests about a task that the agent does not have.
func (f *Face) seen(ctx context.Context, to target) error {
	return f.view(ctx, to.ns, to.agent, to.run, func(*runlog.Run) error { return nil })
}

func (f *Face) pushOf(ctx context.Context, to target, id string) (any, error) {
	if err := f.seen(ctx, to); err != nil {
		return nil, err
	}
	all, err := f.cfg.Control.Pushes.Pushes(ctx, to.ns, to.run)
	for _, p := range all {
		if p.ID == id {
			return shown(p), nil
		}
	}
	if err == nil {
		err = refusal.New(refusal.NotFound, refusal.CodeTaskNotFound, "the task has no push notification configuration %.100q", id)
	}
	return nil, err
}

func (f *Face) listPushes(ctx context.Context, to target) (any, error) {
	if err := f.seen(ctx, to); err != nil {
		return nil, err
	}
	all, err := f.cfg.Control.Pushes.Pushes(ctx, to.ns, to.run)
	list := pushList{Configs: []pushConfig{}}
	for _, p := range all {
		list.Configs = append(list.Configs, shown(p))
	}
	return list, err
}

func (f *Face) deletePush(ctx context.Context, to target, id string) (any, error) {
	err := f.seen(ctx, to)
	if err == nil {
		err = f.cfg.Control.Pushes.DeletePush(ctx, to.ns, to.run, id)
	}
	return struct{}{}, err
}

func (f *Face) postPush(w http.ResponseWriter, r *http.Request) error {
	data, err := (&route.Request{Request: r, W: w}).Body()
	if err != nil {
		return err
	}
	return f.jsonAnswer(func(ctx context.Context, r *http.Request) (any, error) {
		return f.createPush(ctx, targetOf(r, r.PathValue("id")), data)
	})(w, r)
}

func (f *Face) getPush(ctx context.Context, r *http.Request) (any, error) {
	return f.pushOf(ctx, targetOf(r, r.PathValue("id")), r.PathValue("config"))
}

func (f *Face) getPushes(ctx context.Context, r *http.Request) (any, error) {
	return f.listPushes(ctx, targetOf(r, r.PathValue("id")))
}

func (f *Face) removePush(ctx context.Context, r *http.Request) (any, error) {
	return f.deletePush(ctx, targetOf(r, r.PathValue("id")), r.PathValue("config"))
}

// invokePush carries out a request of the JSON-RPC binding about configurations.
func (f *Face) invokePush(ctx context.Context, r *http.Request, req *rpcRequest) (any, error) {
	if req.Method == "CreateTaskPushNotificationConfig" {
		return f.createPush(ctx, targetOf(r, ""), req.Params)
	}
	var c pushConfig
	if err := req.decode(&c); err != nil {
		return nil, err
	}
	if c.Tenant != "" || c.TaskID == "" {
		return nil, badRequest("params: must have a taskId and no tenant; the header Moorebus-Namespace names the namespace")
	}
	to := targetOf(r, c.TaskID)
	switch req.Method {
	case "GetTaskPushNotificationConfig":
		return f.pushOf(ctx, to, c.ID)
	case "ListTaskPushNotificationConfigs":
		return f.listPushes(ctx, to)
	}
	return f.deletePush(ctx, to, c.ID)
}

// pushes makes the updates that are posted. It is a [control.Updates].
type pushes struct{ *Face }

// Follow reports the records that change the status of a task.
func (f pushes) Follow(ns, run string) func(ctx context.Context, rec journal.Record) (uint64, bool, bool, error) {
	c := f.cfg.Control
	l := &follower{fold: runlog.NewFold(c.Log, c.Store.Machine(), c.Store.Place(ns, run)), names: conversationOf(run, "", nil)}
	var known status
	return func(ctx context.Context, rec journal.Record) (uint64, bool, bool, error) {
		if err := l.apply(ctx, sse.Record{Record: rec}); err != nil {
			return 0, false, false, err
		}
		mem := l.fold.Memory()
		now := f.statusOf(mem, l.names)
		changed := now.State != known.State || now.Message != nil && (known.Message == nil || now.Message.MessageID != known.Message.MessageID)
		known = now
		return mem.N, changed, now.State.terminal(), nil
	}
}

// Update is the task as it was at an event, with the URLs of its files.
func (f pushes) Update(ctx context.Context, ns string, p control.Push, event string) (body []byte, media string, err error) {
	c := f.cfg.Control
	records, err := c.Events(ctx, ns, p.Run, 1)
	if runs.IsMissing(err) {
		err = journal.ErrNotFound
	}
	if err != nil {
		return nil, "", err
	}
	l := &follower{fold: runlog.NewFold(c.Log, c.Store.Machine(), c.Store.Place(ns, p.Run)), names: conversationOf(p.Run, p.Base, nil)}
	none := 0
	for rec, err := range records {
		if err == nil {
			err = l.apply(ctx, sse.Record{Record: rec})
		}
		if err != nil {
			return nil, "", err
		}
		if e := c.Decode(rec); e != nil && e.ID == event {
			t := f.taskOf(l.fold.Memory(), l.names, &none)
			body, err := json.Marshal(update{Task: &t})
			return body, mediaType, err
		}
	}
	return nil, "", journal.ErrNotFound
}
