// Chats that are kept for the account, so that they are there after a reload.
import { $, call, h, toast } from "../kit.js";
import { iconButton } from "./parts.js";

const KEPT = ["role", "content", "parent", "reasoning", "tool_calls", "tool_call_id", "images", "model", "figures", "reason"];

/** A random UUID; crypto.randomUUID exists over HTTPS and on loopback only. */
function newId() {
  const parts = [...crypto.getRandomValues(new Uint8Array(16))];
  parts[6] = (parts[6] & 15) | 64;
  parts[8] = (parts[8] & 63) | 128;
  const text = parts.map((part) => part.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

/** A conversation as it is kept: without what the page alone knows. */
export function conversation({ tree, model }) {
  const turns = tree.turns.map((turn) => Object.fromEntries(KEPT.filter((name) => turn[name] !== undefined && turn[name] !== "").map((name) => [name, turn[name]])));
  for (const turn of turns) turn.content ??= "";
  return { model: model.name, turns, leaf: tree.leaf };
}

/** The server takes neither NUL nor half of a surrogate pair in texts. */
const storable = (name, value) => (typeof value === "string" ? value.replaceAll("\0", "\ufffd").toWellFormed() : value);

/** A chat as it can be kept: the oldest pictures go, until it is small enough. */
function fitted(chat, maxBytes) {
  const turns = [...chat.turns, ...(chat.second?.turns ?? [])];
  for (;;) {
    const text = JSON.stringify(chat, storable);
    const large = turns.find((turn) => turn.images?.some(({ url }) => url));
    if (!large || new Blob([text]).size <= maxBytes) return JSON.parse(text);
    large.images = large.images.map(({ name }) => ({ name }));
  }
}

export class Chats {
  constructor(id, maxBytes) {
    Object.assign(this, { id, maxBytes, wanted: null, isSending: false });
  }

  forget() {
    this.id = null;
    this.wanted = null;
    history.replaceState(null, "", location.pathname);
    $("#chats [aria-current]")?.removeAttribute("aria-current");
  }

  /** Keep a chat; of several that wait, the last one counts. */
  async keep(chat) {
    this.id ??= newId();
    this.wanted = { id: this.id, chat };
    if (this.isSending) return;
    this.isSending = true;
    while (this.wanted) {
      const { id, chat: next } = this.wanted;
      this.wanted = null;
      try {
        const { title } = await call("PUT", `/registry/chats/${id}`, fitted(structuredClone(next), this.maxBytes));
        if (this.id === id) this.#shown(id, title);
      } catch (error) {
        toast(`The chat isn't kept: ${error.message}`, "warn");
      }
    }
    this.isSending = false;
  }

  #shown(id, title) {
    history.replaceState(null, "", `?chat=${id}`);
    if (document.getElementById(`chat-${id}`)) return;
    $("#chats .muted")?.remove();
    $("#chats [aria-current]")?.removeAttribute("aria-current");
    $("#chats").prepend(
      h("li.spread.flex-nowrap", { id: `chat-${id}` }, h("a.text-truncate", { href: `?chat=${id}`, "aria-current": "true" }, title), iconButton("close", `Delete the chat ${title}`, null, { title: "Delete", "data-delete-url": `/registry/chats/${id}`, "data-leads-to": location.pathname })),
    );
  }
}
