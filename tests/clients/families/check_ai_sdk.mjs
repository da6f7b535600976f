/** The AI SDK with openai-compatible: text whole and streamed, tools, typed answers, embeddings, errors, retries. */

import assert from "node:assert/strict";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError,
  Output,
  ToolLoopAgent,
  embed,
  embedMany,
  generateObject,
  generateText,
  isStepCount,
  streamObject,
  streamText,
  tool,
} from "ai";
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

const Report = z.object({ city: z.enum(CITIES), degrees: z.number().int().min(-50).max(50) });
const TEMPERATURE = tool({
  description: "The temperature in a city.",
  inputSchema: z.object({ city: z.enum(CITIES) }),
  execute: async ({ city }) => DEGREES[city],
});

/** The provider of the SDK's models. Schemas of answers are sent, which it does not do unless it is told to. */
function provider(place, options = {}) {
  return createOpenAICompatible({
    name: "octavo",
    baseURL: place.baseUrl,
    apiKey: place.key,
    includeUsage: true,
    supportsStructuredOutputs: true,
    ...options,
  });
}

/** What a chat gives. Nothing is tried again unless it is asked for. */
function given(place, options = {}) {
  const model = provider(place).chatModel(place.model);
  return { model, prompt: QUESTION, temperature: 0, maxOutputTokens: 24, maxRetries: 0, ...options };
}

/** A chat with instructions and a history, and a completion; usage. */
async function chat(place) {
  const { text, usage, finishReason } = await generateText(given(place));
  assert(text);
  assert(["stop", "length"].includes(finishReason));
  assert.equal(usage.totalTokens, usage.inputTokens + usage.outputTokens);
  const messages = [
    { role: "user", content: QUESTION },
    { role: "assistant", content: text },
    { role: "user", content: [{ type: "text", text: "And in Oslo?" }] },
  ];
  assert((await generateText(given(place, { prompt: undefined, instructions: "Be brief.", messages }))).text);
  const model = provider(place).completionModel(place.model);
  const completion = await generateText(given(place, { model, prompt: "Once upon a time" }));
  assert(completion.text);
  assert(completion.usage.outputTokens > 0);
}

/** The text of the whole answer, and its usage; by a chat and by a completion. */
async function stream(place) {
  for (const model of [provider(place).chatModel(place.model), provider(place).completionModel(place.model)]) {
    const whole = await generateText(given(place, { model }));
    const streamed = streamText(given(place, { model }));
    const parts = await collect(streamed.textStream);
    assert.equal(parts.join(""), whole.text);
    assert(parts.length > 2);
    assert.equal((await streamed.usage).totalTokens, whole.usage.totalTokens);
  }
}

/** Eight at once, and a stream among them. */
async function asynchronous(place) {
  const whole = async () => (await generateText(given(place))).text;
  const found = await Promise.all([...Array.from({ length: 8 }, whole), streamText(given(place)).text]);
  assert.deepEqual(new Set(found), new Set([found[0]]));
  assert(found[0]);
}

/** A required call, its result, an answer, in two steps of the SDK; streamed; by an agent. */
async function tools(place) {
  const steps = { stopWhen: isStepCount(2), prepareStep: ({ stepNumber }) => stepNumber && { toolChoice: "none" } };
  const settings = { tools: { temperature: TEMPERATURE }, toolChoice: "required", maxOutputTokens: 96, ...steps };
  const whole = await generateText(given(place, settings));
  const [call] = whole.steps[0].toolCalls;
  assert(CITIES.includes(call.input.city));
  assert.equal(whole.steps[0].toolResults[0].output, DEGREES[call.input.city]);
  assert.equal(whole.steps.length, 2);
  assert(whole.text);
  const streamed = streamText(given(place, settings));
  const parts = await collect(streamed.stream);
  assert(parts.filter((part) => part.type === "tool-input-delta").length > 1);
  assert.deepEqual((await streamed.steps)[0].toolCalls[0].input, call.input);
  const { prompt, ...agent } = given(place, settings);
  assert((await new ToolLoopAgent(agent).generate({ prompt })).text);
}

