// The connection of a page to the uploads that are running, and the bar that shows them on every page.
import { $, bytes, csrfToken } from "./kit.js";
import { Uploader } from "./uploader.js";

const listeners = new Set();
let runs = []; // of this browser, as the worker told last
let others = []; // of the server, without those
let send;

function told({ runs: fresh }) {
  runs = fresh;
  draw();
  for (const listener of listeners) listener(runs);
}

if (window.SharedWorker) {
  const address = new URL("upload-worker.js", import.meta.url);
  // extendedLifetime: the worker outlives the moment between two pages.
  const worker = new SharedWorker(address, { type: "module", name: "blazr-uploads", extendedLifetime: true });
  worker.port.onmessage = (event) => told(event.data);
  send = (message) => worker.port.postMessage({ ...message, token: csrfToken() });
  addEventListener("pagehide", () => send({ type: "bye" }));
  addEventListener("pageshow", (event) => event.persisted && send({ type: "hello" }));
} else {
  const uploader = new Uploader((fresh) => told({ runs: fresh }));
  send = (message) => uploader.receive({ ...message, token: csrfToken() });
  addEventListener("beforeunload", (event) => runs.some(isRunning) && event.preventDefault());
}

export const isRunning = ({ state }) => ["starting", "sending", "checking"].includes(state);
export const currentUploads = () => runs;
export const sendToUploads = (message) => send(message);

/** Be told of the runs of this browser, now and with each change. */
export function onUploads(listener) {
  listeners.add(listener);
  listener(runs);
}

function draw() {
  const place = $("#transfers");
  if (!place) return; // this account brings no models
  const running = runs.filter(isRunning);
  const own = new Set(runs.map(({ id }) => id));
  const known = others.filter(({ id }) => !own.has(id));
  place.hidden = !running.length && !known.length;
  const sent = running.reduce((sum, run) => sum + run.files.reduce((part, file) => part + file.sent, 0), 0) + known.reduce((sum, { received }) => sum + received, 0);
  const total = running.reduce((sum, run) => sum + run.total, 0) + known.reduce((sum, { size }) => sum + size, 0);
  $("progress", place).value = total ? sent / total : 0;
  const number = running.length + known.length;
  $(".num", place).textContent = `${number === 1 ? (running[0] ?? known[0]).name : `${number} uploads`}: ${bytes(sent)} of ${bytes(total)}`;
}

document.body.addEventListener("live-uploads", (event) => {
  others = event.detail;
  draw();
});
