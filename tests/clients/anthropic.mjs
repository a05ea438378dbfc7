// What do programs do with Anthropic's client for Node?
import Anthropic from "@anthropic-ai/sdk";
import { collect, LONG, refused, run, url } from "./cases.mjs";

const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ask = (content) => [{ role: "user", content }];
const base = { model: "scripted", max_tokens: 200 };
const tools = [
  { name: "get_weather", description: "Tells the weather.", input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
  { name: "get_time", description: "Tells the time.", input_schema: { type: "object", properties: {} } },
];
const results = { get_weather: "18 degrees", get_time: "noon" };
const describe = (error) => ({
  name: error.constructor.name, status: error.status, type: error.error?.error?.type, message: error.message,
});
const make = (request) => client.messages.create(request);
const makeStreamed = (request) => client.messages.stream(request).finalMessage();
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

async function converse(complete, question) {
  const first = await complete({ ...base, messages: ask(question), tools });
  const calls = first.content.filter((block) => block.type === "tool_use");
  const told = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: results[call.name] }));
  const messages = [...ask(question), { role: "assistant", content: first.content }, { role: "user", content: told }];
  const second = await complete({ ...base, messages, tools });
  return { calls: calls.map((call) => [call.name, call.input]), reason: first.stop_reason, answer: textOf(second) };
}

async function think(complete) {
  const thinking = { type: "enabled", budget_tokens: 1024 };
  const message = await complete({ ...base, max_tokens: 2000, thinking, messages: ask("Think of rain") });
  return { reasoning: message.content[0].thinking, answer: textOf(message) };
}

await run({
  chat: async () => textOf(await make({ ...base, messages: ask("Say hello") })),
  async stream() {
    const events = await collect(await make({ ...base, messages: ask("Say hello"), stream: true }));
    return events.filter((event) => event.delta?.type === "text_delta").map((event) => event.delta.text);
  },
  tool: () => converse(make, "How is the weather in Paris?"),
  tool_streamed: () => converse(makeStreamed, "How is the weather in Paris?"),
  parallel: () => converse(make, "Weather and time?"),
  parallel_streamed: () => converse(makeStreamed, "Weather and time?"),
  reasoning: () => think(make),
  reasoning_streamed: () => think(makeStreamed),
  async count() {
    const { input_tokens } = await client.messages.countTokens({ model: "scripted", messages: ask("Say hello") });
    return input_tokens > 0;
  },
  too_long: () => refused(() => make({ ...base, messages: ask(LONG) }), describe),
  unknown_model: () => refused(() => make({ ...base, model: "nobody", messages: ask("Say hello") }), describe),
  no_tools: () => refused(() => make({ ...base, model: "plain", messages: ask("Say hello"), tools }), describe),
});
