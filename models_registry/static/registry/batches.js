// The jobs page's batches: state, progress, cancel, files. Nothing is shown while there are none.
import { $, act, ago, call, count, duration, h, poll, redraw, stateMark } from "./kit.js";

const ENDED = ["completed", "failed", "expired", "cancelled"];
const MARKS = { validating: "queued", in_progress: "running", finalizing: "running", cancelling: "running", completed: "succeeded", expired: "failed" };

function cancelButton(batch) {
  if (!["validating", "in_progress"].includes(batch.status)) return null;
  return h(
    "button.btn.btn-link btn-sm",
    { type: "button", "data-key": `cancel-${batch.id}`, "aria-label": `Cancel batch ${batch.id}`, onclick: (event) => act(event.target, async () => (await call("POST", `/api/batches/${batch.id}/cancel`), again())) },
    "Cancel",
  );
}

function file(id, text) {
  return id && h("a", { href: `/api/files/${id}/content`, download: `${id}.jsonl`, "data-key": id }, text);
}

function lines({ request_counts: counts, progress }) {
  const failed = counts.failed ? `, ${count(counts.failed)} failed` : "";
  return [
    h("progress", { max: "100", value: progress.percent, "aria-label": `${progress.percent} % done` }),
    h("div.small.muted.num", {}, `${count(counts.completed + counts.failed)} of ${count(counts.total)}${failed}`),
  ];
}

function outlook({ status, errors, progress, expires_at: expiresAt }) {
  if (errors) return h("span.small", {}, errors.data[0].line ? `line ${errors.data[0].line}: ${errors.data[0].message}` : errors.data[0].message);
  if (ENDED.includes(status)) return null;
  const finish = progress.estimated_finish_at;
  const now = Date.now() / 1000;
  const parts = [finish ? `done in about ${duration(Math.max(0, finish - now))}` : `window ends in ${duration(Math.max(0, expiresAt - now))}`];
  if (progress.queue_position) parts.push(`${progress.queue_position} before it`);
  return [h("div", {}, parts.join(", ")), progress.is_feasible === false && h("div.small", {}, h("span.badge.border.fw-normal.muted", {}, "won't make its window"))];
}

function rowOf(batch) {
  const mark = stateMark(MARKS[batch.status] ?? batch.status, batch.status.replace("_", " "));
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("div.font-monospace", { title: batch.id }, batch.id.slice(6, 14), h("div.small.muted", {}, batch.endpoint.replace("/v1/", "")))),
    h("td", { "data-label": "State" }, mark),
    h("td", { "data-label": "Lines" }, h("div", {}, lines(batch))),
    h("td.num", { "data-label": "Tokens" }, h("div", {}, count(batch.usage.output_tokens), h("div.small.muted", {}, `${count(Math.round(batch.progress.tokens_per_s))}/s`))),
    h("td", { "data-label": "Outlook" }, h("div", {}, outlook(batch))),
    h("td", { "data-label": "Files" }, h("div.hstack.gap-2.flex-wrap", {}, file(batch.output_file_id, "output"), file(batch.error_file_id, "errors"), h("span.small.muted", {}, ago(new Date(batch.created_at * 1000))))),
    h("td.num", {}, cancelButton(batch)),
  );
}

async function refresh() {
  const { data } = await call("GET", "/api/batches?limit=20");
  $("#batches-card").hidden = !data.length;
  const head = ["Batch", "State", "Lines", "Tokens", "Outlook", "Files", ""];
  redraw(
    $("#batches"),
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
const again = poll(refresh, 2000);
again();
