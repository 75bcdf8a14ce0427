// The service that Restate calls: each reply of the model and each result of the tool is a
// durable step. PORT is where it listens.
import * as restate from "@restatedev/restate-sdk";
import { calculator, model } from "./agent.mjs";

// The SDK uses it; Node has it from version 22 on.
Promise.withResolvers ??= function () {
  let resolve, reject;
  const promise = new this((yes, no) => ([resolve, reject] = [yes, no]));
  return { promise, resolve, reject };
};

const agent = restate.service({
  name: "agent",
  handlers: {
    async run(ctx, _task) {
      const results = [];
      for (;;) {
        const reply = await ctx.run("model", () => model(results));
        if (reply.text) {
          return reply.text;
        }
        results.push(await ctx.run("tool", () => calculator(reply.call.arguments)));
      }
    },
  },
});

restate.serve({ services: [agent], port: Number(process.env.PORT) });
