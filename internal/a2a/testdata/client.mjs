// Works with the agents of a gateway through the client of the protocol's SDK, over one binding.
import assert from "node:assert/strict";
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { Role, TaskState } from "@a2a-js/sdk";

const [, , base, binding] = process.argv;
const transport = binding === "JSONRPC" ? new JsonRpcTransportFactory() : new RestTransportFactory();
const factory = new ClientFactory({ ...ClientFactoryOptions.default, transports: [transport] });
const agent = (name) => factory.createFromUrl(`${base}/v1/a2a/${name}/`, `.well-known/agent-card.json`);
let count = 0;

function message(part, more = {}) {
  const content = typeof part === "string" ? { $case: "text", value: part } : { $case: "data", value: part };
  return {
    messageId: `message-${++count}`, contextId: "", taskId: "", role: Role.ROLE_USER, extensions: [], referenceTaskIds: [],
    parts: [{ content, filename: "", mediaType: "" }], ...more,
  };
}
const request = (m, configuration) => ({ tenant: "", message: m, configuration, metadata: undefined });
const send = (client, m, configuration) => client.sendMessage(request(m, configuration));
const text = (parts) => parts.map((p) => p.content.value).join("");
const fails = (promise, name) => assert.rejects(promise, (e) => e.constructor.name.endsWith(name) || assert.fail(`${e.constructor.name}: ${e}`));

// The cards.
const byDefault = await factory.createFromUrl(base);
const card = await byDefault.getAgentCard();
assert.equal(card.name, "writer");
assert.equal(card.description, "Writes a line.");
assert.equal(card.capabilities.streaming, true);
assert.equal(card.capabilities.pushNotifications, true);
const writer = await agent("writer");
assert.deepEqual(await writer.getAgentCard(), card);

// A task, which is the same one when its message is sent again.
const first = message("Write it down.");
const task = await send(writer, first);
assert.equal(task.status.state, TaskState.TASK_STATE_COMPLETED);
assert.equal(text(task.artifacts[0].parts), "All is written down.");
assert.equal(task.history[0].messageId, first.messageId);
assert.equal(text(task.history[0].parts), "Write it down.");
assert.equal((await send(byDefault, first)).id, task.id);
assert.deepEqual(await writer.getTask({ tenant: "", id: task.id, historyLength: 1 }).then((t) => [t.status, t.history.length]), [task.status, 1]);
assert.equal((await writer.getTask({ tenant: "", id: task.id, historyLength: 0 })).history.length, 0);
await fails(send(writer, message("More.", { taskId: task.id })), "UnsupportedOperationError");
await fails(writer.cancelTask({ tenant: "", id: task.id }), "TaskNotCancelableError");
await fails(writer.getTask({ tenant: "", id: "no-such-task" }), "TaskNotFoundError");
const counted = await send(await agent("counter"), message("Count."));
assert.deepEqual(counted.artifacts[0].parts[0].content, { $case: "data", value: { count: 3 } });
const failed = await send(await agent("fails"), message("Try."));
assert.equal(failed.status.state, TaskState.TASK_STATE_FAILED);
assert.match(text(failed.status.message.parts), /./);

// A stream: the task, its text as it comes, and its end.
const seen = [];
let answer = "";
for await (const { payload } of writer.sendMessageStream(request(message("Write and stream.")))) {
  seen.push(payload.$case);
  if (payload.$case === "artifactUpdate") {
    const more = text(payload.value.artifact.parts);
    answer = payload.value.append ? answer + more : more;
  }
  if (payload.$case === "statusUpdate") seen.state = payload.value.status.state;
}
assert.equal(seen[0], "task");
assert.equal(seen.at(-1), "statusUpdate");
assert.equal(seen.state, TaskState.TASK_STATE_COMPLETED);
assert.equal(answer, "All is written down.");

