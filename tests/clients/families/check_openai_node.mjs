/** openai for Node: chat, text, responses and embeddings, whole and streamed; tools, typed answers, errors, retries. */

import assert from "node:assert/strict";

import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
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
const Report = z.object({ city: z.enum(CITIES), degrees: z.number().int().min(-50).max(50) });
const TOOL = zodFunction({
  name: "temperature",
  description: "The temperature in a city.",
  parameters: Place,
  function: ({ city }) => DEGREES[city],
});

/** The client, without retries by default. */
function client(place, options = {}) {
  return new OpenAI({ baseURL: place.baseUrl, apiKey: place.key, maxRetries: 0, ...options });
}

/** What a chat completion gives. */
function given(place, options = {}) {
  return { model: place.model, messages: MESSAGES, temperature: 0, max_completion_tokens: 24, ...options };
}

/** Chat completions, completions and responses; two choices; the list of models. */
async function chat(place) {
  const one = client(place);
  assert((await collect(one.models.list())).some((model) => model.id === place.model));
  const found = await one.chat.completions.create(given(place, { n: 2 }));
  const [text, again] = found.choices.map((choice) => choice.message.content);
  assert(text);
  assert.equal(again, text);
  assert.equal(found.usage.total_tokens, found.usage.prompt_tokens + found.usage.completion_tokens);
  const completion = await one.completions.create({ ...prompted(place), logprobs: 2 });
  assert(completion.choices[0].text);
  assert(completion.choices[0].logprobs);
  const asked = { model: place.model, max_output_tokens: 24, temperature: 0 };
  const first = await one.responses.create({ ...asked, input: QUESTION });
  assert.equal(first.output_text, text);
  const second = await one.responses.create({ ...asked, input: "And in Oslo?", previous_response_id: first.id });
  assert(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens);
}

/** What a completion gives. */
function prompted(place) {
  return { model: place.model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 };
}

/** The text of the whole answer, and its usage; by all three APIs, and by the helpers that collect the parts. */
async function stream(place) {
  const one = client(place);
  const whole = await one.chat.completions.create(given(place));
  const { content } = whole.choices[0].message;
  const streamed = given(place, { stream: true, stream_options: { include_usage: true } });
  const chunks = await collect(await one.chat.completions.create(streamed));
  const texts = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content ?? ""));
  assert.equal(texts.join(""), content);
  assert(texts.length > 2);
  assert.equal(chunks.at(-1).usage.total_tokens, whole.usage.total_tokens);
  assert.equal(await one.chat.completions.stream(given(place)).finalContent(), content);
  const parts = await collect(await one.completions.create({ ...prompted(place), stream: true }));
  const text = (await one.completions.create(prompted(place))).choices[0].text;
  assert.equal(parts.map((part) => part.choices[0].text).join(""), text);
  const events = one.responses.stream({ model: place.model, input: QUESTION, max_output_tokens: 24, temperature: 0 });
  const deltas = (await collect(events)).filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), content);
  assert.equal((await events.finalResponse()).output_text, content);
}

/** Eight at once, and a stream among them. */
async function asynchronous(place) {
  const one = client(place);
  const whole = async () => (await one.chat.completions.create(given(place))).choices[0].message.content;
  const streamed = () => one.chat.completions.stream(given(place)).finalContent();
  const found = await Promise.all([...Array.from({ length: 8 }, whole), streamed()]);
  assert.deepEqual(new Set(found), new Set([found[0]]));
  assert(found[0]);
}

/** A required call, its result, an answer; parsed and streamed; the runner calls the function; by responses. */
async function tools(place) {
  const one = client(place);
  const asked = given(place, { tools: [TOOL], parallel_tool_calls: false, max_completion_tokens: 96 });
  const required = { ...asked, tool_choice: "required" };
  const { message } = (await one.chat.completions.create(required)).choices[0];
  const [call] = message.tool_calls;
  assert(CITIES.includes(JSON.parse(call.function.arguments).city));
  const parsed = (await one.chat.completions.parse(required)).choices[0].message.tool_calls[0].function;
  assert.deepEqual(parsed.parsed_arguments, JSON.parse(call.function.arguments));
  const result = { role: "tool", tool_call_id: call.id, content: "27" };
  const after = { ...asked, messages: [...MESSAGES, message, result], tool_choice: "none" };
  assert((await one.chat.completions.create(after)).choices[0].message.content);
  const events = one.chat.completions.stream(required);
  let streamed = "";
  events.on("tool_calls.function.arguments.delta", (event) => (streamed += event.arguments_delta));
  await events.done();
  assert.equal(streamed, call.function.arguments);
  const named = { type: "function", function: { name: "temperature" } };
  const runner = one.chat.completions.runTools({ ...asked, tool_choice: named });
  assert(Object.values(DEGREES).map(String).includes(await runner.finalFunctionToolCallResult()));
  await toolsByResponses(one, place);
}