/** Types of zod by `Output` and by `generateObject`, whole and streamed; a choice. */
async function structuredOutput(place) {
  const asked = given(place, { maxOutputTokens: 96 });
  const output = Output.object({ schema: Report });
  const whole = await generateText({ ...asked, output });
  assert.deepEqual(Report.parse(whole.output), whole.output);
  const streamed = streamText({ ...asked, output });
  const partial = await collect(streamed.partialOutputStream);
  assert(partial.length > 1);
  assert.deepEqual(await streamed.output, whole.output);
  assert.deepEqual((await generateObject({ ...asked, schema: Report })).object, whole.output);
  const objects = await collect(streamObject({ ...asked, schema: Report }).partialObjectStream);
  assert.deepEqual(objects.at(-1), whole.output);
  const choice = await generateText({ ...asked, output: Output.choice({ options: CITIES }) });
  assert(CITIES.includes(choice.output));
}

/** One vector for each text, and the usage. */
async function embeddings(place) {
  const model = provider(place).embeddingModel(place.model);
  const { embeddings: vectors, usage } = await embedMany({ model, values: ["a", "b c"], maxRetries: 0 });
  assert.equal(vectors.length, 2);
  assert(vectors[0].length > 1);
  assert(usage.tokens > 0);
  const { embedding } = await embed({ model, value: "b c", maxRetries: 0 });
  assert.equal(embedding.length, vectors[1].length);
  assert(embedding.every((value, at) => Math.abs(value - vectors[1][at]) < 1e-5));
}

/** Too long a prompt, an unknown model, a wrong field, a wrong key, and a key's limit, each with its status. */
async function errors(place) {
  const failed = async (statusCode, options) => {
    const error = await raises(APICallError, () => generateText(given(place, options)));
    assert.equal(error.statusCode, statusCode);
    assert.equal(error.isRetryable, statusCode === 429);
    assert.equal(error.message, error.data.error.message);
    return error.data.error;
  };
  assert.equal((await failed(400, { prompt: LONG_PROMPT })).code, "context_length_exceeded");
  assert.equal((await failed(400, { topP: 2 })).param, "top_p");
  await failed(404, { model: provider(place).chatModel("no-such-model") });
  await failed(401, { model: provider(place, { apiKey: WRONG_KEY }).chatModel(place.model) });
  const onError = () => {};
  const streamed = streamText(given(place, { prompt: LONG_PROMPT, onError }));
  const parts = await collect(streamed.stream);
  assert.equal(parts.find((part) => part.type === "error").error.statusCode, 400);
  if (place.limitedKey) {
    const model = provider(place, { apiKey: place.limitedKey }).chatModel(place.model);
    const limit = await raises(APICallError, async () => {
      await generateText(given(place, { model }));
      await generateText(given(place, { model }));
    });
    assert.equal(limit.statusCode, 429);
    assert(limit.isRetryable);
    assert(Number(limit.responseHeaders["retry-after"]) >= 1);
  }
}

/** 503 is an error that may be tried again; with retries the answer comes. */
async function retries(place) {
  await asleep(place, async () => {
    const refused = await raises(APICallError, () => generateText(given(place)));
    assert.equal(refused.statusCode, 503);
    assert(refused.isRetryable);
    assert((await generateText(given(place, { maxRetries: 8 }))).text);
  });
}

/** A stream and a call that are aborted by a signal, and a call that ran out of time. */
async function cancel(place) {
  const long = given(place, {
    prompt: COUNT,
    maxOutputTokens: LONG_ANSWER,
    providerOptions: { octavo: { ignore_eos: true } },
  });
  const controller = new AbortController();
  const parts = streamText({ ...long, abortSignal: controller.signal }).stream;
  const [read] = await Promise.all([collect(parts), assertCancelled(place, () => controller.abort())]);
  assert.equal(read.at(-1).type, "abort");
  const aborted = (abortSignal) => generateText({ ...long, abortSignal });
  assert.equal((await assertAborted(place, DOMException, aborted)).name, "AbortError");
  assert.equal((await raises(DOMException, () => generateText({ ...long, timeout: 1000 }))).name, "TimeoutError");
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
