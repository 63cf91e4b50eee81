// Bringing a model: choose files, follow how they are sent (see uploader.js), go on with unfinished uploads.
import { factField, factValue } from "./facts.js";
import { $, $$, act, bytes, call, count, duration, h, onDrop, pageData } from "./kit.js";
import { currentUploads, isRunning, onUploads, sendToUploads } from "./transfers.js";

const rules = pageData("rules");

let chosen = []; // {file, name, bar, amount, sent}
let skipped = []; // {name, reason}
let mine = null; // key of the run that this page shows
let ended = null; // key of the last one whose end it has shown
let run = null; // that run, while it goes on
let resuming = null; // the unfinished upload that chosen files go on with

// --- choosing --------------------------------------------------------------------------------

const isWeights = (name) => [".safetensors", ".gguf", ".ggml"].some((kind) => name.endsWith(kind));
const accepted = (name) => rules.kinds.some((kind) => (kind.startsWith(".") ? name.endsWith(kind) : name === kind));
const isPickle = (name) => /\.(bin|pt|pth|ckpt|pkl|pickle)$/i.test(name);

function whySkipped(path, file) {
  const name = path.split("/").pop();
  if (path.split("/").length > 2) return "in a subfolder";
  if (name.startsWith(".")) return "hidden file";
  if (isPickle(name)) return "a pickle: could run code, never read";
  if (!accepted(name)) return "not part of a checkpoint";
  if (file.size === 0) return "empty";
  return null;
}

/** Take {path, file} pairs; a folder's name is the first part of each path. */
function take(entries) {
  if (run) return;
  mine = null;
  chosen = [];
  skipped = [];
  for (const { path, file } of entries) {
    const reason = whySkipped(path, file);
    if (reason) skipped.push({ name: path, reason });
    else chosen.push({ file, name: path.split("/").pop(), sent: 0 });
  }
  const folder = entries.find(({ path }) => path.includes("/"))?.path.split("/")[0];
  const weights = chosen.filter(({ name }) => isWeights(name));
  const label = folder ?? weights[0]?.name ?? "";
  $("#name").value = label.replace(/\.(safetensors|gguf|ggml)$/, "").replace(/[^A-Za-z0-9._:-]+/g, "-").replace(/^[-._:]+|[-._:]+$/g, "").slice(0, 96);
  showOutcome(null);
  drawFiles();
  let problem = null;
  if (resuming) return goOn();
  if (!weights.length) problem = "There is no .safetensors, .gguf or .ggml file among them. Weights are taken in these formats only.";
  else if (totalBytes() > rules.max_bytes) problem = `They have ${bytes(totalBytes())} together; the limit is ${bytes(rules.max_bytes)}.`;
  else if (chosen.length > rules.max_files) problem = `They are ${chosen.length} files; the limit is ${rules.max_files}.`;
  $("#start").disabled = problem !== null;
  if (problem) showOutcome("bad", "These files can't be uploaded", problem);
  else $("#name").focus();
}

const totalBytes = () => chosen.reduce((sum, item) => sum + item.file.size, 0);

function drawFiles() {
  $("#work").hidden = false;
  $("#summary").textContent = `${chosen.length} files, ${bytes(totalBytes())}`;
  const rows = chosen.map((item) => {
    item.bar = h("progress", { max: item.file.size, value: 0, "aria-label": `${item.name} sent` });
    item.amount = h("span.small.muted.text-nowrap", {}, bytes(item.file.size));
    return h("li.list-group-item", {}, h("div.spread", {}, h("span.font-monospace.text-break", {}, item.name), item.amount), item.bar);
  });
  const left = skipped.slice(0, 20).map(({ name, reason }) => h("li.list-group-item.spread.muted", {}, h("span.font-monospace.text-break", {}, name), h("span.small", {}, `left out: ${reason}`)));
  if (skipped.length > 20) left.push(h("li.list-group-item.small.muted", {}, `and ${skipped.length - 20} more files left out`));
  $("#files").replaceChildren(...rows, ...left);
}

/** Files and folders of a drop, folders one level deep (a checkpoint has no more). */
async function droppedEntries(items) {
  const roots = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const found = [];
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  for (const root of roots) {
    if (root.isFile) found.push({ path: root.name, file: await fileOf(root) });
    else {
      const reader = root.createReader();
      for (;;) {
        const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
        if (!batch.length) break;
        for (const entry of batch) if (entry.isFile) found.push({ path: `${root.name}/${entry.name}`, file: await fileOf(entry) });
      }
    }
  }
  return found;
}

