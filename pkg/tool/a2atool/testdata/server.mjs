// An agent of the protocol's SDK that speaks JSON-RPC alone. It streams a poem, asks for a colour
// before it paints, draws a file, and refuses.
import { createServer } from "node:http";
import { AgentCard, Role, TaskState } from "@a2a-js/sdk";
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore, JsonRpcTransportHandler, ServerCallContext } from "@a2a-js/sdk/server";

const text = (value) => ({ content: { $case: "text", value }, filename: "", mediaType: "", metadata: undefined });
const say = (taskId, contextId, messageId, value) => ({
  messageId, taskId, contextId, role: Role.ROLE_AGENT, parts: [text(value)], extensions: [], referenceTaskIds: [], metadata: undefined,
});

const executor = {
  async execute({ taskId, contextId, task, userMessage }, bus) {
    const words = userMessage.parts[0].content.value;
    const status = (state, message) => ({ state, message, timestamp: new Date().toISOString() });
    const update = (state, message) => bus.publish(AgentEvent.statusUpdate({ taskId, contextId, status: status(state, message), metadata: undefined }));
    const artifact = (artifactId, parts, append, lastChunk) => bus.publish(AgentEvent.artifactUpdate({
      taskId, contextId, append, lastChunk, metadata: undefined,
      artifact: { artifactId, name: artifactId, description: "", parts, metadata: undefined, extensions: [] },
    }));
    bus.publish(AgentEvent.task(task ?? {
      id: taskId, contextId, status: status(TaskState.TASK_STATE_SUBMITTED), history: [userMessage], artifacts: [], metadata: undefined,
    }));
    if (words === "paint") {
      update(TaskState.TASK_STATE_INPUT_REQUIRED, say(taskId, contextId, `asks-${taskId}`, "Which colour?"));
      return bus.finished();
    }
    update(TaskState.TASK_STATE_WORKING);
    if (words === "poem") {
      for (const [i, piece] of ["Roses ", "are", " red,\n", "violets are blue."].entries()) artifact("poem", [text(piece)], i > 0, i === 3);
    } else if (words === "draw") {
      artifact("drawing", [{ content: { $case: "raw", value: Buffer.from("\x89PNG drawn") }, filename: "dir/rose.png", mediaType: "image/png", metadata: undefined }], false, true);
    } else {
      artifact("answer", [text(`painted ${words}`)], false, true);
    }
    update(TaskState.TASK_STATE_COMPLETED);
    bus.finished();
  },
  async cancelTask() {},
};

const server = createServer(async (req, res) => {
  const answer = (v) => res.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(v));
  if (req.method === "GET") return answer(card);
  let body = "";
  for await (const chunk of req) body += chunk;
  answer(await rpc.handle(body, new ServerCallContext({ requestedVersion: req.headers["a2a-version"] })));
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
await new Promise((resolve) => server.on("listening", resolve));
const card = {
  name: "painter", description: "Paints.", version: "1", capabilities: { streaming: true }, defaultInputModes: ["text/plain"], defaultOutputModes: ["text/plain"], skills: [],
  supportedInterfaces: [{ url: `http://127.0.0.1:${server.address().port}/`, protocolBinding: "JSONRPC", protocolVersion: "1.0" }],
};
const rpc = new JsonRpcTransportHandler(new DefaultRequestHandler(AgentCard.fromJSON(card), new InMemoryTaskStore(), executor));