// An approval: input is required, a lost stream begins again, and the decision ends the task.
const cashier = await agent("cashier");
const stream = [];
for await (const { payload } of cashier.sendMessageStream(request(message("Pay.")))) stream.push(payload);
const waits = stream.at(-1).value;
assert.equal(waits.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
const asked = waits.status.message.parts.find((p) => p.content.$case === "data").content.value.approval;
assert.equal(asked.requests[0].tool, "pay");
for await (const { payload } of cashier.resubscribeTask({ tenant: "", id: waits.taskId })) {
  assert.equal(payload.$case, "task");
  assert.equal(payload.value.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
  break; // the connection is lost
}
const again = cashier.resubscribeTask({ tenant: "", id: waits.taskId });
assert.equal((await again.next()).value.payload.$case, "task");
const decision = message({ call_id: asked.requests[0].call_id, decision: "approved", by: "ada" }, { taskId: waits.taskId, contextId: waits.contextId });
const paid = await send(cashier, decision);
assert.equal(paid.status.state, TaskState.TASK_STATE_COMPLETED);
assert.equal(text(paid.artifacts[0].parts), "The tool says: paid");
const rest = [];
for await (const { payload } of again) rest.push(payload);
assert.equal(rest.at(-1).value.status.state, TaskState.TASK_STATE_COMPLETED);
assert.ok(rest.some((p) => p.$case === "artifactUpdate"));
assert.equal((await send(cashier, decision)).id, paid.id); // the same decision again
const resubscribed = cashier.resubscribeTask({ tenant: "", id: paid.id });
await fails(resubscribed.next(), "UnsupportedOperationError");

// In words.
const rejects = await send(cashier, message("Pay again."));
const rejected = await send(cashier, message("Rejected", { taskId: rejects.id }));
assert.match(text(rejected.artifacts[0].parts), /REJECTED/);
const asker = await agent("asker");
const question = await send(asker, message("Paint."));
assert.match(text(question.status.message.parts.slice(0, 1)), /Which colour\?/);
const painted = await send(asker, message("Blue", { taskId: question.id }));
assert.match(text(painted.artifacts[0].parts), /Blue/);

// Push notifications: where they go, and the URL that is taken back.
const pushed = await send(cashier, message("Pay and tell."));
const config = { tenant: "", id: "", taskId: pushed.id, url: "https://client.invalid/tasks", token: "t", authentication: { scheme: "Bearer", credentials: "c" } };
const made = await cashier.createTaskPushNotificationConfig(config);
assert.equal(made.url, config.url);
assert.equal(made.taskId, pushed.id);
assert.notEqual(made.id, "");
assert.equal((await cashier.getTaskPushNotificationConfig({ tenant: "", taskId: pushed.id, id: made.id })).url, config.url);
assert.deepEqual((await cashier.listTaskPushNotificationConfig({ tenant: "", taskId: pushed.id, pageSize: 0, pageToken: "" })).configs.map((c) => c.id), [made.id]);
await cashier.deleteTaskPushNotificationConfig({ tenant: "", taskId: pushed.id, id: made.id });
await fails(cashier.getTaskPushNotificationConfig({ tenant: "", taskId: pushed.id, id: made.id }), "TaskNotFoundError");

// Cancelling, and a task that is not waited for.
const open = await send(cashier, message("Pay later."), { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately: true });
assert.ok([TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_INPUT_REQUIRED].includes(open.status.state));
assert.equal((await cashier.cancelTask({ tenant: "", id: open.id })).status.state, TaskState.TASK_STATE_CANCELED);
assert.equal((await cashier.cancelTask({ tenant: "", id: open.id })).status.state, TaskState.TASK_STATE_CANCELED);

// A conversation is one task, found by its id or its context.
const talker = await agent("talker");
const mars = await send(talker, message("How many moons has Mars?"));
assert.equal(mars.status.state, TaskState.TASK_STATE_INPUT_REQUIRED);
assert.equal(text(mars.status.message.parts), "Mars has two moons.");
const said = message("And Jupiter?", { contextId: mars.contextId });
const jupiter = await send(talker, said);
assert.equal(jupiter.id, mars.id);
assert.equal(text(jupiter.status.message.parts), "Jupiter has many.");
assert.deepEqual(jupiter.history.map((m) => text(m.parts)), ["How many moons has Mars?", "Mars has two moons.", "And Jupiter?"]);
assert.deepEqual((await send(talker, said)).history.length, 3); // the same message again

// Lists.
const inContext = await send(writer, message("Once.", { contextId: "mine" }));
assert.equal(inContext.contextId, "mine");
await send(writer, message("Twice.", { contextId: "mine" }));
const list = (client, more) => client.listTasks({ tenant: "", contextId: "", status: TaskState.TASK_STATE_UNSPECIFIED, pageToken: "", statusTimestampAfter: undefined, ...more });
const mine = await list(writer, { contextId: "mine", includeArtifacts: true });
assert.equal(mine.totalSize, 2);
assert.ok(mine.tasks.every((t) => t.contextId === "mine" && t.artifacts.length === 1));
assert.equal((await list(cashier, { status: TaskState.TASK_STATE_CANCELED })).tasks[0].id, open.id);
const every = (await list(writer)).tasks.map((t) => t.id);
assert.equal(every.length, 4);
const paged = [];
for (let pageToken = ""; ; ) {
  const page = await list(writer, { pageSize: 1, pageToken });
  paged.push(...page.tasks.map((t) => t.id));
  if (!(pageToken = page.nextPageToken)) break;
}
assert.deepEqual(paged, every);
console.log("all is well");
