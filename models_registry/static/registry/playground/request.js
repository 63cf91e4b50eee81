// The body of a request, out of a conversation and the settings.

const NUM_ALTERNATIVES = 5;
const TOKENS_OF_IMAGE = 2048;
const TOKENS_OF_TEMPLATE = 64;
const CHARS_OF_TOKEN = 2; // few texts have less for each

const tokenIds = (text) => text.split(/[\s,[\]]+/).filter(Boolean).map(Number);

/** At least as many tokens as the messages are: no tokenizer makes more of them than bytes. */
function mostTokens(messages) {
  const text = JSON.stringify(messages, (key, value) => (key === "image_url" ? "" : value));
  const images = messages.flatMap(({ content }) => (Array.isArray(content) ? content : [])).filter(({ type }) => type === "image_url");
  return new TextEncoder().encode(text).length + TOKENS_OF_IMAGE * images.length + TOKENS_OF_TEMPLATE;
}

/** Members that both kinds of requests have: whatever differs from the server's own default. */
function sampling(model, settings) {
  const body = {};
  for (const { name, fallback, always } of settings.specs) {
    const value = settings.chosen(name) ?? model.sampling[name] ?? fallback;
    if (value !== null && (always || value !== fallback)) body[name] = value;
  }
  const stops = settings.text("stop-strings").split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));
  if (stops.length) body.stop = stops;
  const schema = settings.json("schema");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  return body;
}

export function chatBody(model, messages, settings) {
  const system = settings.text("system").trim();
  const body = { model: model.name, messages: [...(system ? [{ role: "system", content: system }] : []), ...messages], ...sampling(model, settings) };
  const tools = settings.json("tools");
  if (tools?.length) Object.assign(body, { tools, ...(settings.text("tool_choice") === "auto" ? {} : { tool_choice: settings.text("tool_choice") }) });
  if (model.has_effort && settings.text("effort")) body.reasoning_effort = settings.text("effort");
  // Left out, an answer has as much as fits.
  const taken = mostTokens([...body.messages, ...(tools ?? []), body.response_format ?? ""]);
  if (settings.chosen("max_tokens") === null && taken + body.max_tokens > model.context) delete body.max_tokens;
  if (settings.wantsProbabilities()) Object.assign(body, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
  return Object.assign(body, settings.json("members") ?? {});
}

/** Throws an Error for a prompt that can't be one. */
export function completionBody(model, prompt, settings) {
  const body = { model: model.name, prompt: model.has_text ? prompt : tokenIds(prompt), ...sampling(model, settings) };
  if (!model.has_text && !body.prompt.every(Number.isInteger)) throw new Error("The prompt must be token ids: whole numbers.");
  if (!model.has_text) body.return_token_ids = true;
  // Left out, a completion would have 16 tokens.
  const room = model.context - (model.has_text ? Math.ceil(prompt.length / CHARS_OF_TOKEN) + 1 : body.prompt.length);
  if (settings.chosen("max_tokens") === null) body.max_tokens = Math.max(1, Math.min(body.max_tokens, room));
  if (settings.wantsProbabilities()) body.logprobs = NUM_ALTERNATIVES;
  return Object.assign(body, settings.json("members") ?? {});
}

/** The tokens of a chunk's choice with their probabilities; none where they weren't asked for. */
export function tokensOf({ logprobs }) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map(({ token, logprob, top_logprobs: top }) => ({ token, logprob, top }));
  return logprobs.tokens.map((token, i) => ({
    token,
    logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs[i] ?? {}).map(([other, logprob]) => ({ token: other, logprob })),
  }));
}
