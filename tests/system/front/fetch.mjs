// What does Node's own fetch make of the endpoint? node fetch.mjs URL MODE MODEL; prints one JSON object.
const [url, mode, model] = process.argv.slice(2);
const ask = (options, signal) =>
  fetch(`${url}/v1/chat/completions`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, messages: [{ role: "user", content: "hi" }], temperature: 0, ...options }),
    signal,
  });

async function readEvents(response) {
  const decoder = new TextDecoder();
  let text = "";
  for await (const chunk of response.body) text += decoder.decode(chunk, { stream: true });
  return text.split("\n\n").filter((event) => event.startsWith("data: ")).map((event) => event.slice(6));
}

const modes = {
  async whole() {
    const bodies = [];
    for (let round = 0; round < 3; round++) bodies.push(await (await ask({ max_tokens: 5 })).json());
    return { texts: bodies.map((body) => body.choices[0].message.content) };
  },
  async stream() {
    const response = await ask({ max_tokens: 40, ignore_eos: true, stream: true });
    return { type: response.headers.get("content-type"), events: await readEvents(response) };
  },
  async abort() {
    const controller = new AbortController();
    const response = await ask({ max_tokens: 7000, ignore_eos: true, stream: true }, controller.signal);
    const first = await response.body.getReader().read();
    controller.abort();
    return { got: first.value.length };
  },
};
console.log(JSON.stringify(await modes[mode]()));
process.exit(0);
