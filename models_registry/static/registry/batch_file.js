// A file of requests: sent to the server, which checks it, and shown with what is wrong before it is queued.
import { $, bytes, count, csrfToken, errorOf, fact, h, onDrop } from "./kit.js";

const section = $("#bring");
const input = $("#batch-file");
const report = $("#report");
const queue = $("#queue");
let sending = null;

const plural = (number, noun) => `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;

function showError(message) {
  $("#bring-error").textContent = message;
  $("#bring-error").hidden = !message;
}

function showSending(words, share) {
  $("#sending").hidden = !words;
  $("#sending-text").textContent = words;
  if (share === undefined) $("#sending-bar").removeAttribute("value");
  else $("#sending-bar").value = share;
}

/** Send a file's bytes and return what the server says of them: its status and its JSON. */
function check(file) {
  return new Promise((resolve, reject) => {
    const request = (sending = new XMLHttpRequest());
    request.open("POST", `/api/batches/check?filename=${encodeURIComponent(file.name.slice(0, 255))}`);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.setRequestHeader("X-CSRFToken", csrfToken());
    request.upload.addEventListener("progress", ({ loaded }) => showSending(`Sending ${bytes(loaded)} of ${bytes(file.size)}`, loaded / file.size));
    request.upload.addEventListener("load", () => showSending("The server is checking it …"));
    request.addEventListener("load", () => {
      if (request.status === 200) resolve(JSON.parse(request.responseText));
      else reject(errorOf(request.status, request.responseText));
    });
    request.addEventListener("error", () => reject(new Error("The file can't be read, or the server can't be reached.")));
    request.addEventListener("abort", () => reject(new Error("Stopped; nothing was kept.")));
    request.send(file);
  });
}

function modelWords({ models, num_models: number }) {
  const words = models.map(({ model, lines }) => `${model || "(none)"}: ${lines.toLocaleString()}`).join(", ");
  return number > models.length ? `${words} and ${number - models.length} more` : words;
}

function verdict({ refused, failing, lines }) {
  if (refused) return h("p.note.bad", {}, `A batch of this file would be refused: ${plural(refused, "problem")}. Nothing of it was kept.`);
  if (failing) return h("p.note.warn", {}, `${plural(failing, "line")} of ${lines.toLocaleString()} would fail and end in the error file; the others would run.`);
  return h("p.note.good", {}, `All ${plural(lines, "line")} can run.`);
}

function problemTable({ problems, refused, failing, counts }) {
  if (!problems.length) return null;
  const total = refused + failing;
  const shown = total > problems.length ? `the first ${problems.length} of ${total.toLocaleString()}; ` : "";
  const summary = counts.map(({ code, count: number }) => `${code}: ${number.toLocaleString()}`).join(", ");
  return h(
    "div",
    {},
    h("p.small.muted", {}, `${shown}${summary}`),
    h(
      "div.table-responsive",
      { tabindex: "0", role: "group", "aria-label": "Problems" },
      h(
        "table.cards",
        { id: "problems" },
        h("thead", {}, h("tr", {}, ...["Line", "Problem", "What follows"].map((name) => h("th", { scope: "col" }, name)))),
        h(
          "tbody",
          {},
          ...problems.map(({ line, message, code, refuses }) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, line === null ? "–" : line.toLocaleString()),
              h("td.wide", { "data-label": "Problem" }, h("div.text-break", {}, message, " ", h("span.small.muted.font-monospace", {}, code))),
              h("td", { "data-label": "What follows" }, refuses ? "the file is refused" : "the line fails"),
            ),
          ),
        ),
      ),
    ),
  );
}

function drawReport(file, { report: found, file: stored }) {
  const facts = h(
    "dl.fields",
    {},
    fact("File", `${file.name}, ${bytes(file.size)}`),
    fact("Lines", found.lines.toLocaleString()),
    fact("Endpoint", found.endpoint || "–"),
    fact("Lines by model", modelWords(found) || "–"),
    fact("Tokens, about", `${count(found.prompt_tokens)} in, up to ${count(found.output_tokens)} out`),
  );
  report.replaceChildren(...[verdict(found), facts, problemTable(found)].filter(Boolean));
  report.hidden = false;
  queue.hidden = !stored;
  if (stored) {
    queue.elements.file.value = stored.id;
    queue.elements.endpoint.value = found.endpoint;
    $("#queue-schedule").search = new URLSearchParams({ file: stored.id, endpoint: found.endpoint });
    if (!$("#queue-label").value) $("#queue-label").value = file.name.replace(/\.[a-z]+$/i, "").slice(0, 512);
  }
  report.focus();
}

async function take(file) {
  if (!file || sending) return;
  report.hidden = queue.hidden = true;
  showError("");
  const limit = Number(section.dataset.maxBytes);
  if (file.size > limit) return showError(`${file.name} has ${bytes(file.size)}, at most ${bytes(limit)} are accepted; split it.`);
  if (!file.size) return showError(`${file.name} is empty.`);
  showSending("Sending …", 0);
  try {
    drawReport(file, await check(file));
  } catch (error) {
    showError(error.message);
  }
  sending = null;
  showSending("");
  input.value = "";
}

$("#choose-file").addEventListener("click", () => input.click());
input.addEventListener("change", () => take(input.files[0]));
$("#sending-stop").addEventListener("click", () => sending?.abort());
onDrop($("#drop-file"), ({ files }) => {
  if (files.length > 1) return showError("Drop one file; each is a batch of its own.");
  take(files[0]);
});
