package forking

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/moorebus/moorebus/internal/agentfile"
	"github.com/moorebus/moorebus/internal/agentfile/strict"
	"github.com/moorebus/moorebus/internal/refusal"
	"github.com/moorebus/moorebus/internal/runstart"
	"github.com/moorebus/moorebus/pkg/events"
	"github.com/moorebus/moorebus/pkg/reducer"
)

// patch pins the patched agent and task in the fork. Only changes are pinned: an unchanged agent
// keeps the tools that were announced when the parent began.
func (f *Forker) patch(ctx context.Context, parent *reducer.Memory, fork *events.Forked, patch json.RawMessage) error {
	was := agentOf(parent)
	is, task, err := f.patched(parent, was, patch)
	if err != nil {
		return err
	}
	fork.Patch = patch
	if task.Task != parent.Task {
		fork.Task = task.Task
	}
	if task.TaskType != parent.TaskType {
		fork.TaskType = task.TaskType
	}
	if is.Mode != parent.Mode {
		fork.Mode = is.Mode
	}
	hash := agentfile.Hash(is)
	if hash == agentfile.Hash(was) {
		return nil
	}
	if err := f.a.Launcher.Check(&is); err != nil {
		return err
	}
	tools, err := f.a.Launcher.Tools(ctx, &is, runstart.PoolsOf(parent))
	if err != nil {
		return err
	}
	fork.Agent, fork.AgentHash, fork.Tools = &is, hash, tools
	return nil
}

// agentOf returns the run's agent, with its raised budget.
func agentOf(mem *reducer.Memory) events.Agent {
	a := mem.Control.Agent
	a.SystemPrompt, a.Blacklist, a.Mode, a.Budget = mem.SystemPrompt, mem.Blacklist, mem.Mode, mem.Budget
	a.Task = ""
	return a
}

// patchTask is what a patch can change besides the agent's definition.
type patchTask struct {
	Task     string `json:"task"`
	TaskType string `json:"task_type"`
}

// extract takes its keys from a document and returns the rest. A key that the patch removed keeps
// its value. An empty task type becomes the default.
func (t *patchTask) extract(document *strict.Node) (*strict.Node, error) {
	for _, part := range []struct {
		key  string
		into *string
	}{{"task", &t.Task}, {"task_type", &t.TaskType}} {
		rest, value := document.Without(part.key)
		document = rest
		if value == nil {
			continue
		}
		if err := strict.DecodeAt(value, part.key, part.into); err != nil {
			return nil, err
		}
	}
	t.TaskType = cmp.Or(t.TaskType, runstart.DefaultTaskType)
	return document, nil
}

// patched applies the patch to the definition and the task, with the checks of a new run.
func (f *Forker) patched(parent *reducer.Memory, a events.Agent, patch json.RawMessage) (events.Agent, patchTask, error) {
	task := patchTask{Task: parent.Task, TaskType: parent.TaskType}
	bad := func(err error) (events.Agent, patchTask, error) {
		return events.Agent{}, patchTask{}, invalid(refusal.CodeBadPatch, "patch: %s", err.Error())
	}
	change, err := strict.ParseJSON(patch)
	if err != nil {
		return bad(err)
	}
	if change.Kind != strict.Object {
		return bad(change.Errorf("", "is %s, want an object with the changes", change.Kind))
	}
	target, err := document(a, task)
	if err != nil {
		return bad(err)
	}
	merged, err := strict.ParseJSON(mergePatch(target, patch))
	if err != nil {
		return bad(err)
	}
	definition, err := task.extract(merged)
	if err != nil {
		return bad(err)
	}
	if strings.TrimSpace(task.Task) == "" {
		return events.Agent{}, task, invalid(refusal.CodeEmptyTask, "patch: task: is empty; describe the task, or leave it out")
	}
	is, err := agentfile.DecodeDefinition(definition, "", agentfile.Options{CheckScript: f.checkScript, Name: a.Name})
	if err == nil {
		is, err = is.Resolve()
	}
	if err != nil {
		return bad(err)
	}
	return is, task, nil
}

// document returns the object that a patch applies to: the agent's definition with the run's
// task and task_type.
func document(a events.Agent, task patchTask) (json.RawMessage, error) {
	all := map[string]json.RawMessage{}
	if err := json.Unmarshal(agentfile.Marshal(a), &all); err != nil {
		return nil, err
	}
	for key, text := range map[string]string{"task": task.Task, "task_type": task.TaskType} {
		value, err := json.Marshal(text)
		if err != nil {
			return nil, err
		}
		all[key] = value
	}
	return json.Marshal(all)
}

// mergePatch applies a JSON merge patch (RFC 7396). Both must be valid JSON. Numbers keep their
// form.
func mergePatch(target, patch json.RawMessage) json.RawMessage {
	var changes map[string]json.RawMessage
	if json.Unmarshal(patch, &changes) != nil || changes == nil {
		return patch
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(target, &members) != nil || members == nil {
		members = map[string]json.RawMessage{}
	}
	for key, change := range changes {
		if string(change) == "null" {
			delete(members, key)
			continue
		}
		members[key] = mergePatch(members[key], change)
	}
	merged, err := json.Marshal(members)
	if err != nil {
		panic("members of valid JSON do not marshal: " + err.Error())
	}
	return merged
}