/** A required call by responses, its result, an answer. */
async function toolsByResponses(one, place) {
  const tool = zodResponsesFunction({ name: "temperature", parameters: Place });
  const asked = { model: place.model, tools: [tool], temperature: 0, max_output_tokens: 96 };
  const first = await one.responses.parse({ ...asked, input: QUESTION, tool_choice: "required" });
  const call = first.output.find((item) => item.type === "function_call");
  assert(CITIES.includes(call.parsed_arguments.city));
  const result = { type: "function_call_output", call_id: call.call_id, output: "27" };
  const after = { ...asked, input: [result], previous_response_id: first.id, tool_choice: "none" };
  assert((await one.responses.create(after)).output_text);
}

/** Types of zod by chat completions, also streamed, and by responses; JSON mode. */
async function structuredOutput(place) {
  const one = client(place);
  const asked = given(place, { max_completion_tokens: 96, response_format: zodResponseFormat(Report, "report") });
  const { parsed } = (await one.chat.completions.parse(asked)).choices[0].message;
  assert.deepEqual(Report.parse(parsed), parsed);
  const streamed = await one.chat.completions.stream(asked).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.parsed, parsed);
  const text = { format: zodTextFormat(Report, "report") };
  const found = await one.responses.parse({ model: place.model, input: QUESTION, text, max_output_tokens: 96 });
  assert.deepEqual(Report.parse(found.output_parsed), found.output_parsed);
  const loose = { ...asked, response_format: { type: "json_object" }, max_completion_tokens: 400 };
  const [choice] = (await one.chat.completions.create(loose)).choices;
  if (choice.finish_reason === "stop") {
    assert.equal(typeof JSON.parse(choice.message.content), "object");
  }
}

/** One vector for each text, also in base64, which the client asks for by itself. */
async function embeddings(place) {
  const one = client(place);
  const asked = { model: place.model, input: ["a", "b c"] };
  const floats = (await one.embeddings.create({ ...asked, encoding_format: "float" })).data;
  assert.equal(floats.length, 2);
  assert(floats[0].embedding.length > 1);
  const plain = (await one.embeddings.create(asked)).data;
  for (const [index, { embedding }] of plain.entries()) {
    assert.equal(embedding.length, floats[0].embedding.length);
    assert(embedding.every((value, at) => Math.abs(value - floats[index].embedding[at]) < 1e-5));
  }
}

/** Too long a prompt, an unknown model, a wrong field, a wrong key, and a key's limit, each as its own class. */
async function errors(place) {
  const create = (options, one = client(place)) => one.chat.completions.create(given(place, options));
  const long = { messages: [{ role: "user", content: LONG_PROMPT }] };
  assert.equal((await raises(OpenAI.BadRequestError, () => create(long))).code, "context_length_exceeded");
  await raises(OpenAI.BadRequestError, () => create({ ...long, stream: true }));
  assert.equal((await raises(OpenAI.BadRequestError, () => create({ top_p: 2 }))).param, "top_p");
  await raises(OpenAI.NotFoundError, () => create({ model: "no-such-model" }));
  await raises(OpenAI.AuthenticationError, () => create({}, client(place, { apiKey: WRONG_KEY })));
  if (place.limitedKey) {
    const limited = client(place, { apiKey: place.limitedKey });
    const twice = async () => [await create({}, limited), await create({}, limited)];
    const refused = await raises(OpenAI.RateLimitError, twice);
    assert.equal(refused.code, "rate_limit_exceeded");
    assert(Number(refused.headers.get("retry-after")) >= 1);
  }
}

/** 503 is an `InternalServerError`; with retries the answer comes. */
async function retries(place) {
  await asleep(place, async () => {
    const refused = await raises(OpenAI.InternalServerError, () => client(place).chat.completions.create(given(place)));
    assert.equal(refused.status, 503);
    const found = await client(place, { maxRetries: 8 }).chat.completions.create(given(place));
    assert(found.choices[0].message.content);
  });
}

/** A stream that is left, one whose controller aborts it, a call with a signal, and one that ran out of time. */
async function cancel(place) {
  const one = client(place);
  const messages = [{ role: "user", content: COUNT }];
  const long = given(place, { messages, max_completion_tokens: LONG_ANSWER, ignore_eos: true });
  const left = (await one.chat.completions.create({ ...long, stream: true }))[Symbol.asyncIterator]();
  await left.next();
  await assertCancelled(place, () => left.return());
  const aborted = await one.chat.completions.create({ ...long, stream: true });
  await assertCancelled(place, () => aborted.controller.abort());
  await assertAborted(place, OpenAI.APIUserAbortError, (signal) => one.chat.completions.create(long, { signal }));
  const slow = client(place, { timeout: 1000 });
  await raises(OpenAI.APIConnectionTimeoutError, () => slow.chat.completions.create(long));
  await assertIdle(place);
}

await run({
  chat,
  stream,
  asynchronous,
  tools,
  structured_output: structuredOutput,
  embeddings,
  errors,
  retries,
  cancel,
});