onDrop($("#choose"), async ({ items }) => {
  try {
    take(await droppedEntries(items));
  } catch {
    showOutcome("bad", "The drop could not be read", "Choose the folder with the button instead.");
  }
});
for (const [button, input] of [["#pick-folder", "#folder-input"], ["#pick-files", "#files-input"]]) {
  $(button).addEventListener("click", () => $(input).click());
  $(input).addEventListener("change", (event) => {
    const files = [...event.target.files];
    event.target.value = "";
    if (files.length) take(files.map((file) => ({ path: file.webkitRelativePath || file.name, file })));
  });
}

// --- facts set by hand -------------------------------------------------------------------------

const facts = new Map(rules.facts.map((rule) => [rule.name, rule]));
let overrides = {};

function drawFact() {
  const rule = facts.get($("#fact").value);
  $("#fact-meaning").textContent = rule.meaning;
  $("#fact-input").replaceChildren(factField(rule, "fact-value", overrides[rule.name]));
}

const shortened = (text) => (text.length > 80 ? `${text.slice(0, 80)}…` : text);

function drawOverrides() {
  const names = Object.keys(overrides);
  $("#facts-count").textContent = names.length ? ` (${names.length} set)` : "";
  $("#facts-set").replaceChildren(
    ...names.map((name) => {
      const remove = h("button.btn.btn-link.btn-sm", { type: "button", "aria-label": `Remove ${name}` }, "Remove");
      remove.addEventListener("click", () => {
        delete overrides[name];
        drawOverrides();
        $("#fact").focus();
      });
      return h("li.hstack.gap-2.flex-wrap", {}, h("span.font-monospace.text-break", {}, `${name} = ${shortened(JSON.stringify(overrides[name]))}`), remove);
    }),
  );
}

$("#fact").replaceChildren(...rules.facts.map(({ name }) => h("option", {}, name)));
$("#fact").addEventListener("change", drawFact);
$("#fact-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const rule = facts.get($("#fact").value);
  overrides[rule.name] = factValue(rule, $("#fact-value").value);
  drawOverrides();
});
drawFact();

// --- sending ---------------------------------------------------------------------------------

function begin(values) {
  mine = `${Date.now()}-${Math.random()}`;
  showOutcome(null);
  setBusy(true);
  sendToUploads({ type: "start", key: mine, files: chosen.map(({ name, file }) => ({ name, file })), overrides, ...values });
}

/** Go on with an unfinished upload; its files were chosen again. */
function goOn() {
  const { id, name } = resuming;
  resuming = null;
  $("#name").value = name;
  begin({ id, name });
}

/** Finish an upload that the server has all bytes of, perhaps under another name. */
async function finish(form) {
  if (run) return;
  const upload = await call("GET", `/registry/uploads/${form.dataset.finish}`);
  const name = form.elements.served_model_name.value.trim();
  chosen = upload.files.map(({ name: file, size_bytes: size }) => ({ name: file, file: { size } }));
  skipped = [];
  drawFiles();
  $("#name").value = name;
  begin({ id: upload.id, name });
}

$("#form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!run) begin({ name: $("#name").value.trim() });
});

$("#cancel").addEventListener("click", () => {
  if (mine !== null && ended !== mine) return sendToUploads({ type: "cancel", key: mine });
  chosen = [];
  $("#work").hidden = true;
  showOutcome(null);
  $("#pick-folder").focus();
});

function drawProgress(state) {
  for (const { name, size, sent } of state.files) {
    const item = chosen.find((each) => each.name === name);
    if (!item?.bar) continue;
    item.bar.value = sent;
    item.amount.textContent = sent ? `${bytes(sent)} of ${bytes(size)}` : bytes(size);
  }
  const sent = state.files.reduce((sum, file) => sum + file.sent, 0);
  const seconds = (Date.now() - state.startedAt) / 1000;
  const rate = (sent - state.startedWith) / Math.max(seconds, 0.1);
  const words = { starting: "Starting …", checking: `Verifying: ${state.stage || "waiting"} …` };
  $("#total-text").textContent = words[state.state] ?? `${bytes(sent)} of ${bytes(state.total)}${state.stage ? `, ${state.stage}` : ""}`;
  if (state.state === "checking") $("#total-bar").removeAttribute("value");
  else $("#total-bar").value = state.total ? sent / state.total : 0;
  $("#total-rate").textContent = state.state === "sending" && seconds > 1 && rate > 0 ? `${bytes(rate)}/s, ${duration(Math.ceil((state.total - sent) / rate))} left` : "";
  drawReport(state.report);
}

