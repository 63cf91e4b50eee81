// Queued generations: filters while typing, and new jobs. The server draws the lists.
import { $, call, submitted, toast } from "./kit.js";

/**
 * Keep a form's filters in the page's address, and have its list drawn for them while they are typed, from its newest
 * page on. The other list keeps its own.
 */
function filterList(form, topic, after) {
  let timer;
  const show = () => {
    const query = new URLSearchParams(location.search);
    query.delete(after);
    for (const [name, value] of new FormData(form)) {
      if (value.trim()) query.set(name, value);
      else query.delete(name);
    }
    history.replaceState(null, "", `${location.pathname}${query.size ? `?${query}` : ""}`);
    document.body.dispatchEvent(new CustomEvent(`live:${topic}`));
  };
  $(`#${topic}-region`).addEventListener("htmx:configRequest", (event) => (event.detail.path = location.pathname + location.search));
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, 150);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    show();
  });
  return show;
}

const show = filterList($("#filters"), "jobs", "after");
filterList($("#batch-filters"), "batches", "batch_after");
$("#new").hidden = false;
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
    show();
  }),
);
if (location.hash.length > 20) location.replace(`/jobs/${location.hash.slice(1)}/`); // addresses of before
