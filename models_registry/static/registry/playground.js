// The playground: one or two columns, a composer for both, settings, the request as code, and kept chats.
import { $, $$, bytes, copy, h, pageData, toast } from "./kit.js";
import { Chats, conversation } from "./playground/chats.js";
import { codeOf, shortened } from "./playground/code.js";
import { Column } from "./playground/column.js";
import { Attachments } from "./playground/images.js";
import { icon, iconButton, tabs } from "./playground/parts.js";
import * as fields from "./playground/settings.js";
import { Tree } from "./playground/tree.js";

const models = pageData("models");
const limits = pageData("limits");
const saved = pageData("chat");
const WIDE = { "chats-panel": "(min-width: 1200px)", "settings-panel": "(min-width: 1000px)" };
const EXAMPLES = ["What does a function return?", "Write a function that reverses a list.", "Explain how a dict finds its keys, with an example."];

const columns = [];
let chats = null;
let attachments = null;
let language = "curl";
let code = "";

const mode = () => $("input[name=mode]:checked").value;
const isChat = () => mode() === "chat";
const isBusy = () => columns.some((column) => column.isRunning);

// --- what columns ask of the page ----------------------------------------------------------------

const page = {
  isChat,
  isBusy,
  changed: draw,
  mayStart: fields.check,
  /** Throws an Error where the server would take the request for too large. */
  checkSize(body) {
    const { size } = new Blob([JSON.stringify(body)]);
    if (size > limits.body_bytes - 200) throw new Error(`The request has ${bytes(size)}; the server takes ${bytes(limits.body_bytes)}. Begin a new chat, or send less.`);
  },
  refused: (words) => toast(words, "bad"),
  welcome: (column) =>
    h(
      "div.welcome.muted",
      {},
      icon("speech"),
      h("p.h2", {}, column.model.name),
      h("p", {}, isChat() ? "What the model writes appears here, token by token. Chats are kept for your account alone." : "Write the beginning of a text; the model goes on from it."),
      column === columns[0] && isChat()
        ? h("div.hstack.gap-2.flex-wrap.justify-content-center", {}, ...EXAMPLES.map((text) => h("button.btn.btn-outline-secondary.btn-sm", { type: "button", onclick: () => ask(text) }, text)))
        : "",
    ),
  started() {
    drawBusy();
    draw();
  },
  /** A question is kept before its answer: a reload in between loses the answer alone. */
  accepted: keep,
  ended(column) {
    drawBusy();
    draw();
    if (column.isRunning || isBusy()) return;
    const last = column.tree.turns[column.tree.leaf];
    $("#said").textContent = last?.problem ? "" : `${column.model.name} has answered.`;
    const hasAnswer = ({ tree }) => tree.turns.some(({ role, content, reasoning, tool_calls: calls }) => role === "assistant" && (content || reasoning || calls));
    if (chats.id || columns.some(hasAnswer)) keep();
  },
  refusedMessage(turn) {
    if (turn.role !== "user" || $("#prompt").value) return;
    $("#prompt").value = turn.content;
    attachments.restore(turn.images ?? []);
  },
};

function keep() {
  const second = columns[1] ? { second: conversation(columns[1]) } : {};
  chats.keep({ ...conversation(columns[0]), ...second, mode: mode(), ...fields.stored() });
}

function ask(text) {
  $("#prompt").value = text;
  $("#prompt").focus();
  draw();
}

// --- drawing ---------------------------------------------------------------------------------------

function draw() {
  if (!columns.length) return;
  const chat = $("input[name=mode][value=chat]");
  chat.disabled = isBusy() || columns.some(({ model }) => !model.has_chat);
  if (columns.some(({ model }) => !model.has_chat) && chat.checked) {
    $("input[name=mode][value=completion]").checked = true;
    for (const column of columns) column.draw();
  }
  const [{ model }] = columns;
  fields.drawDefaults(model);
  for (const column of columns) column.drawHint();
  for (const element of $$("[data-chat-only]")) element.hidden = !isChat();
  $("#effort-field").hidden = !isChat() || !model.has_effort;
  $("#attach").hidden = !isChat() || Boolean(cannotSee());
  $("#prompt-label").textContent = isChat() ? "Message" : "Prompt";
  $("#prompt").placeholder = isChat() ? "Write a message" : model.has_text ? "Text to go on from" : "Token ids, such as 1, 15, 204";
  $("#keys").textContent = isChat() ? "Enter sends, Shift+Enter starts a new line" : "Ctrl+Enter completes";
  drawCode();
}

/** The code is long where messages have pictures: it is made while it can be seen. */
function drawCode() {
  if (!$("#code").checkVisibility()) return;
  try {
    const body = columns[0].nextBody($("#prompt").value, attachments?.images ?? []);
    code = codeOf(language, isChat(), body, limits.key_required);
    $("#code").textContent = shortened(code);
  } catch (error) {
    code = "";
    $("#code").textContent = error.message;
  }
}

function drawBusy() {
  const busy = isBusy();
  const focused = document.activeElement;
  $("#stop").hidden = !busy;
  $("#send").hidden = busy;
  for (const element of [$("#clear"), $("#compare"), ...$$("input[name=mode], .column-head :is(select, button)")]) element.disabled = busy;
  $("#compare").disabled ||= columns.length > 1;
  if (busy && focused === $("#send")) $("#stop").focus();
  if (!busy && (focused === $("#stop") || focused === document.body)) $("#prompt").focus();
}

