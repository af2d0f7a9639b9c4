// OpenAI's client for Node. argv: the folder of its packages, base URL, model. The last line is what openai.py prints, too.

import { createRequire } from "node:module";

const [folder, baseURL, model] = process.argv.slice(2);
const { OpenAI, BadRequestError, NotFoundError } = createRequire(`${folder}/`)("openai");
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const schema = { type: "object", properties: { days: { type: "integer", minimum: 1, maximum: 9 } }, required: ["days"], additionalProperties: false };
const tools = [{ type: "function", function: { name: "weather", parameters: schema } }];

async function chat() {
  const asked = { model, messages, max_completion_tokens: 8, logprobs: true, top_logprobs: 2 };
  const whole = await client.chat.completions.create(asked);
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  const text = await stream.finalContent();
  const usage = await stream.totalUsage();
  return { same: text === whole.choices[0].message.content, tokens: usage.completion_tokens, logprobs: whole.choices[0].logprobs.content.length };
}

async function structured() {
  const response_format = { type: "json_schema", json_schema: { name: "trip", strict: true, schema } };
  const answer = await client.chat.completions.parse({ model, messages, response_format, max_completion_tokens: 300 });
  const { days } = answer.choices[0].message.parsed;
  return Number.isInteger(days) && days >= 1 && days <= 9;
}

async function called() {
  const tool_choice = { type: "function", function: { name: "weather" } };
  const stream = client.chat.completions.stream({ model, messages, tools, tool_choice, max_completion_tokens: 300 });
  const { message } = (await stream.finalChatCompletion()).choices[0];
  return [message.tool_calls[0].function.name, typeof JSON.parse(message.tool_calls[0].function.arguments).days];
}

async function refused() {
  const tooLong = { model, messages: [{ role: "user", content: "word ".repeat(5000) }] };
  const long = await client.chat.completions.create(tooLong).catch((error) => error);
  const unknown = await client.chat.completions.create({ model: "nobody", messages }).catch((error) => error);
  return { long: long instanceof BadRequestError && long.code, unknown: unknown instanceof NotFoundError && unknown.code };
}

async function responses() {
  let kinds = 0;
  let text = "";
  for await (const event of await client.responses.create({ model, input: "hi", max_output_tokens: 16, stream: true })) {
    kinds += event.type === "response.completed" || event.type === "response.incomplete";
    text += event.type === "response.output_text.delta" ? event.delta : "";
  }
  const whole = await client.responses.create({ model, input: "hi", max_output_tokens: 16 });
  return { ends: kinds, same: text === whole.output_text };
}

const text = await client.completions.create({ model, prompt: ["a", "b"], max_tokens: 3, n: 2 });
const vectors = await client.embeddings.create({ model, input: ["a", "b"] });
const models = await client.models.list();
const found = { chat: await chat(), structured: await structured(), called: await called(), refused: await refused(), responses: await responses() };
console.log(JSON.stringify({ ...found, texts: text.choices.length, vectors: vectors.data.map((one) => one.embedding.length), models: models.data.map((one) => one.id) }));
