// Queued generations: list, submit, cancel, look at the result.
import { $, act, ago, call, count, duration, h, poll, redraw, stateMark, submitted, toast } from "./kit.js";

let after = null; // id of the last job of the page before
let shown = null; // id of the job in the dialog
const ENDED = ["succeeded", "failed", "cancelled"];

// --- list --------------------------------------------------------------------------------------

function timing(job) {
  if (job.started_at && job.finished_at) return `took ${duration((new Date(job.finished_at) - new Date(job.started_at)) / 1000)}`;
  if (job.started_at) return `started ${ago(job.started_at)}`;
  return "waiting";
}

function cancelButton(job) {
  if (ENDED.includes(job.state)) return null;
  if (job.cancel_requested) return h("span.small.muted", {}, "stopping …");
  return h(
    "button.btn.btn-link btn-sm",
    { type: "button", "data-key": `cancel-${job.id}`, "aria-label": `Cancel job ${job.id}`, onclick: (event) => act(event.target, async () => (await call("POST", `/api/jobs/${job.id}/cancel`), again())) },
    "Cancel",
  );
}

function rowOf(job) {
  const name = h("button.btn.btn-sm.btn-link.font-monospace", { type: "button", "data-key": job.id, onclick: () => openJob(job.id) }, h("span", {}, job.id.slice(0, 8)));
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("div", {}, name, job.batch_label && h("div", {}, h("span.badge.border.fw-normal.muted", {}, job.batch_label)))),
    h("td", { "data-label": "State" }, h("div", {}, stateMark(job.state), job.attempts > 1 && h("div.small.muted", {}, `attempt ${job.attempts}`))),
    h("td", { "data-label": "Model" }, h("div", {}, job.model, h("div.small.muted", {}, job.endpoint))),
    h("td.num", { "data-label": "Tokens" }, h("div", {}, count(job.completion_tokens), job.state === "running" && h("progress", { "aria-label": "running" }))),
    h("td", { "data-label": "Submitted" }, h("div", {}, ago(job.created_at), h("div.small.muted", {}, timing(job)))),
    h("td.num", {}, cancelButton(job)),
  );
}

function draw({ data, has_more: hasMore, counts }) {
  $("#counts").textContent = ["queued", "running", "succeeded", "failed", "cancelled"].filter((state) => counts[state]).map((state) => `${counts[state]} ${state}`).join(", ");
  $("#paging").hidden = !hasMore && !after;
  $("#older").disabled = !hasMore;
  $("#newest").disabled = !after;
  $("#older").dataset.last = data.at(-1)?.id ?? "";
  if (!data.length) return redraw($("#jobs"), h("div.p-4.text-center.muted", {}, h("p", {}, $("#state").value || $("#label").value ? "No job matches." : "No jobs yet.")));
  const head = ["Job", "State", "Model", "Tokens", "Submitted", ""];
  redraw(
    $("#jobs"),
    h(
      "div.table-responsive",
      {},
      h(
        "table.cards",
        {},
        h("thead", {}, h("tr", {}, head.map((text) => h("th", { scope: "col", class: text === "Tokens" ? "num" : "" }, text || h("span.visually-hidden", {}, "Actions"))))),
        h("tbody", {}, data.map(rowOf)),
      ),
    ),
  );
}

async function refresh() {
  const query = new URLSearchParams({ limit: 50 });
  if ($("#state").value) query.set("state", $("#state").value);
  if ($("#label").value.trim()) query.set("batch_label", $("#label").value.trim());
  if (after) query.set("after", after);
  draw(await call("GET", `/api/jobs?${query}`));
  if (shown) await drawJob(shown);
}
const again = poll(refresh, 2000);
again();
for (const selector of ["#state", "#label"]) {
  $(selector).addEventListener("input", () => {
    after = null;
    again();
  });
}
$("#older").addEventListener("click", (event) => ((after = event.target.dataset.last || null), again()));
$("#newest").addEventListener("click", () => ((after = null), again()));

// --- one job -------------------------------------------------------------------------------------

let drawn = null; // id and state that the dialog shows, so that polling doesn't undo a selection

async function drawJob(id) {
  const job = await call("GET", `/api/jobs/${id}`);
  if (id !== shown) return;
  const version = `${job.id} ${job.state} ${job.cancel_requested} ${job.completion_tokens}`;
  if (version === drawn) return;
  drawn = version;
  $("#job-title").textContent = `Job ${job.id.slice(0, 8)}`;
  const parts = [
    h("div.spread", {}, stateMark(job.state), cancelButton(job)),
    h(
      "dl.fields",
      {},
      [["Model", job.model], ["Kind", job.endpoint], ["Prompt", `${count(job.prompt_tokens)} tokens`], ["Answer", `${count(job.completion_tokens)} tokens`], ["Attempts", job.attempts], ["Time", timing(job)]].map(([name, value]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, String(value))),
      ),
    ),
    h("p.small.muted.font-monospace", {}, job.id),
  ];
  if (job.error) parts.push(h(`p.note.${job.state === "failed" ? "bad" : "warn"}`, {}, job.state === "failed" ? "" : "Last attempt: ", job.error.message));
  if (job.state === "succeeded") parts.push(...resultParts(await call("GET", `/api/jobs/${id}/result`)));
  $("#job-body").replaceChildren(...parts);
}

function resultParts(answer) {
  const texts = answer.choices.map((choice) => choice.message?.content ?? choice.text);
  return [
    ...texts.map((text, i) => h("section", {}, h("h3", {}, texts.length > 1 ? `Answer ${i + 1}` : "Answer"), h("pre.code", { tabindex: 0 }, text || "(empty)"))),
    h("details", {}, h("summary", {}, "The whole answer as JSON"), h("pre.code.small", { tabindex: 0 }, JSON.stringify(answer, null, 2))),
  ];
}

async function openJob(id) {
  shown = id;
  drawn = null;
  try {
    await drawJob(id);
    $("#job-dialog").showModal();
    history.replaceState(null, "", `#${id}`);
  } catch (error) {
    shown = null;
    toast(error.message, "bad");
  }
}
$("#job-close").addEventListener("click", () => $("#job-dialog").close());
$("#job-dialog").addEventListener("close", () => {
  shown = null;
  history.replaceState(null, "", location.pathname + location.search);
});
if (location.hash.length > 1) openJob(location.hash.slice(1));

// --- submit ----------------------------------------------------------------------------------------

$("#new").addEventListener("click", () => $("#submit-dialog").showModal());
$("#submit-cancel").addEventListener("click", () => $("#submit-dialog").close());
$("#submit").addEventListener("submit", (event) =>
  submitted(event, $("#submit-error"), async () => {
    const endpoint = $("#job-endpoint").value;
    const shared = { model: $("#job-model").value, max_tokens: Number($("#job-max").value), temperature: Number($("#job-temperature").value) };
    const text = $("#job-prompt").value;
    const prompts = $("#job-lines").checked ? text.split("\n").filter((line) => line.trim()) : [text];
    const jobs = prompts.map((prompt) => ({
      endpoint,
      body: endpoint === "chat" ? { ...shared, messages: [{ role: "user", content: prompt }] } : { ...shared, prompt },
    }));
    const label = $("#job-label").value.trim();
    const { data } = await call("POST", "/api/jobs", { jobs, ...(label ? { batch_label: label } : {}) });
    $("#submit-dialog").close();
    $("#job-prompt").value = "";
    toast(data.length === 1 ? "The job is queued." : `${data.length} jobs are queued.`);
    after = null;
    again();
  }),
);
