// LangGraph with its SQLite checkpointer: node langgraph.mjs FILE RUNS AT-ONCE WARM-UP.
// A checkpoint is stored before the next step begins (durability "sync"). It prints the
// runs per second.
import { Annotation, END, START, StateGraph } from "@langchain/langgraph";
import { SqliteSaver } from "@langchain/langgraph-checkpoint-sqlite";
import { calculator, model } from "./agent.mjs";

const [file, ...numbers] = process.argv.slice(2);
const [runs, atOnce, warmUp] = numbers.map(Number);
const State = Annotation.Root({
  results: Annotation({ reducer: (all, more) => all.concat(more), default: () => [] }),
  reply: Annotation(),
});
const graph = new StateGraph(State)
  .addNode("model", ({ results }) => ({ reply: model(results) }))
  .addNode("tool", ({ reply }) => ({ results: [calculator(reply.call.arguments)] }))
  .addEdge(START, "model")
  .addConditionalEdges("model", ({ reply }) => (reply.text ? END : "tool"), [END, "tool"])
  .addEdge("tool", "model")
  .compile({ checkpointer: SqliteSaver.fromConnString(file) });

let started = 0;
async function carry(n) {
  const last = started + n;
  const client = async () => {
    while (started < last) {
      const id = `run-${started++}`;
      const { reply } = await graph.invoke({}, { configurable: { thread_id: id }, durability: "sync", recursionLimit: 50 });
      if (reply.text !== "All steps are done: 210.") {
        throw new Error(`${id} ended with ${JSON.stringify(reply)}`);
      }
    }
  };
  await Promise.all(Array.from({ length: atOnce }, client));
}

await carry(warmUp);
const began = performance.now();
await carry(runs);
console.log((runs / ((performance.now() - began) / 1e3)).toFixed(1));
