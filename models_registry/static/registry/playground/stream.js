// Generations over one WebSocket, /v1/stream: several at once, each with its own listener.

let socket = null;
let opening = null;
let nextId = 1;
const listeners = new Map();

function connected() {
  if (socket?.readyState === WebSocket.OPEN) return Promise.resolve(socket);
  opening ??= new Promise((resolve, reject) => {
    socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/stream`);
    socket.addEventListener("open", () => ((opening = null), resolve(socket)));
    socket.addEventListener("message", (event) => onFrame(JSON.parse(event.data)));
    socket.addEventListener("close", (event) => {
      const reason = event.code === 4401 ? "Sign in again: the session has ended." : "The connection to the server was lost.";
      opening = null;
      reject(new Error(reason));
      for (const id of [...listeners.keys()]) onFrame({ type: "error", id, error: { message: reason } });
    });
  });
  return opening;
}

function onFrame(frame) {
  if (frame.type === "error" && frame.id === null) {
    for (const id of [...listeners.keys()]) onFrame({ ...frame, id });
    return;
  }
  const listener = listeners.get(frame.id);
  if (["done", "cancelled", "error"].includes(frame.type)) listeners.delete(frame.id);
  listener?.(frame);
}

/**
 * Start a generation; ``listen`` gets its frames, also of where it waits, of which done, cancelled or error is the last.
 * Returns its end.
 */
export function start(kind, body, listen) {
  const id = `play-${nextId++}`;
  const request = { ...body, stream_options: { include_queue: true } };
  listeners.set(id, listen);
  connected().then(
    (open) => listeners.has(id) && open.send(JSON.stringify({ type: kind, id, request })),
    (error) => onFrame({ type: "error", id, error }),
  );
  return () => {
    if (!listeners.has(id)) return;
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: "cancel", id }));
    else onFrame({ type: "cancelled", id });
  };
}
