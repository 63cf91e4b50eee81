// Sends uploads in pieces, each to the offset that the server names, so that a broken connection costs one piece. First
// go the small files and the heads of the weights: the server says what the model is, or refuses it, before the rest.
// Runs in a shared worker, so that uploads go on while pages change, or in the page where there are no such workers.

const RETRIES = 6;
const CHECK_EVERY_MS = 400;
const LANES = 2; // files sent beside each other; one alone rarely fills a fast line
const isWeights = (name) => /\.(safetensors|gguf|ggml)$/.test(name);
const TROUBLE = "connection trouble, trying again";
const pauseAfter = (failures) => new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** failures, 15000)));
/** Whether the server can't be reached, or starts. */
const isAway = ({ status }) => status === 0 || status >= 502;

class Refusal extends Error {
  constructor(message, status, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export class Uploader {
  /** @param tell is called with the list of runs whenever something has changed. */
  constructor(tell) {
    this.tell = tell;
    this.runs = [];
    this.token = "";
    this.timer = null;
  }

  /** What pages are shown of the runs. */
  list() {
    return this.runs.map(({ files, controller, overrides, ...shown }) => ({ ...shown, files: files.map(({ name, size, sent }) => ({ name, size, sent })) }));
  }

  changed() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.tell(this.list());
    }, 120);
  }

  set(run, values) {
    Object.assign(run, values);
    this.changed();
  }

  async ask(run, method, url, body, headers = {}) {
    let response;
    const isKept = method === "DELETE" || !run.id; // an upload is made, or goes: a cancellation has to know of it
    try {
      response = await fetch(url, {
        method,
        body,
        signal: isKept ? undefined : run.controller.signal,
        headers: {
          Accept: "application/json",
          "X-CSRFToken": this.token,
          ...(body === undefined ? {} : { "Content-Type": typeof body === "string" ? "application/json" : "application/octet-stream" }),
          ...headers,
        },
      });
    } catch (error) {
      if (run.controller.signal.aborted) throw error;
      throw new Refusal("The server can't be reached.", 0);
    }
    const text = await response.text();
    if (response.ok) return text ? JSON.parse(text) : null;
    let message = `The server answered ${response.status}.`;
    let param;
    try {
      ({ message, param } = JSON.parse(text).error);
    } catch {
      // A page of an error: its status says enough.
    }
    throw new Refusal(message, response.status, param);
  }

  /** As `ask`, again while the server is away: what it has received stays, and so does where its check is. */
  async askUntilBack(run, ...request) {
    for (let failures = 1; ; failures += 1) {
      try {
        return await this.ask(run, ...request);
      } catch (error) {
        if (!isAway(error) || failures > RETRIES) throw error;
        this.set(run, { stage: TROUBLE });
        await pauseAfter(failures);
      }
    }
  }

  /** Begin an upload, or go on with the one that has the id. `files` are {name, file}; a size will do for a whole one. */
  start({ key, name, files, overrides, id }) {
    const run = {
      key, id: id ?? null, name, overrides, state: "starting", stage: "", reason: "", report: null, checkpoint: null,
      total: files.reduce((sum, { file }) => sum + file.size, 0), startedAt: Date.now(), startedWith: 0,
      controller: new AbortController(),
      files: files.map(({ name: fileName, file }) => ({ name: fileName, file, size: file.size, sent: 0, number: 0 })),
    };
    this.runs = [...this.runs.filter((other) => !["done", "refused", "cancelled"].includes(other.state)), run];
    this.changed();
    this.work(run).catch((error) => {
      if (run.state === "cancelled") return;
      if (isAway(error)) this.set(run, { state: "interrupted", reason: `${error.message} Go on with the same files later.` });
      else this.set(run, { state: run.id && error.param === "served_model_name" ? "unnamed" : "refused", reason: error.message });
    });
  }

  async work(run) {
    if (run.id) await this.resume(run);
    else {
      const files = run.files.map(({ name, size }) => ({ name, size_bytes: size }));
      const made = await this.ask(run, "POST", "/registry/uploads", JSON.stringify({ served_model_name: run.name, files, overrides: run.overrides }));
      run.id = made.id;
      if (run.state === "cancelled") return this.ask(run, "DELETE", `/registry/uploads/${run.id}`);
      run.chunk = made.chunk_bytes;
      run.files.forEach((file, number) => (file.number = number));
    }
    run.startedWith = run.files.reduce((sum, { sent }) => sum + sent, 0);
    if (!isWhole(run)) {
      this.set(run, { state: "sending", stage: "config and heads" });
      await this.preview(run);
      this.set(run, { stage: "" });
      await this.sendAll(run, run.files.map((file) => [file, file.size]));
    }
    this.set(run, { state: "checking", stage: "waiting" });
    const named = JSON.stringify({ served_model_name: run.name });
    let upload = await this.askUntilBack(run, "POST", `/registry/uploads/${run.id}/finish`, named);
    while (["receiving", "checking"].includes(upload.state)) {
      this.set(run, { stage: upload.stage });
      await new Promise((resolve) => setTimeout(resolve, CHECK_EVERY_MS));
      // One that was being checked and is complete again had its server stopped, and its check begins again; or its name was
      // taken meanwhile, and the server says so.
      if (upload.state === "receiving") upload = await this.askUntilBack(run, "POST", `/registry/uploads/${run.id}/finish`, named);
      else upload = await this.askUntilBack(run, "GET", `/registry/uploads/${run.id}`);
    }
    if (upload.state === "done") this.set(run, { state: "done", checkpoint: upload.checkpoint });
    else this.set(run, { state: upload.state, reason: upload.reason });
  }

  /** Match files with those of the upload, and compare the last bytes that the server has of each. */
  async resume(run) {
    const upload = await this.askUntilBack(run, "GET", `/registry/uploads/${run.id}`);
    run.chunk = upload.chunk_bytes;
    run.files = upload.files.map((known, number) => {
      const found = run.files.find(({ name, size }) => name === known.name && size === known.size_bytes);
      if (!found) throw new Refusal(`${known.name} (${known.size_bytes} bytes) isn't among the files; choose those whose upload began.`, 400);
      return { ...found, number, sent: known.received_bytes };
    });
    run.total = run.files.reduce((sum, { size }) => sum + size, 0);
    if (isWhole(run)) return; // nothing more is sent of them
    for (const file of run.files) {
      const begin = Math.max(0, file.sent - run.chunk);
      if (file.sent) await this.ask(run, "PUT", `/registry/uploads/${run.id}/files/${file.number}?offset=${begin}&compare=1`, file.file.slice(begin, file.sent));
    }
  }

  /** Send what says what the model is, more of the heads while that isn't enough, and take the server's word. */
  async preview(run) {
    for (let head = run.chunk; ; head *= 4) {
      const parts = await Promise.all(run.files.map(async (file) => [file, isWeights(file.name) ? await headBytes(file, head) : file.size]));
      await this.sendAll(run, parts);
      const found = await this.askUntilBack(run, "POST", `/registry/uploads/${run.id}/preview`);
      if (found.is_conclusive) return this.set(run, { report: found });
      if (head >= 64 << 20 || isWhole(run)) return undefined;
    }
  }

  async sendAll(run, parts) {
    const waiting = [...parts];
    const lane = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) await this.sendFile(run, ...next);
    };
    await Promise.all(Array.from({ length: LANES }, lane));
  }

  async sendFile(run, file, end) {
    let failures = 0;
    while (file.sent < Math.min(end, file.size)) {
      try {
        const piece = await file.file.slice(file.sent, Math.min(file.sent + run.chunk, file.size)).arrayBuffer();
        const answer = await this.ask(run, "PUT", `/registry/uploads/${run.id}/files/${file.number}?offset=${file.sent}`, piece, await digestOf(piece));
        file.sent = answer.received_bytes;
        failures = 0;
        this.set(run, { stage: run.stage === TROUBLE ? "" : run.stage });
      } catch (error) {
        // A refusal is final; a lost connection, a busy server or an unexpected offset is worth another look.
        const isTransient = isAway(error) || error.status === 409;
        if (!isTransient || ++failures > RETRIES) throw error;
        this.set(run, { stage: TROUBLE });
        await pauseAfter(failures);
        const upload = await this.ask(run, "GET", `/registry/uploads/${run.id}`).catch((problem) => (isAway(problem) ? null : Promise.reject(problem)));
        if (upload && upload.state !== "receiving") throw new Refusal(upload.reason || `The upload is ${upload.state}.`, 400);
        if (upload) file.sent = upload.files[file.number].received_bytes;
      }
    }
  }

  async cancel(key) {
    const run = this.runs.find((item) => item.key === key);
    if (!run) return;
    this.set(run, { state: "cancelled", reason: "What had been sent was removed from the server." });
    run.controller.abort();
    if (run.id) await this.ask(run, "DELETE", `/registry/uploads/${run.id}`).catch(() => null);
  }

  receive(message) {
    if (message.token) this.token = message.token;
    if (message.type === "start") this.start(message);
    else if (message.type === "cancel") this.cancel(message.key);
    else if (message.type === "forget") this.runs = this.runs.filter(({ key }) => key !== message.key);
    this.changed();
  }
}

/** Whether the server has all bytes. */
const isWhole = ({ files }) => files.every(({ sent, size }) => sent === size);

/** The header by which the server sees that a piece arrived as it was; none where a page may not compute it (plain HTTP). */
async function digestOf(piece) {
  if (!globalThis.crypto?.subtle) return {};
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", piece));
  return { "Content-Digest": `sha-256=:${btoa(String.fromCharCode(...digest))}:` };
}

/** Bytes of a weight file that hold its header: known for safetensors, else as many as asked for. */
async function headBytes({ file, size }, wanted) {
  if (!file.name.endsWith(".safetensors") || size < 8) return wanted;
  const length = new DataView(await file.slice(0, 8).arrayBuffer()).getBigUint64(0, true);
  return Math.min(8 + Number(length), size);
}
