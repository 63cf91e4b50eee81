// The connection of a page to the uploads that are running, and the bar that shows them and the server's pulls on
// every page.
import { $, bytes, csrfToken } from "./kit.js";
import { Uploader } from "./uploader.js";

const listeners = new Set();
let runs = []; // of this browser, as the worker told last
let others = []; // uploads of the server, without those
let pulls = []; // of the server
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

/** What is on its way to the server: {name, received, size, words}. */
function transfers() {
  const own = new Set(runs.map(({ id }) => id));
  return [
    ...runs.filter(isRunning).map(({ name, total, files }) => ({ name, received: files.reduce((sum, file) => sum + file.sent, 0), size: total })),
    ...others.filter(({ id }) => !own.has(id)),
    ...pulls.map((pull) => ({ ...pull, words: pull.stage === "fetching" ? "" : pull.stage })),
  ];
}

function draw() {
  const place = $("#transfers");
  if (!place) return; // this account brings no models
  const shown = transfers();
  const sum = (member) => shown.reduce((total, item) => total + item[member], 0);
  const [received, size] = [sum("received"), sum("size")];
  place.hidden = !shown.length;
  $("progress", place).value = size ? received / size : 0;
  const amount = (shown.length === 1 && shown[0].words) || `${bytes(received)} of ${bytes(size)}`;
  $(".num", place).textContent = `${shown.length === 1 ? shown[0].name : `${shown.length} transfers`}: ${amount}`;
}

document.body.addEventListener("live-uploads", (event) => {
  ({ uploads: others, pulls } = event.detail);
  draw();
});
