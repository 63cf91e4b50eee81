// The playground: one WebSocket to /v1/stream, the same request bodies as over HTTP.
import { $, $$, call, duration, h, pageData, toast } from "./kit.js";
import { drawMarkdown } from "./markdown.js";

const models = pageData("models");
const keyRequired = pageData("key-required");
const saved = pageData("chat");
let chatId = saved?.id ?? null; // under which the conversation is kept; null before its first turn has ended

// name, label, default (not sent), range, step; "slider" ones are always in sight
const PARAMETERS = [
  { name: "temperature", label: "Temperature", fallback: 1, low: 0, high: 2, step: 0.05, slider: true },
  { name: "top_p", label: "Top p", fallback: 1, low: 0.01, high: 1, step: 0.01, slider: true },
  { name: "max_tokens", label: "Longest answer", fallback: 256, low: 1, high: 1048576, step: 1, always: true },
  { name: "top_k", label: "Top k (0: off)", fallback: 0, low: 0, high: 1000000, step: 1 },
  { name: "min_p", label: "Min p", fallback: 0, low: 0, high: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", fallback: 1, low: 0.01, high: 10, step: 0.01 },
  { name: "presence_penalty", label: "Presence penalty", fallback: 0, low: -2, high: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", fallback: 0, low: -2, high: 2, step: 0.1 },
  { name: "seed", label: "Seed (empty: a new one)", fallback: null, low: 0, high: Number.MAX_SAFE_INTEGER, step: 1 },
];
const inputs = new Map();
let stopField = null;

let messages = []; // of the conversation so far, chat only
let running = null; // the request in flight: its id, request body, text so far, figures
let socket = null;
let nextId = 1;

// --- controls ------------------------------------------------------------------------------------

function control(spec) {
  const input = h("input", {
    id: `p-${spec.name}`,
    type: "number",
    min: spec.low,
    max: spec.high,
    step: spec.slider ? "any" : spec.step,
    value: spec.fallback ?? "",
    oninput: drawCurl,
  });
  inputs.set(spec.name, input);
  const own = h("span.form-text.m-0", { id: `own-${spec.name}` });
  input.setAttribute("aria-describedby", own.id);
  input.classList.add("parameter");
  const head = h("div.spread.flex-nowrap", {}, h("label", { for: input.id }, spec.label), input);
  if (!spec.slider) return h("div", {}, head, own);
  const range = h("input", { type: "range", min: spec.low, max: spec.high, step: spec.step, value: spec.fallback, "aria-label": `${spec.label}, slider` });
  range.addEventListener("input", () => {
    input.value = range.value;
    drawCurl();
  });
  input.addEventListener("input", () => (range.value = input.value));
  input.addEventListener("blazr-set", () => (range.value = input.value));
  return h("div", {}, head, range, own);
}

/** What a parameter is without anybody's choice: the model's own recommendation, else the server's default. */
const defaultOf = (spec, row = model()) => row.sampling[spec.name] ?? spec.fallback;

function setInput(spec, value) {
  inputs.get(spec.name).value = value ?? "";
  inputs.get(spec.name).dispatchEvent(new Event("blazr-set"));
}

let before = null; // the model whose recommendations the inputs show

/** Take over the recommendations of the chosen model where nobody chose otherwise, and say whose they are. */
function drawDefaults() {
  for (const spec of PARAMETERS) {
    const shown = inputs.get(spec.name).value;
    if (!before || shown === String(defaultOf(spec, before) ?? "")) setInput(spec, defaultOf(spec));
    const own = model().sampling[spec.name];
    $(`#own-${spec.name}`).textContent = own === undefined ? "" : `the model's own: ${own} (generation_config.json)`;
  }
  before = model();
}

const mode = () => $("input[name=mode]:checked").value;
const model = () => models.find((item) => item.name === $("#model").value);

/** The request's body, without members at their default. */
function requestBody(prompt) {
  const body = { model: model().name };
  if (mode() === "chat") {
    const system = $("#system").value.trim();
    body.messages = [...(system ? [{ role: "system", content: system }] : []), ...messages, { role: "user", content: prompt }];
  } else body.prompt = model().has_text ? prompt : tokenIds(prompt);
  for (const spec of PARAMETERS) {
    const text = inputs.get(spec.name).value;
    if (text === "" || (!spec.always && Number(text) === spec.fallback)) continue;
    body[spec.name] = Number(text);
  }
  const stops = stopField.value.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));
  if (stops.length) body.stop = stops;
  if (!model().has_text) body.return_token_ids = true;
  return body;
}

