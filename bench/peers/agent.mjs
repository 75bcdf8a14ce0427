// agent-10 for the peers that run in Node: a model that asks for the calculator ten times
// and then answers. Model and tool answer at once, as in bench http.
export const steps = 10;

export function model(results) {
  if (results.length < steps) {
    return { call: { name: "calculator", arguments: { expression: `${results.length + 1} * (17 + 4)` } } };
  }
  return { text: `All steps are done: ${results.at(-1)}.` };
}

export function calculator({ expression }) {
  const [factor] = expression.split(" ");
  return String(Number(factor) * (17 + 4));
}
