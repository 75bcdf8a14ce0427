package a2atool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/moorebus/moorebus/internal/callctx"
	"github.com/moorebus/moorebus/pkg/tool"
)

// question is what the log keeps of a task that asks: the task, and which status asked.
type question struct {
	Task  string `json:"task"`
	Asked string `json:"asked"`
}

// maxTaskID bounds the id of a task that asks, in bytes: it goes to the log.
const maxTaskID = 512

// id distinguishes the statuses in which a task waits. The protocol gives each message an id.
func (s *status) id() string {
	said := []byte(s.state())
	if m := s.Message; m != nil && m.MessageID != "" {
		said = append(said, m.MessageID...)
	} else if m != nil {
		text, _ := json.Marshal(m.Parts) // they were read from JSON
		said = append(said, text...)
	}
	sum := sha256.Sum256(said)
	return hex.EncodeToString(sum[:8])
}

// ask puts the question of a task to a human. The task waits meanwhile: it is never cancelled for
// that. The error is for the model, where no human can be asked. first is said before the question.
func (t *agentTool) ask(ctx context.Context, now *task, first string) error {
	if len(now.ID) > maxTaskID {
		return tool.Failf(tool.CodeFailed, "the agent's task has an id of %d bytes; at most %d can be kept", len(now.ID), maxTaskID)
	}
	said := ""
	if m := now.Status.Message; m != nil {
		said = ": " + t.textOf(ctx, m.Parts)
	}
	state := now.Status.state()
	asked := fmt.Sprintf("%sThe agent %s asks in its task %s%s", first, t.Name(), now.ID, said)
	if state == authRequired {
		asked = fmt.Sprintf("%sThe agent %s needs an authorization before its task %s can go on%s\n"+
			"Give it where the agent says so, and not here: the log keeps what is answered. Then answer, for example, with done.", first, t.Name(), now.ID, said)
	}
	kept, err := json.Marshal(question{Task: now.ID, Asked: now.Status.id()})
	if err != nil {
		return tool.Failf(tool.CodeFailed, "the agent's question cannot be kept: %v", err)
	}
	callctx.DialogueOf(ctx).Put(asked, string(kept))
	how := "To answer, call this tool alone, not in a batch of calls: then a human is asked."
	if len(t.o.Over.Schema) == 0 {
		id, _ := json.Marshal(now.ID) // a string
		how = fmt.Sprintf("The task waits for the answer. Call again with task_id %s, and the answer as task.", id)
	}
	return tool.Failf("a2a_"+strings.ToLower(state), "%s\n%s", asked, how)
}