const tokenIds = (text) => text.split(/[\s,[\]]+/).filter(Boolean).map(Number);

const shellQuote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function drawCurl() {
  if (!model()) return;
  const path = mode() === "chat" ? "/v1/chat/completions" : "/v1/completions";
  const prompt = $("#prompt").value || (model().has_text ? "…" : "1, 2, 3");
  const body = { ...(running?.request ?? requestBody(prompt)), stream: true };
  $("#curl").textContent = [
    `curl -N ${location.origin}${path}`,
    ...(keyRequired ? ['-H "Authorization: Bearer $BLAZR_API_KEY"'] : []),
    '-H "Content-Type: application/json"',
    `-d ${shellQuote(JSON.stringify(body, null, 1))}`,
  ].join(" \\\n  ");
}

function drawMode() {
  drawDefaults();
  const chat = $("input[name=mode][value=chat]");
  chat.disabled = !model().has_chat;
  if (chat.disabled && chat.checked) $("input[name=mode][value=completion]").checked = true;
  const isChat = mode() === "chat";
  $("#system-field").hidden = !isChat;
  $("#send").textContent = isChat ? "Send" : "Complete";
  $("#prompt-label").textContent = isChat ? "Message" : "Prompt";
  $("#prompt").placeholder = isChat ? "Write a message" : model().has_text ? "Text to go on from" : "Token ids, such as 1, 15, 204";
  $("#keys").textContent = isChat ? "Enter sends, Shift+Enter starts a new line" : "Ctrl+Enter completes";
  let hint = "";
  if (!model().has_text) hint = "It has no tokenizer: prompts and answers are token ids.";
  else if (!model().has_chat) hint = "It has no chat template: completion only.";
  $("#model-hint").textContent = hint;
  drawCurl();
}

// --- conversation ----------------------------------------------------------------------------------

const LOOKS = { user: "ms-auto.bg-body-tertiary.border.rounded.px-3.py-2", assistant: "w-100" };

function addTurn(kind, who, text = "") {
  const place = h("div.text", {});
  const turn = h(`article.turn.${kind}.${LOOKS[kind.split(".")[0]]}`, {}, h("div.small.muted", {}, who), place);
  const log = $("#conversation");
  if (!log.querySelector(".turn")) log.replaceChildren();
  log.append(turn);
  if (kind.startsWith("assistant") && mode() === "chat") drawMarkdown(place, text);
  else place.append(text);
  if (mode() === "completion") place.classList.add("font-monospace");
  log.scrollTop = log.scrollHeight;
  return { turn, place };
}

function clearConversation() {
  messages = [];
  chatId = null;
  history.replaceState(null, "", location.pathname);
  $("#conversation").replaceChildren(h("p.muted", {}, "What the model writes appears here, token by token. Chats are kept."));
  $("#readout").replaceChildren();
  drawCurl();
}

