// What do programs do with Vercel's AI SDK? With three of its providers: one for each API that is spoken here.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { collect, LONG, refused, run, url } from "./cases.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const compatible = createOpenAICompatible({ name: "llamactl", baseURL: `${url}/v1`, includeUsage: true });
const strict = createOpenAICompatible({ name: "llamactl", baseURL: `${url}/v1`, supportsStructuredOutputs: true });
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" });
const Person = z.object({ name: z.string(), age: z.number().int() });
const describe = (error) => ({ name: error.name, status: error.statusCode, message: error.message, retryable: error.isRetryable });
const ignore = () => {};
const thinking = { forceReasoning: true, reasoningSummary: "auto" }; // else only models that it knows are asked to think

function toolsOf(called) {
  const note = (name, result) => (input) => (called.push([name, input]), result);
  return {
    get_weather: tool({
      description: "Tells the weather.", inputSchema: z.object({ city: z.string() }),
      execute: note("get_weather", "18 degrees"),
    }),
    get_time: tool({ description: "Tells the time.", inputSchema: z.object({}), execute: note("get_time", "noon") }),
  };
}

// Where a provider has the model call a function for a structured output, `who` asks it to.
function casesOf(provider, options = {}, who = "Who is Ada?") {
  const model = provider("scripted");
  const base = { model, maxRetries: 0, ...options };

  async function converse(prompt) {
    const calls = [];
    const done = await generateText({ ...base, prompt, tools: toolsOf(calls), stopWhen: stepCountIs(3) });
    return { calls, reason: done.steps[0].finishReason, answer: done.text };
  }
  async function converseStreamed(prompt) {
    const calls = [];
    const stream = streamText({ ...base, prompt, tools: toolsOf(calls), stopWhen: stepCountIs(3) });
    const parts = await collect(stream.fullStream);
    const failed = parts.find((part) => part.type === "error");
    if (failed) throw failed.error;
    return { calls, reason: (await stream.steps)[0].finishReason, answer: await stream.text };
  }
  return {
    chat: async () => (await generateText({ ...base, prompt: "Say hello" })).text,
    stream: async () => collect(streamText({ ...base, prompt: "Say hello" }).textStream),
    async usage() {
      const stream = streamText({ ...base, prompt: "Say hello" });
      await stream.consumeStream();
      const usage = await stream.usage;
      return usage.inputTokens > 0 && usage.outputTokens > 0;
    },
    tool: () => converse("How is the weather in Paris?"),
    tool_streamed: () => converseStreamed("How is the weather in Paris?"),
    parallel: () => converse("Weather and time?"),
    parallel_streamed: () => converseStreamed("Weather and time?"),
    async structured() {
      return (await generateText({ ...base, prompt: who, output: Output.object({ schema: Person }) })).output;
    },
    async structured_streamed() {
      const stream = streamText({ ...base, prompt: who, output: Output.object({ schema: Person }) });
      return (await collect(stream.partialOutputStream)).at(-1);
    },
    async reasoning() {
      const done = await generateText({ ...base, prompt: "Think of rain" });
      return { reasoning: done.reasoningText, answer: done.text };
    },
    async reasoning_streamed() {
      const stream = streamText({ ...base, prompt: "Think of rain" });
      return { reasoning: await stream.reasoningText, answer: await stream.text };
    },
    too_long: () => refused(() => generateText({ ...base, prompt: LONG }), describe),
    async too_long_streamed() {
      const stream = streamText({ ...base, prompt: LONG, onError: ignore });
      return describe((await collect(stream.fullStream)).find((part) => part.type === "error").error);
    },
    unknown_model: () => refused(() => generateText({ ...base, model: provider("nobody"), prompt: "Say hello" }), describe),
    no_tools: () =>
      refused(() => generateText({ ...base, model: provider("plain"), prompt: "Say hello", tools: toolsOf([]) }), describe),
  };
}

const prefixed = (prefix, cases) => Object.fromEntries(Object.entries(cases).map(([name, use]) => [`${prefix}_${name}`, use]));
const { structured, structured_streamed } = casesOf((name) => strict.chatModel(name));
const embeddings = async (model) =>
  (await embedMany({ model, values: ["hello", "world"], maxRetries: 0 })).embeddings.map((vector) => vector.length);

await run({
  ...prefixed("compatible", casesOf((name) => compatible.chatModel(name))),
  ...prefixed("strict", { structured, structured_streamed }),
  ...prefixed("openai", casesOf((name) => openai(name), { providerOptions: { openai: thinking } })),
  ...prefixed("openai_chat", (({ chat, tool_streamed, structured }) => ({ chat, tool_streamed, structured }))(
    casesOf((name) => openai.chat(name)),
  )),
  ...prefixed("anthropic", casesOf((name) => anthropic(name), {}, "Who is Ada? Call json")),
  compatible_embeddings: () => embeddings(compatible.textEmbeddingModel("embed")),
  openai_embeddings: () => embeddings(openai.textEmbeddingModel("embed")),
  compatible_completion: async () =>
    (await generateText({ model: compatible.completionModel("scripted"), prompt: "Say hello", maxRetries: 0 })).text,
});