/** What the server has found in the heads, while the weights are sent. */
function drawReport(report) {
  const place = $("#report");
  place.hidden = !report;
  if (!report) return;
  const kinds = new Map();
  for (const { kind } of report.layers) kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  place.replaceChildren(
    h("p.mb-1", {}, h("b", {}, "It can be served: "), `${report.model_type}, ${count(report.num_parameters)} parameters, ${report.dtype}, context of ${report.max_position_embeddings.toLocaleString("en")} tokens${report.tokenizer === "none" ? ", no tokenizer: token ids only" : ""}.`),
    h("div.ribbon", { "aria-hidden": "true" }, report.layers.flatMap((layer) => [layer.token_mixer && h(`i.k-${layer.token_mixer}`), layer.channel_mixer && h(`i.k-${layer.channel_mixer}`)])),
    h("span.small.muted.ms-2", {}, [...kinds].map(([kind, number]) => `${number} × ${kind}`).join(", ")),
    ...report.warnings.map((text) => h("p.small.warn.mb-0", {}, text)),
  );
}

/** What is being sent from here isn't unfinished. */
function hideRunning(runs) {
  const going = new Set(runs.filter(isRunning).map(({ id }) => id));
  for (const item of $$("[data-resume], [data-finish]")) item.closest("li").hidden = going.has(item.dataset.resume ?? item.dataset.finish);
}
document.body.addEventListener("htmx:afterSettle", () => hideRunning(currentUploads()));

/** Follow the run that this page began, or the one that was going on when it was opened. */
function follow(runs) {
  if (mine === null) {
    const going = runs.find(isRunning);
    if (!going) return;
    mine = going.key;
    chosen = going.files.map(({ name, size }) => ({ name, file: { size } }));
    skipped = [];
    $("#name").value = going.name;
    drawFiles();
  }
  const state = runs.find(({ key }) => key === mine);
  if (!state) return;
  if (isRunning(state)) {
    run = state;
    setBusy(true);
    return drawProgress(state);
  }
  if (ended === mine) return;
  ended = mine;
  run = null;
  setBusy(false);
  drawReport(state.state === "refused" ? null : state.report);
  if (state.state === "unnamed") $("#work").hidden = true; // it is finished in the list of unfinished uploads
  if (state.state === "done") succeed(state);
  else if (state.state === "cancelled") showOutcome("warn", "Cancelled", state.reason);
  else if (state.state === "interrupted") showOutcome("warn", "Interrupted", state.reason);
  else if (state.state === "unnamed") showOutcome("warn", "The name is taken", state.reason);
  else showOutcome("bad", "Refused", state.reason);
  sendToUploads({ type: "forget", key: mine });
  drawUnfinished();
}

function setBusy(busy) {
  for (const item of $$("#start, #name, #pick-folder, #pick-files, #facts button, #facts select, #facts input")) item.disabled = busy;
  $("#total").hidden = !busy;
}

function succeed(upload) {
  overrides = {};
  drawOverrides();
  $("#work").hidden = true;
  showOutcome(
    "good",
    `${upload.name} is registered`,
    "It was verified and inspected, and loads on its first request.",
    h("p.hstack.gap-2.flex-wrap", {},
      h("a.btn.btn-primary", { href: `/models/${upload.checkpoint}/` }, "Look at it"),
      h("a.btn.btn-outline-secondary", { href: `/playground/?model=${encodeURIComponent(upload.name)}` }, "Try it"),
      h("a.btn.btn-outline-secondary", { href: `/models/${upload.checkpoint}/#quantise` }, "Quantise it"),
    ),
  );
}

function showOutcome(kind, title, text, ...more) {
  const place = $("#outcome");
  place.hidden = kind === null;
  if (kind === null) return place.replaceChildren();
  place.className = `note ${kind}`;
  place.replaceChildren(h("h2", {}, title), h("p", {}, text), ...more);
  place.focus();
}

// --- unfinished uploads ------------------------------------------------------------------------

const drawUnfinished = () => document.body.dispatchEvent(new CustomEvent("live:uploads"));

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-resume], [data-discard]");
  if (!button) return;
  const { resume, discard, name } = button.dataset;
  if (resume) {
    resuming = { id: resume, name };
    $("#folder-input").click();
  } else act(button, async () => (await call("DELETE", `/registry/uploads/${discard}`), drawUnfinished()));
});
document.addEventListener("submit", (event) => {
  if (!event.target.dataset.finish) return;
  event.preventDefault();
  act(event.submitter, () => finish(event.target));
});
for (const input of $$("#folder-input, #files-input")) input.addEventListener("cancel", () => (resuming = null));

onUploads(follow);
onUploads(hideRunning);
