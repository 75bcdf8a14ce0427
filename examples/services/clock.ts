// A NATS service in TypeScript with one tool. Its types are inferred, so node runs this
// file as it is: npm install @nats-io/services @nats-io/transport-node
import { Svcm } from "@nats-io/services";
import { connect } from "@nats-io/transport-node";

const connection = await connect({ servers: process.env.NATS_URL });
const service = await new Svcm(connection).add({ name: "clock", version: "1.0.0" });
service.addEndpoint("day_of_week", {
  subject: "clock.day_of_week",
  metadata: {
    "moorebus.tool": "day_of_week",
    "moorebus.description": "Says on which day of the week a date falls.",
    "moorebus.schema": JSON.stringify({
      type: "object", properties: { date: { type: "string", description: "such as 2026-11-23" } }, required: ["date"],
    }),
    "moorebus.effect": "pure",
  },
  handler: (error, request) => {
    if (error) throw error;
    if (!request.reply?.startsWith("_SERVICES.")) return; // no call of an actor
    const date = new Date(request.json().date);
    if (isNaN(date.getTime())) request.respondError(400, "that is no date");
    else request.respond(date.toLocaleDateString("en", { weekday: "long", timeZone: "UTC" }));
  },
});
console.log("up");