/** The name of a chosen model that reads text only. */
const cannotSee = () => columns.find(({ model }) => !model.has_vision)?.model.name;

// --- columns ---------------------------------------------------------------------------------------

function openSecond(name, tree) {
  if (columns.length > 1) return;
  const select = $("#model").cloneNode(true);
  select.id = "model-2";
  select.setAttribute("aria-label", "Model of the second column");
  const closing = iconButton("close", "Close the second column", () => {
    columns.pop().element.remove();
    $("#columns").classList.remove("two");
    drawBusy();
    draw();
    $("#compare").focus();
  });
  const column = new Column({ select, models, page, tree, closing });
  select.value = models.some((item) => item.name === name) ? name : models[0].name;
  columns.push(column);
  $("#columns").append(column.element);
  $("#columns").classList.add("two");
  column.draw();
  for (const { log } of columns) log.scrollTop = log.scrollHeight;
  drawBusy();
  draw();
}

function compare() {
  const [{ model, tree }] = columns;
  const other = models.find((item) => item.name !== model.name && item.has_chat === model.has_chat) ?? model;
  openSecond(other.name, tree.copy());
  $("#model-2").focus();
}

/** Two columns draw with one seed: without one of the person's, this page chooses it. */
function shareSeed() {
  if (columns.length > 1 && fields.settings.chosen("seed") === null) fields.choose("seed", Math.floor(Math.random() * 1e6));
}

function startOver() {
  chats.forget();
  attachments.take();
  for (const column of columns) {
    column.tree = new Tree();
    column.draw();
  }
  draw();
  $("#prompt").focus();
}

function send() {
  const prompt = $("#prompt").value;
  const hasImages = isChat() && attachments.images.length > 0;
  if (isBusy() || (!prompt.trim() && !hasImages) || !fields.check()) return;
  if (hasImages && cannotSee()) return toast(`${cannotSee()} reads text only: remove the pictures.`, "bad");
  shareSeed();
  const images = isChat() ? attachments.take() : [];
  if (isChat()) $("#prompt").value = "";
  for (const column of columns) column.send(prompt, images);
}

const stop = () => columns.forEach((column) => column.stop?.());

// --- panels ----------------------------------------------------------------------------------------

/** Panels stand beside the conversation where there is room, and over it elsewhere. */
function setUpPanel(id) {
  const panel = document.getElementById(id);
  const button = $(`[aria-controls=${id}]`);
  const wide = matchMedia(WIDE[id]);
  const isShown = () => panel.checkVisibility();
  const show = (shown) => {
    panel.classList.toggle("open", shown);
    panel.classList.toggle("closed", !shown);
    button.setAttribute("aria-expanded", String(shown));
  };
  show(wide.matches);
  wide.addEventListener("change", () => show(wide.matches));
  button.addEventListener("click", () => {
    show(!isShown());
    drawCode();
    if (isShown() && !wide.matches) $("button, a, input, textarea", panel)?.focus();
  });
  panel.addEventListener("reveal", () => show(true));
  const close = () => {
    show(false);
    button.focus();
  };
  $(".panel-close", panel).addEventListener("click", close);
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || wide.matches) return;
    close();
    event.stopPropagation();
  });
}

function setUp() {
  fields.setUp(draw);
  const select = $("#model");
  select.hidden = false;
  const wanted = saved?.model ?? new URLSearchParams(location.search).get("model");
  if (models.some((item) => item.name === wanted)) select.value = wanted;
  const has = models.find(({ name }) => name === select.value);
  $(`input[name=mode][value=${saved?.mode ?? (has.has_chat ? "chat" : "completion")}]`).checked = true;
  if (saved) fields.restore(saved);
  chats = new Chats(saved?.id ?? null, limits.chat_bytes);
  columns.push(new Column({ select, models, page, tree: new Tree(saved?.turns ?? [], saved?.leaf) }));
  attachments = new Attachments({ maxBodyBytes: limits.body_bytes, cannotSee, changed: draw });
  $("#columns").replaceChildren(columns[0].element);
  columns[0].draw();
  if (saved?.second) openSecond(saved.second.model, new Tree(saved.second.turns, saved.second.leaf));
  Object.keys(WIDE).forEach(setUpPanel);
  $("#settings-panel").addEventListener("reveal", () => $("[data-tab=settings]").click());
  tabs($("#side-tabs"), (name) => {
    for (const tab of ["settings", "code"]) $(`#side-${tab}`).hidden = tab !== name;
    drawCode();
  });
  tabs($("#code-tabs"), (name) => {
    language = name;
    $("#code").setAttribute("aria-labelledby", `code-${name}`);
    drawCode();
  });
  draw();
}

if (models.length) {
  setUp();
  for (const radio of $$("input[name=mode]")) radio.addEventListener("change", startOver);
  $("#composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("#prompt").addEventListener("input", drawCode);
  $("#prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || (isChat() && !event.shiftKey)) {
      event.preventDefault();
      send();
    }
  });
  // In a dialog it closes that.
  addEventListener("keydown", (event) => event.key === "Escape" && !event.target.closest?.("dialog") && stop());
  $("#stop").addEventListener("click", stop);
  $("#clear").addEventListener("click", startOver);
  $("#compare").addEventListener("click", compare);
  $("#copy-code").addEventListener("click", () => copy(code));
}
