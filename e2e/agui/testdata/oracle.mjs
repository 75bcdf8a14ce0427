// Drives AG-UI threads with the protocol's own client, and holds every event to the
// protocol's own schemas. Arguments: the server's URL and the number of threads.
import assert from "node:assert/strict";
import { HttpAgent } from "@ag-ui/client";
import { EventSchemas } from "@ag-ui/core/schemas";

const [base, count] = [process.argv[2], Number(process.argv[3])];
const tools = [{ name: "locate", description: "Says where the user is.", parameters: { type: "object", properties: { near: { type: "string" } } } }];
const hidden = ["system_prompt", "tools", "config", "blacklist", "control"];
let checked = 0;
const valid = new Map(); // events that the schemas accept, by their text

// events reads server-sent events: [{id, data}], until stop says so.
async function events(response, stop = () => false) {
  const all = [];
  const decoder = new TextDecoder();
  let text = "";
  for await (const bytes of response.body) {
    text += decoder.decode(bytes, { stream: true });
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => !line.startsWith(":"));
      if (lines.length === 0) continue;
      const at = (name) => lines.filter((l) => l.startsWith(name + ": ")).map((l) => l.slice(name.length + 2));
      assert.equal(lines.length, at("id").length + at("data").length, part);
      const line = at("data").join("\n");
      let data = valid.get(line);
      if (!data) {
        data = JSON.parse(line);
        const parsed = EventSchemas.safeParse(data);
        assert.ok(parsed.success, line + String(parsed.error));
        assert.deepEqual(parsed.data, data);
        valid.set(line, data);
      }
      checked++;
      all.push({ id: Number(at("id")[0] ?? 0), data, line });
      if (stop(all)) return all;
    }
  }
  return all;
}

// Recording keeps what the client was sent, and may break the connection after some events.
class Recording extends HttpAgent {
  constructor(config) {
    super({ ...config, fetch: async (url, init) => {
      const response = await fetch(url, init);
      if (!response.ok) return response;
      this.runID = response.headers.get("moorebus-run");
      const [mine, theirs] = response.body.tee();
      this.recorded = events({ body: mine });
      return new Response(theirs, { status: response.status, headers: response.headers });
    } });
  }
}

// Joining is a client that joins a thread after an event.
class Joining extends Recording {
  requestInit(input) {
    return { method: "GET", headers: { Accept: "text/event-stream" }, signal: this.abortController.signal };
  }
}

// json has no keys that are undefined.
const json = (v) => JSON.parse(JSON.stringify(v));

// comparable messages: what a client makes of them, without the parts of a message that only it has.
const comparable = (messages) => json(messages).filter((m) => m.role !== "reasoning").map((m) => {
  if (m.role === "assistant" && m.content === "") delete m.content;
  if (m.error) Object.assign(m, { content: `ERROR: ${m.error}`, error: undefined });
  return json(m);
});

// merged puts the text of one message together, however it was cut into pieces.
function merged(list) {
  const out = [];
  for (const { data } of list) {
    const last = out[out.length - 1];
    const e = { ...data };
    if (e.type.startsWith("TEXT_") || e.type.startsWith("REASONING_")) delete e.timestamp;
    if (e.type === "TEXT_MESSAGE_CONTENT" && last?.type === e.type && last.messageId === e.messageId) last.delta += e.delta;
    else out.push(e);
  }
  return out;
}

async function memoryOf(run) {
  const view = await (await fetch(`${base}/v1/runs/${run}`)).json();
  for (const key of hidden) delete view.memory[key];
  return view;
}

// join joins a thread after an event, with the protocol's client or without.
async function join(agent, thread, from, plain = false) {
  const url = `${base}/v1/ag-ui/${agent}/${thread}?from=${from}`;
  let client, all;
  if (plain) {
    all = await events(await fetch(url));
  } else {
    client = new Joining({ url, threadId: thread });
    await client.runAgent({ runId: "join" });
    all = await client.recorded;
  }
  assert.equal(all[0].data.type, "RUN_STARTED");
  assert.ok(all.slice(0, 3).some((e) => e.data.type === "MESSAGES_SNAPSHOT"), JSON.stringify(all.slice(0, 4)));
  assert.ok(all.slice(0, 3).some((e) => e.data.type === "STATE_SNAPSHOT"));
  return { client, all };
}

