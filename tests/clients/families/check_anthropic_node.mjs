/** @anthropic-ai/sdk: messages whole and streamed, counted tokens, tools, typed answers, errors, retries, cancel. */

import assert from "node:assert/strict";

import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

import {
  CITIES,
  COUNT,
  DEGREES,
  LONG_ANSWER,
  LONG_PROMPT,
  QUESTION,
  WRONG_KEY,
  asleep,
  assertAborted,
  assertCancelled,
  assertIdle,
  collect,
  raises,
  run,
} from "./checks.mjs";

const MESSAGES = [{ role: "user", content: QUESTION }];
const Place = z.object({ city: z.enum(CITIES) });
// The client takes bounds of numbers out of a schema, so a small model would not keep them.
const Report = z.object({ city: z.enum(CITIES), warm: z.boolean() });
const TOOL = {
  name: "temperature",
  description: "The temperature in a city.",
  input_schema: { type: "object", properties: { city: { enum: CITIES } }, required: ["city"] },
};

/** The client, without retries by default. */
function client(place, options = {}) {
  return new Anthropic({ baseURL: place.url, apiKey: place.key, maxRetries: 0, ...options });
}

/** What a message gives. The client's types have no temperature any more; the API keeps the field. */
function given(place, options = {}) {
  return { model: place.model, messages: MESSAGES, temperature: 0, max_tokens: 24, ...options };
}

/** The text of a message. */
function textOf(message) {
  return message.content.flatMap((block) => (block.type === "text" ? [block.text] : [])).join("");
}

/** A message with a system prompt and its usage, a history, counted tokens, the list of models, the beta client. */
async function chat(place) {
  const one = client(place);
  assert((await collect(one.models.list())).some((model) => model.id === place.model));
  const system = "Answer briefly.";
  const first = await one.messages.create(given(place, { system }));
  assert(textOf(first));
  const counted = await one.messages.countTokens({ model: place.model, messages: MESSAGES, system });
  assert.equal(counted.input_tokens, first.usage.input_tokens + first.usage.cache_read_input_tokens);
  const answered = { role: first.role, content: first.content };
  const messages = [...MESSAGES, answered, { role: "user", content: "And in Oslo?" }];
  assert(textOf(await one.messages.create(given(place, { messages }))));
  const again = await one.beta.messages.create(given(place, { system, betas: ["prompt-caching-2024-07-31"] }));
  assert.equal(textOf(again), textOf(first));
}

/** The text of the whole message, by the helper and by raw events. */
async function stream(place) {
  const one = client(place);
  const whole = textOf(await one.messages.create(given(place)));
  const helper = one.messages.stream(given(place));
  const texts = [];
  helper.on("text", (text) => texts.push(text));
  assert.equal(textOf(await helper.finalMessage()), whole);
  assert.equal(texts.join(""), whole);
  assert(texts.length > 2);
  const raw = await collect(await one.messages.create(given(place, { stream: true })));
  assert.deepEqual([raw[0].type, raw.at(-1).type], ["message_start", "message_stop"]);
  assert.equal(raw.map((event) => event.delta?.text ?? "").join(""), whole);
}

/** Eight at once, and a stream among them. */
async function asynchronous(place) {
  const one = client(place);
  const whole = async () => textOf(await one.messages.create(given(place)));
  const found = await Promise.all([...Array.from({ length: 8 }, whole), one.messages.stream(given(place)).finalText()]);
  assert.deepEqual(new Set(found), new Set([found[0]]));
  assert(found[0]);
}

/** A required call, its result, an answer; a named one; streamed, the call is the same. */
async function tools(place) {
  const one = client(place);
  const asked = given(place, { tools: [TOOL], max_tokens: 96 });
  const required = { ...asked, tool_choice: { type: "any", disable_parallel_tool_use: true } };
  const message = await one.messages.create(required);
  const call = message.content.find((block) => block.type === "tool_use");
  assert(CITIES.includes(call.input.city));
  assert.equal(message.stop_reason, "tool_use");
  const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "27" }] };
  const messages = [...MESSAGES, { role: "assistant", content: message.content }, result];
  assert(textOf(await one.messages.create({ ...asked, messages, tool_choice: { type: "none" } })));
  const named = await one.messages.create({ ...asked, tool_choice: { type: "tool", name: "temperature" } });
  assert.equal(named.content.at(-1).type, "tool_use");
  const helper = one.messages.stream(required);
  const parts = [];
  helper.on("inputJson", (part) => parts.push(part));
  const streamed = (await helper.finalMessage()).content.find((block) => block.type === "tool_use");
  assert.deepEqual(streamed.input, call.input);
  assert.deepEqual(JSON.parse(parts.join("")), call.input);
  assert(parts.length > 1);
}

