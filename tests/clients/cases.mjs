// What came of each thing that a program did with a client? One JSON object: a case's result, or why it failed.
export const url = process.argv[2];

export async function run(cases) {
  const results = {};
  const wanted = process.argv.slice(3);
  for (const [name, use] of Object.entries(cases)) {
    if (wanted.length && !wanted.includes(name)) continue;
    try {
      results[name] = await use();
    } catch (error) {
      results[name] = { failed: `${error?.stack ?? error} ${JSON.stringify(error?.responseBody ?? error?.cause ?? null)}` };
    }
  }
  console.log(JSON.stringify(results));
}

// The error that `use` ends with, as `describe` sees it.
export async function refused(use, describe) {
  try {
    await use();
  } catch (error) {
    return describe(error);
  }
  throw new Error("nothing was refused");
}

export async function collect(iterable) {
  const items = [];
  for await (const item of iterable) items.push(item);
  return items;
}

export const LONG = "hello world ".repeat(3000);