// everyJoin joins a thread after each of its events.
async function everyJoin(agent, thread, run) {
  const { n, memory } = await memoryOf(run);
  const whole = (await join(agent, thread, 0)).all;
  const messages = comparable((await join(agent, thread, n)).client.messages);
  for (let from = 0; from <= n; from++) {
    const plain = from !== n && from % 10 !== n % 7;
    const { client, all } = await join(agent, thread, from, plain);
    if (!plain) {
      assert.deepEqual(json(client.state), memory, `state after joining ${thread} at ${from}`);
      assert.deepEqual(comparable(client.messages), messages, `messages after joining ${thread} at ${from}`);
    }
    if (from === n) continue;
    // What follows the beginning is the rest of the whole, without gap or repetition.
    const tail = (list) => list.filter((e) => e.id > from && !/SNAPSHOT|RUN_STARTED/.test(e.data.type)).map((e) => e.line);
    assert.deepEqual(tail(all), tail(whole), `tail of ${thread} from ${from}`);
  }
  return { n, messages, memory };
}

async function refused(agent, body, status, code) {
  const response = await fetch(`${base}/v1/ag-ui/${agent}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const answer = await response.json();
  assert.deepEqual([response.status, answer.code], [status, code], JSON.stringify(answer));
}

const answers = {
  approved: () => ({ status: "resolved", payload: { decision: "approved", by: "Ann" } }),
  rejected: () => ({ status: "resolved", payload: { decision: "rejected", reason: "too much", by: "Ann" } }),
  modified: () => ({ status: "resolved", payload: { decision: "modified", arguments: { amount: 1 } } }),
  cancelled: () => ({ status: "cancelled" }),
  yes: () => ({ status: "resolved", payload: true }),
  no: () => ({ status: "resolved", payload: { approved: false, reason: "too much" } }),
};

const colours = ["blue", { answer: "blue" }, { decision: "modified", arguments: { question: "Which colour?", answer: "blue" } }];

const talk = ["Where am I?", "Both", "Buy", "Buy three", "Choose", "Research", "Again", "Delegate"];

// brief plays the beginning of the conversation: tools of the client, and an approval.
const brief = (i) => shop(i, 3);

// shop plays a conversation with approvals, tools of the client and sub-agents.
async function shop(i, length = talk.length) {
  const thread = `shop ${i}/ü`;
  const client = new Recording({ url: `${base}/v1/ag-ui/shop`, threadId: thread, initialState: { cart: i } });
  const turns = [];
  let turn = 0;
  let outcome, ofSubruns = 0;
  const subscriber = { onRunFinishedEvent: ({ event }) => { outcome = event.outcome; } };
  const go = async (more = {}) => {
    const runId = `turn-${++turn}`;
    const input = { threadId: thread, runId, messages: json(client.messages), tools, context: [{ description: "day", value: String(i) }], state: json(client.state), ...more };
    await client.runAgent({ runId, tools, context: input.context, ...more }, subscriber);
    const recorded = await client.recorded;
    turns.push({ input, recorded });
    assert.equal(recorded.at(-1).data.type, "RUN_FINISHED");
    return outcome;
  };
  const say = async (text) => {
    client.addMessage({ id: `user-${turn}`, role: "user", content: text });
    return go();
  };
  const other = { threadId: thread, runId: "other", messages: [], tools };
  // finish answers until the turn needs nothing more.
  const finish = async (o, answer) => {
    for (; ;) {
      if (o.type === "interrupt") {
        await refused("shop", other, 409, "interrupted");
        assert.deepEqual(client.pendingInterrupts, o.interrupts);
        for (const x of o.interrupts) ofSubruns += x.subagentRunId !== undefined;
        o = await go({ resume: o.interrupts.map((x, k) => ({
          interruptId: x.id, ...(x.reason === "input_required"
            ? { status: "resolved", payload: colours[x.subagentRunId ? i % 2 : i % 3] } : answer(k)()),
        })) });
      } else if (o.pendingToolCallIds?.length) {
        for (const id of o.pendingToolCallIds) client.addMessage({ id: `result-${id}`, role: "tool", toolCallId: id, content: `place ${i}`, ...(i % 7 === 1 && { error: "lost" }) });
        o = await go();
      } else {
        return o;
      }
    }
  };
  const decisions = Object.values(answers);
  await finish(await say("Hello"));
  await refused("shop", { ...other, tools: [] }, 409, "tools_changed");
  await refused("shop", { ...other, resume: [{ interruptId: "c1", status: "resolved", payload: { decision: "approved" } }] }, 409, "not_waiting");
  for (const text of talk.slice(0, length)) {
    await finish(await say(text), (k) => decisions[(i + k) % decisions.length]);
  }
  if (length === talk.length) { // a call that is never answered is pending at the end
    assert.deepEqual((await say("Once more")).pendingToolCallIds, ["c12"]);
    assert.equal(ofSubruns, 3);
  }

  const { messages, memory } = await everyJoin("shop", encodeURIComponent(thread), client.runID);
  assert.deepEqual(comparable(client.messages), messages, "who followed all turns has what a client has that joins");
  assert.deepEqual(json(client.state), memory);
  assert.deepEqual(memory.custom.ag_ui.state, { cart: i });
  assert.deepEqual(memory.custom.ag_ui.context, [{ description: "day", value: String(i) }]);
  assert.ok(!JSON.stringify(memory).includes('"failed":{"error":"ERROR: unknown'), "nothing failed");
  const types = new Set(turns.flatMap((t) => t.recorded.map((e) => e.data.type)));
  const wanted = ["TOOL_CALL_RESULT", "STATE_DELTA", ...(length === talk.length ? ["SUBAGENT_STARTED", "SUBAGENT_FINISHED"] : [])];
  for (const type of wanted) assert.ok(types.has(type), type);

  // Every turn again: the same events, and for a client that has them, the same messages.
  for (const { input, recorded } of turns) {
    const response = await fetch(`${base}/v1/ag-ui/shop`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(input) });
    assert.equal(response.headers.get("moorebus-run"), client.runID);
    assert.deepEqual(merged(await events(response)), merged(recorded), `${thread} ${input.runId} again`);
  }
  const { n } = await memoryOf(client.runID);
  const again = new Recording({ url: client.url, threadId: thread, initialMessages: client.messages });
  await again.runAgent({ runId: turns.at(-1).input.runId, tools });
  assert.deepEqual(comparable(again.messages), messages, "the last turn again, for a client that has it");
  assert.equal((await memoryOf(client.runID)).n, n, "nothing was appended by repetitions");
}

// broken loses its connection after k events, and joins.
async function broken(i) {
  const thread = `broken-${i}`;
  const abort = new AbortController();
  const input = { threadId: thread, runId: "one", messages: [{ id: "u", role: "user", content: "Hello" }], tools };
  const response = await fetch(`${base}/v1/ag-ui/shop`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(input), signal: abort.signal });
  const seen = await events(response, (all) => all.length > i % 9);
  abort.abort();
  const last = Math.max(0, ...seen.map((e) => e.id));
  const { client, all } = await join("shop", thread, last);
  assert.equal(all.at(-1).data.type, "RUN_FINISHED");
  assert.deepEqual(client.messages.map((m) => m.content), ["Hello", "Hello there."]);
}

async function failing(i) {
  const thread = `failing-${i}`;
  const client = new Recording({ url: `${base}/v1/ag-ui/failing`, threadId: thread });
  const errors = [];
  for (const text of ["one", "two"]) {
    client.addMessage({ id: text, role: "user", content: text });
    await client.runAgent({ runId: text }, { onRunErrorEvent: ({ event }) => errors.push(event) });
  }
  assert.equal(errors.length, 1);
  const first = client.runID;
  await everyJoin("failing", thread, first);
  // The thread goes on with another run, which does not get the old messages.
  client.addMessage({ id: "three", role: "user", content: "three" });
  await client.runAgent({ runId: "three" });
  assert.notEqual(client.runID, first);
  assert.deepEqual((await memoryOf(client.runID)).memory.messages.map((m) => m.content), ["three", "Fine so far."]);
  // A turn of the run that ended is still the same turn.
  const again = new Recording({ url: client.url, threadId: thread, initialMessages: [{ id: "two", role: "user", content: "two" }] });
  await again.runAgent({ runId: "two" }, { onRunErrorEvent: ({ event }) => errors.push(event) });
  assert.deepEqual(errors[1], errors[0]);
  assert.equal(again.runID, first);
}

async function cancelled(i) {
  const thread = `slow-${i}`;
  const client = new Recording({ url: `${base}/v1/ag-ui/slow`, threadId: thread, initialMessages: [{ id: "u", role: "user", content: "go" }] });
  let outcome;
  await client.runAgent({ runId: "one" }, {
    onStepStartedEvent: async ({ event }) => {
      if (event.stepName !== "acting") return;
      await refused("slow", { threadId: thread, runId: "two", messages: [] }, 409, "turn_open");
      const response = await fetch(`${base}/v1/runs/${client.runID}/cancel`, { method: "POST" });
      assert.equal(response.status, 200);
    },
    onRunFinishedEvent: (p) => { outcome = p.outcome; },
  });
  assert.equal(outcome, "cancelled");
  await everyJoin("slow", thread, client.runID);
}

// Few conversations are long, since the cost of joining grows with the square of the length:
// one for each answer to an approval. They begin first, so that none is left at the end.
const long = (i) => i % 15 === 0;
const kinds = [(i) => (long(i) ? shop(i) : brief(i)), brief, broken, failing, cancelled];
const work = Array.from({ length: count }, (_, i) => i).sort((a, b) => long(b) - long(a));
await Promise.all(Array.from({ length: 4 }, async () => {
  for (let i = work.shift(); i !== undefined; i = work.shift()) {
    try {
      await kinds[i % kinds.length](i);
    } catch (error) {
      console.error(`thread ${i}`, error);
      process.exit(1);
    }
  }
}));
console.log(JSON.stringify({ threads: count, events: checked }));