/** A random UUID; crypto.randomUUID exists over HTTPS and on loopback only. */
function newId() {
  const parts = [...crypto.getRandomValues(new Uint8Array(16))];
  parts[6] = (parts[6] & 15) | 64;
  parts[8] = (parts[8] & 63) | 128;
  const text = parts.map((part) => part.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** Keep the conversation for the account, so that it is there after a reload. */
async function keepChat() {
  const params = {};
  for (const spec of PARAMETERS) {
    const text = inputs.get(spec.name).value;
    if (text !== "" && Number(text) !== defaultOf(spec)) params[spec.name] = Number(text);
  }
  const isNew = chatId === null;
  chatId ??= newId();
  const body = { model: model().name, mode: mode(), system: $("#system").value, params, turns: messages };
  try {
    const { title } = await call("PUT", `/registry/chats/${chatId}`, body);
    history.replaceState(null, "", `?chat=${chatId}`);
    if (!isNew) return;
    $("#chats .muted")?.remove();
    $("#chats").prepend(h("li", {}, h("a.text-truncate", { href: `?chat=${chatId}`, "aria-current": "true" }, title)));
  } catch (error) {
    toast(`The chat isn't kept: ${error.message}`, "warn");
  }
}

/** Show a chat that was kept. */
function restore(chat) {
  $("#system").value = chat.system ?? "";
  for (const spec of PARAMETERS) if (spec.name in (chat.params ?? {})) setInput(spec, chat.params[spec.name]);
  messages = chat.turns;
  $("#conversation").replaceChildren();
  for (const { role, content } of messages) addTurn(role, role === "user" ? (mode() === "chat" ? "You" : "Prompt") : chat.model, content);
  drawCurl();
}

function drawReadout(state) {
  const part = (label, value) => h("span", {}, `${label} `, h("b", {}, value));
  const parts = [];
  if (state.ttft !== null) parts.push(part("first token", duration(state.ttft)));
  else parts.push(h("span.pulse", {}, state.accepted ? "reading the prompt …" : "waiting for the model …"));
  if (state.tokens) parts.push(part("tokens", String(state.tokens)));
  if (state.rate) parts.push(part("tokens/s", state.rate.toFixed(1)));
  if (state.promptTokens) parts.push(part("prompt", `${state.promptTokens}${state.cachedTokens ? ` (${state.cachedTokens} cached)` : ""}`));
  if (state.reason) parts.push(part("ended by", state.reason));
  $("#readout").replaceChildren(...parts);
}

// --- the socket ------------------------------------------------------------------------------------

function connected() {
  if (socket?.readyState === WebSocket.OPEN) return Promise.resolve(socket);
  return new Promise((resolve, reject) => {
    const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`;
    socket = new WebSocket(url);
    socket.addEventListener("open", () => resolve(socket));
    socket.addEventListener("message", (event) => onFrame(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      const reason = event.code === 4401 ? "Sign in again: the session has ended." : "The connection to the server was lost.";
      reject(new Error(reason));
      if (running) finish({ error: reason });
    });
  });
}

function onFrame(frame) {
  if (frame.type === "error" && frame.id === null) return toast(frame.error.message, "bad");
  if (!running || frame.id !== running.id) return;
  if (frame.type === "accepted") {
    running.accepted = true;
    drawReadout(running);
  } else if (frame.type === "chunk") onChunk(frame.chunk);
  else if (frame.type === "done") {
    const { usage, ttft_s: ttft, duration_s: total } = frame;
    running.ttft = ttft ?? running.ttft;
    running.tokens = usage.completion_tokens;
    running.promptTokens = usage.prompt_tokens;
    running.cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
    if (usage.completion_tokens > 1 && total > ttft) running.rate = (usage.completion_tokens - 1) / (total - ttft);
    finish({});
  } else if (frame.type === "cancelled") finish({ reason: "you" });
  else if (frame.type === "error") finish({ error: frame.error.message });
}

function onChunk(chunk) {
  const choice = chunk.choices[0];
  if (!choice) return;
  const now = performance.now();
  let text = choice.delta?.content ?? choice.text ?? "";
  if (!running.hasText && choice.token_ids?.length) text = `${choice.token_ids.join(", ")}, `;
  if (choice.finish_reason) running.reason = choice.finish_reason;
  if (!text) return;
  if (running.ttft === null) {
    running.ttft = (now - running.startedAt) / 1000;
    running.firstAt = now;
  }
  running.chunks += 1;
  running.tokens = running.chunks;
  if (now > running.firstAt + 200) running.rate = (running.chunks - 1) / ((now - running.firstAt) / 1000);
  running.text += text;
  running.pending += text;
  if (!running.frame) running.frame = requestAnimationFrame(flushText);
}

/** Text goes into the page once per frame, however fast it comes; Markdown is drawn anew, at most ten times a second. */
function flushText() {
  if (!running) return;
  running.frame = null;
  const log = $("#conversation");
  const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  if (!running.isChat) running.place.append(running.pending);
  else if (performance.now() - running.drawnAt > 100) {
    running.drawnAt = performance.now();
    drawMarkdown(running.place, running.text);
  } else running.frame = requestAnimationFrame(flushText);
  running.pending = "";
  if (follow) log.scrollTop = log.scrollHeight;
  drawReadout(running);
}

function finish({ error = null, reason = null }) {
  const state = running;
  if (reason) state.reason = reason;
  state.drawnAt = 0;
  flushText();
  cancelAnimationFrame(state.frame);
  running = null;
  state.turn.classList.remove("live");
  if (error) {
    state.turn.append(h("p.note.bad", { role: "alert" }, error));
    $("#readout").replaceChildren();
  } else drawReadout({ ...state, ttft: state.ttft ?? 0 });
  if (state.text) {
    const turns = [{ role: "user", content: state.prompt }, { role: "assistant", content: state.text }];
    if (state.isChat) messages.push(...turns);
    else messages = turns;
    keepChat();
  } else if (state.isChat && error) $("#prompt").value ||= state.prompt;
  setBusy(false);
  drawCurl();
}

function setBusy(busy) {
  $("#stop").hidden = !busy;
  $("#send").hidden = busy;
  for (const element of [$("#model"), $("#clear"), ...$$("input[name=mode]")]) element.disabled = busy;
  if (!busy) drawMode();
  if (busy) $("#stop").focus();
  else $("#prompt").focus();
}

$("#composer")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const prompt = $("#prompt").value;
  if (running || !prompt.trim()) return;
  for (const input of inputs.values()) if (!input.reportValidity()) return;
  const isChat = mode() === "chat";
  const body = requestBody(prompt);
  if (Array.isArray(body.prompt) && body.prompt.some((id) => !Number.isInteger(id))) return toast("The prompt must be token ids: whole numbers.", "bad");
  if (isChat) addTurn("user", "You", prompt);
  else addTurn("user", "Prompt", prompt);
  const { turn, place } = addTurn("assistant.live", body.model);
  running = {
    id: `play-${nextId++}`, prompt, isChat, turn, place, request: body, hasText: model().has_text,
    text: "", pending: "", frame: null, drawnAt: 0, accepted: false, ttft: null, firstAt: 0, chunks: 0, tokens: 0, rate: 0, reason: "",
    promptTokens: 0, cachedTokens: 0, startedAt: performance.now(),
  };
  if (isChat) $("#prompt").value = "";
  setBusy(true);
  drawReadout(running);
  const { id } = running;
  try {
    const open = await connected();
    open.send(JSON.stringify({ type: isChat ? "chat" : "completion", id, request: body }));
  } catch (error) {
    if (running?.id === id) finish({ error: error.message });
  }
});

function stop() {
  if (!running) return;
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "cancel", id: running.id }));
  else finish({ reason: "you" });
}

if (models.length) {
  for (const spec of PARAMETERS) $(spec.slider || spec.always ? "#sliders" : "#more").append(control(spec));
  stopField = h("textarea", { id: "p-stop", rows: 2, spellcheck: "false", oninput: drawCurl });
  $("#more").append(h("div.field", {}, h("label", { for: "p-stop" }, "Stop strings, one a line"), stopField, h("div.form-text", {}, "\\n stands for a line break")));
  const wanted = saved?.model ?? new URLSearchParams(location.search).get("model");
  if (models.some((item) => item.name === wanted)) $("#model").value = wanted;
  $(`input[name=mode][value=${saved?.mode ?? (model().has_chat ? "chat" : "completion")}]`).checked = true;
  drawMode();
  if (saved) restore(saved);
  else $("#conversation").replaceChildren(h("p.muted", {}, "What the model writes appears here, token by token. Chats are kept."));
  $("#model").addEventListener("change", drawMode);
  for (const radio of $$("input[name=mode]")) radio.addEventListener("change", () => (clearConversation(), drawMode()));
  for (const selector of ["#prompt", "#system"]) $(selector).addEventListener("input", drawCurl);
  $("#prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || (mode() === "chat" && !event.shiftKey)) {
      event.preventDefault();
      $("#composer").requestSubmit();
    }
  });
  addEventListener("keydown", (event) => event.key === "Escape" && stop());
  $("#stop").addEventListener("click", stop);
  $("#clear").addEventListener("click", clearConversation);
  $("#defaults").addEventListener("click", () => {
    for (const spec of PARAMETERS) {
      setInput(spec, defaultOf(spec));
    }
    stopField.value = "";
    drawCurl();
  });
  $("#copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText($("#curl").textContent);
      toast("Copied.");
    } catch {
      getSelection().selectAllChildren($("#curl"));
      toast("Selected: copy it with the keyboard.", "warn");
    }
  });
}