/** The client's runner calls the function that the model asks for, and sends its result. */
async function toolRunner(place) {
  const called = [];
  const tool = betaZodTool({
    name: "temperature",
    description: "The temperature in a city.",
    inputSchema: Place,
    run: ({ city }) => {
      called.push(city);
      return String(DEGREES[city]);
    },
  });
  const asked = given(place, { tools: [tool], max_tokens: 96, max_iterations: 2 });
  const choice = { type: "tool", name: "temperature", disable_parallel_tool_use: true };
  const runner = client(place).beta.messages.toolRunner({ ...asked, tool_choice: choice });
  const messages = await collect(runner);
  assert.equal(messages.length, 2);
  assert(called.length > 0 && called.every((city) => CITIES.includes(city)));
}

/** `parse` with a type of zod, whole and streamed. */
async function structuredOutput(place) {
  const one = client(place);
  const asked = given(place, { max_tokens: 96, output_config: { format: zodOutputFormat(Report) } });
  const found = (await one.messages.parse(asked)).parsed_output;
  assert.deepEqual(Report.parse(found), found);
  assert.deepEqual((await one.messages.stream(asked).finalMessage()).parsed_output, found);
}

/** Too long a prompt, an unknown model, a wrong field, a wrong key, and a key's limit, each as its own class. */
async function errors(place) {
  const create = (options, one = client(place)) => one.messages.create(given(place, options));
  const long = { messages: [{ role: "user", content: LONG_PROMPT }] };
  assert.match((await raises(Anthropic.BadRequestError, () => create(long))).message, /prompt is too long/);
  await raises(Anthropic.BadRequestError, () => create({ ...long, stream: true }));
  assert.match((await raises(Anthropic.BadRequestError, () => create({ temperature: 2 }))).apiMessage, /temperature/);
  await raises(Anthropic.NotFoundError, () => create({ model: "no-such-model" }));
  const refused = await raises(Anthropic.AuthenticationError, () => create({}, client(place, { apiKey: WRONG_KEY })));
  assert.equal(refused.type, "authentication_error");
  assert(refused.requestID);
  if (place.limitedKey) {
    const limited = client(place, { apiKey: place.limitedKey });
    const twice = async () => [await create({}, limited), await create({}, limited)];
    const limit = await raises(Anthropic.RateLimitError, twice);
    assert.equal(limit.type, "rate_limit_error");
    assert(Number(limit.headers.get("retry-after")) >= 1);
  }
}

/** 503 is a `ServiceUnavailableError`; with retries the message comes. */
async function retries(place) {
  await asleep(place, async () => {
    const refused = () => client(place).messages.create(given(place));
    assert.equal((await raises(Anthropic.ServiceUnavailableError, refused)).type, "overloaded_error");
    assert(textOf(await client(place, { maxRetries: 8 }).messages.create(given(place))));
  });
}

/** A stream that is left, a helper and a call with a signal, and one that ran out of time. */
async function cancel(place) {
  const one = client(place);
  const long = given(place, { messages: [{ role: "user", content: COUNT }], max_tokens: LONG_ANSWER });
  const left = (await one.messages.create({ ...long, stream: true }))[Symbol.asyncIterator]();
  await left.next();
  await assertCancelled(place, () => left.return());
  await assertAborted(place, Anthropic.APIUserAbortError, (signal) => one.messages.stream(long, { signal }).done());
  await assertAborted(place, Anthropic.APIUserAbortError, (signal) => one.messages.create(long, { signal }));
  const slow = client(place, { timeout: 1000 });
  await raises(Anthropic.APIConnectionTimeoutError, () => slow.messages.create(long));
  await assertIdle(place);
}

await run({
  chat,
  stream,
  asynchronous,
  tools: [tools, toolRunner],
  structured_output: structuredOutput,
  embeddings: "Anthropic's API has no embeddings",
  errors,
  retries,
  cancel,
});
