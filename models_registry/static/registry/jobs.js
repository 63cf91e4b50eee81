// Queued generations: filters while typing, and new jobs. The server draws the lists.
import { filterList } from "./filters.js";
import { $, call, submitted, toast } from "./kit.js";

const show = filterList($("#filters"), $("#jobs-region"), "jobs", "after");
filterList($("#batch-filters"), $("#batches-region"), "batches", "batch_after");
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
