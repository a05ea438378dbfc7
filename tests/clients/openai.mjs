// What do programs do with OpenAI's client for Node?
import OpenAI from "openai";
import { zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { collect, LONG, refused, run, url } from "./cases.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const model = "scripted";
const ask = (content) => [{ role: "user", content }];
const Person = z.object({ name: z.string(), age: z.number().int() });
const Place = z.object({ city: z.string() });
const tools = [
  {
    type: "function",
    function: { name: "get_weather", description: "Tells the weather.", strict: true, parameters: z.toJSONSchema(Place) },
  },
  { type: "function", function: { name: "get_time", parameters: { type: "object", properties: {} } } },
];
const results = { get_weather: "18 degrees", get_time: "noon" };
const describe = (error) => ({
  name: error.constructor.name, status: error.status, code: error.code, type: error.type, message: error.message,
});

const make = (request) => client.chat.completions.create(request);
const makeStreamed = (request) => client.chat.completions.stream(request).finalChatCompletion();

// A question that the model answers with calls, and its answer to their results.
async function converse(complete, question) {
  const messages = ask(question);
  const first = (await complete({ model, messages, tools })).choices[0];
  const calls = first.message.tool_calls;
  messages.push(first.message);
  for (const call of calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: results[call.function.name] });
  }
  const second = (await complete({ model, messages, tools })).choices[0];
  return {
    calls: calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
    reason: first.finish_reason,
    answer: second.message.content,
  };
}

async function runTools(stream) {
  const called = [];
  const define = (name, parameters) => ({
    type: "function",
    function: {
      name, description: name, parameters, parse: JSON.parse,
      function: (args) => (called.push([name, args]), results[name]),
    },
  });
  const runner = client.chat.completions.runTools({
    model, stream, messages: ask("How is the weather in Paris?"),
    tools: [define("get_weather", z.toJSONSchema(Place)), define("get_time", { type: "object", properties: {} })],
  });
  return { calls: called, answer: await runner.finalContent() };
}

const functions = tools.map((tool) => ({ type: "function", strict: false, ...tool.function }));

async function respond(respondTo, byId) {
  const input = ask("How is the weather in Paris?");
  const first = await respondTo({ model, input, tools: functions });
  const calls = first.output.filter((item) => item.type === "function_call");
  const outputs = calls.map((call) => ({
    type: "function_call_output", call_id: call.call_id, output: results[call.name],
  }));
  const second = await respondTo(
    byId
      ? { model, previous_response_id: first.id, input: outputs, tools: functions }
      : { model, input: [...input, ...first.output, ...outputs], tools: functions },
  );
  return { calls: calls.map((call) => [call.name, JSON.parse(call.arguments)]), answer: second.output_text };
}
const makeResponse = (request) => client.responses.create(request);
const streamResponse = (request) => client.responses.stream(request).finalResponse();

await run({
  async chat() {
    return (await make({ model, messages: ask("Say hello") })).choices[0].message.content;
  },
  async stream() {
    const chunks = await collect(await make({ model, messages: ask("Say hello"), stream: true }));
    return chunks.map((chunk) => chunk.choices[0]?.delta.content).filter(Boolean);
  },
  async usage() {
    const options = { include_usage: true };
    const chunks = await collect(await make({ model, messages: ask("Say hello"), stream: true, stream_options: options }));
    const usage = chunks.at(-1).usage;
    return usage.total_tokens === usage.prompt_tokens + usage.completion_tokens && usage.completion_tokens > 0;
  },
  tool: () => converse(make, "How is the weather in Paris?"),
  tool_streamed: () => converse(makeStreamed, "How is the weather in Paris?"),
  parallel: () => converse(make, "Weather and time?"),
  parallel_streamed: () => converse(makeStreamed, "Weather and time?"),
  tool_loop: () => runTools(false),
  tool_loop_streamed: () => runTools(true),
  async structured() {
    const response_format = zodResponseFormat(Person, "person");
    return (await client.chat.completions.parse({ model, messages: ask("Who is Ada?"), response_format })).choices[0].message
      .parsed;
  },
  async structured_streamed() {
    const response_format = zodResponseFormat(Person, "person");
    return (await makeStreamed({ model, messages: ask("Who is Ada?"), response_format })).choices[0].message.parsed;
  },
  async reasoning() {
    const { message } = (await make({ model, messages: ask("Think of rain") })).choices[0];
    return { reasoning: message.reasoning_content, answer: message.content };
  },
  too_long: () => refused(() => make({ model, messages: ask(LONG) }), describe),
  too_long_streamed: () => refused(() => make({ model, messages: ask(LONG), stream: true }), describe),
  unknown_model: () => refused(() => make({ model: "nobody", messages: ask("Say hello") }), describe),
  no_tools: () => refused(() => make({ model: "plain", messages: ask("Say hello"), tools }), describe),
  async embeddings() {
    const { data } = await client.embeddings.create({ model: "embed", input: ["hello", "world"] });
    return data.map((item) => item.embedding.length);
  },
  async embeddings_as_numbers() {
    const { data } = await client.embeddings.create({ model: "embed", input: ["hello"], encoding_format: "float" });
    return data.map((item) => item.embedding.length);
  },
  async abort() {
    const stream = await make({ model, messages: ask("Talk on"), stream: true });
    for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
    return (await make({ model, messages: ask("Say hello") })).choices[0].message.content;
  },
  async responses() {
    return (await makeResponse({ model, input: "Say hello" })).output_text;
  },
  async responses_streamed() {
    const events = await collect(await makeResponse({ model, input: "Say hello", stream: true }));
    return events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  },
  responses_tool: () => respond(makeResponse, false),
  responses_tool_streamed: () => respond(streamResponse, false),
  responses_tool_by_id: () => respond(makeResponse, true),
  async responses_parsed_tool() {
    const tool = zodResponsesFunction({ name: "get_weather", parameters: Place });
    const response = await client.responses.parse({ model, input: "How is the weather in Paris?", tools: [tool] });
    return response.output.find((item) => item.type === "function_call").parsed_arguments;
  },
  async responses_structured() {
    const text = { format: zodTextFormat(Person, "person") };
    return (await client.responses.parse({ model, input: "Who is Ada?", text })).output_parsed;
  },
  async responses_structured_streamed() {
    const text = { format: zodTextFormat(Person, "person") };
    return (await streamResponse({ model, input: "Who is Ada?", text })).output_parsed;
  },
  async responses_reasoning() {
    const { output, output_text } = await makeResponse({ model, input: "Think of rain", reasoning: { summary: "auto" } });
    return { reasoning: output.find((item) => item.type === "reasoning").summary[0].text, answer: output_text };
  },
  responses_too_long: () => refused(() => makeResponse({ model, input: LONG }), describe),
  responses_unknown_model: () => refused(() => makeResponse({ model: "nobody", input: "Say hello" }), describe),
});
