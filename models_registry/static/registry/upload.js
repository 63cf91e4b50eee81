// Uploads in pieces: each goes to the offset that the server names, so that a broken connection costs one piece.
import { factField, factValue } from "./facts.js";
import { $, $$, bytes, call, csrfToken, duration, errorOf, h, pageData } from "./kit.js";

const rules = pageData("rules");
const RETRIES = 6;
const LANES = 2; // files sent beside each other; one alone rarely fills a fast line

let chosen = []; // {file, name, bar, amount, sent}
let skipped = []; // {name, reason}
let run = null; // {id, cancelled, requests}

$("#limit").textContent = bytes(rules.max_bytes);

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
    return h("li.spread", {}, h("span.name.font-monospace", { title: item.name }, item.name), item.bar, item.amount);
  });
  const left = skipped.slice(0, 20).map(({ name, reason }) => h("li.spread.skipped", {}, h("span.name.font-monospace", { title: name }, name), h("span.small", {}, `left out: ${reason}`)));
  if (skipped.length > 20) left.push(h("li.small.muted", {}, `and ${skipped.length - 20} more files left out`));
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

const drop = $("#choose");
for (const name of ["dragenter", "dragover"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
}
drop.addEventListener("dragleave", (event) => {
  if (!drop.contains(event.relatedTarget)) drop.classList.remove("over");
});
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.classList.remove("over");
  try {
    take(await droppedEntries(event.dataTransfer.items));
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

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** PUT one piece; resolves to the server's view of the file. */
function sendPiece(item, number, piece) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    run.requests.add(request);
    request.open("PUT", `/registry/uploads/${run.id}/files/${number}?offset=${item.sent}`);
    request.setRequestHeader("X-CSRFToken", csrfToken());
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", (event) => drawProgress(item, item.sent + event.loaded));
    request.addEventListener("loadend", () => {
      run?.requests.delete(request);
      if (request.status >= 200 && request.status < 300) resolve(JSON.parse(request.responseText));
      else reject(errorOf(request.status, request.responseText));
    });
    request.send(piece);
  });
}

async function sendFile(item, number, chunkBytes) {
  let failures = 0;
  while (item.sent < item.file.size && !run.cancelled) {
    try {
      const answer = await sendPiece(item, number, item.file.slice(item.sent, item.sent + chunkBytes));
      item.sent = answer.received_bytes;
      failures = 0;
      drawProgress(item, item.sent);
    } catch (error) {
      if (run.cancelled) return;
      // A refusal is final; a lost connection, a busy server or an unexpected offset is worth another look.
      const transient = error.status === 0 || error.status >= 502 || error.status === 409;
      if (!transient || ++failures > RETRIES) throw error;
      $("#total-text").textContent = "Connection trouble, trying again …";
      await pause(Math.min(500 * 2 ** failures, 15000));
      const upload = await call("GET", `/registry/uploads/${run.id}`).catch(() => null);
      if (upload && upload.state !== "receiving") throw new Error(upload.reason || `The upload is ${upload.state}.`);
      if (upload) item.sent = upload.files[number].received_bytes;
    }
  }
}

async function sendAll(chunkBytes) {
  const waiting = chosen.map((item, number) => [item, number]);
  const lane = async () => {
    for (let next = waiting.shift(); next && !run.cancelled; next = waiting.shift()) await sendFile(next[0], next[1], chunkBytes);
  };
  await Promise.all(Array.from({ length: LANES }, lane));
}

let lastDraw = 0;
function drawProgress(item, sent) {
  item.bar.value = Math.min(sent, item.file.size);
  item.amount.textContent = `${bytes(Math.min(sent, item.file.size))} of ${bytes(item.file.size)}`;
  const now = performance.now();
  if (now - lastDraw < 150) return;
  lastDraw = now;
  const done = chosen.reduce((sum, each) => sum + (each.bar?.value ?? 0), 0);
  const seconds = (now - run.startedAt) / 1000;
  const rate = (done - run.startedWith) / Math.max(seconds, 0.1);
  $("#total-bar").value = done / totalBytes();
  $("#total-text").textContent = `${bytes(done)} of ${bytes(totalBytes())}`;
  if (seconds > 1 && rate > 0) $("#total-rate").textContent = `${bytes(rate)}/s, ${duration(Math.ceil((totalBytes() - done) / rate))} left`;
}

async function waitForCheck() {
  $("#total-bar").removeAttribute("value");
  $("#total-rate").textContent = "";
  let upload = await call("POST", `/registry/uploads/${run.id}/finish`);
  while (["receiving", "checking"].includes(upload.state)) {
    $("#total-text").textContent = `Verifying: ${upload.stage || "waiting"} …`;
    await pause(400);
    if (run.cancelled) return null;
    upload = await call("GET", `/registry/uploads/${run.id}`);
  }
  return upload;
}

$("#form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (run) return;
  run = { id: null, cancelled: false, requests: new Set(), startedAt: performance.now(), startedWith: 0 };
  showOutcome(null);
  setBusy(true);
  try {
    const upload = await call("POST", "/registry/uploads", {
      served_model_name: $("#name").value.trim(),
      files: chosen.map(({ name, file }) => ({ name, size_bytes: file.size })),
      overrides,
    });
    run.id = upload.id;
    for (const item of chosen) item.sent = 0;
    await sendAll(upload.chunk_bytes);
    const outcome = run.cancelled ? null : await waitForCheck();
    if (!outcome) showOutcome("warn", "Cancelled", "What had been sent was removed from the server.");
    else if (outcome.state === "done") succeed(outcome);
    else showOutcome("bad", "Refused", outcome.reason);
  } catch (error) {
    if (run.cancelled) showOutcome("warn", "Cancelled", "What had been sent was removed from the server.");
    else {
      showOutcome("bad", "Refused", error.message);
      if (run.id) await call("DELETE", `/registry/uploads/${run.id}`).catch(() => null);
    }
  } finally {
    run = null;
    setBusy(false);
  }
});

$("#cancel").addEventListener("click", async () => {
  if (!run) {
    chosen = [];
    $("#work").hidden = true;
    showOutcome(null);
    $("#pick-folder").focus();
    return;
  }
  run.cancelled = true;
  for (const request of run.requests) request.abort();
  if (run.id) await call("DELETE", `/registry/uploads/${run.id}`).catch(() => null);
});

addEventListener("beforeunload", (event) => {
  if (run) event.preventDefault();
});

function setBusy(busy) {
  for (const item of $$("#start, #name, #pick-folder, #pick-files, #facts button, #facts select, #facts input")) item.disabled = busy;
  $("#total").hidden = !busy;
  if (busy) {
    $("#total-bar").value = 0;
    $("#total-text").textContent = "Starting …";
    $("#total-rate").textContent = "";
  }
}

function succeed(upload) {
  overrides = {};
  drawOverrides();
  $("#work").hidden = true;
  showOutcome(
    "good",
    `${upload.served_model_name} is registered`,
    "It was verified and inspected, and loads on its first request.",
    h("p.hstack.gap-2.flex-wrap", {}, h("a.btn.btn-primary", { href: `/models/${upload.checkpoint}/` }, "Look at it"), h("a.btn.btn-outline-secondary", { href: `/playground/?model=${encodeURIComponent(upload.served_model_name)}` }, "Try it")),
  );
}

function showOutcome(kind, title, text, ...more) {
  const place = $("#outcome");
  place.hidden = kind === null;
  if (kind === null) return place.replaceChildren();
  place.className = `note ${kind}`;
  place.replaceChildren(h("h2", {}, title), h("p", {}, text), ...more);
  if (run || kind === "good") place.focus();
}
