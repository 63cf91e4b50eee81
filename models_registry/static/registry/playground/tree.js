// Turns of a conversation as a tree: an edited message and another answer are branches, and nothing is lost.

export class Tree {
  /** turns: {role, content, parent, …}; leaf: number of the last turn that is shown, null if there is none. */
  constructor(turns = [], leaf = null) {
    this.turns = turns.map((turn, i) => ({ ...turn, parent: turn.parent === undefined ? (i ? i - 1 : null) : turn.parent }));
    this.leaf = this.turns.length ? leaf ?? this.turns.length - 1 : null;
  }

  copy() {
    return new Tree(this.turns, this.leaf);
  }

  /** Numbers of the turns from the first one to ``at``, the shown leaf. */
  path(at = this.leaf) {
    const numbers = [];
    for (; at !== null; at = this.turns[at].parent) numbers.unshift(at);
    return numbers;
  }

  /** Put a turn behind ``parent`` and show it; returns its number. */
  add(turn, parent = this.leaf) {
    this.turns.push({ ...turn, parent });
    return (this.leaf = this.turns.length - 1);
  }

  #children(parent) {
    return this.turns.flatMap((turn, i) => (turn.parent === parent ? [i] : []));
  }

  /** Numbers of the branches that one turn is one of. */
  branches(number) {
    return this.#children(this.turns[number].parent);
  }

  /** Show a branch, to its newest end. */
  show(number) {
    for (;;) {
      const children = this.#children(number);
      if (!children.length) return (this.leaf = number);
      number = children.at(-1);
    }
  }

  /** The conversation up to a turn as messages of a request. */
  messages(at = this.leaf) {
    return this.path(at).map((number) => messageOf(this.turns[number]));
  }
}

function messageOf({ role, content, images, reasoning, tool_calls: calls, tool_call_id: callId }) {
  if (role === "tool") return { role, tool_call_id: callId, content };
  if (role === "assistant") {
    return {
      role,
      content,
      ...(reasoning ? { reasoning_content: reasoning } : {}),
      ...(calls?.length ? { tool_calls: calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })) } : {}),
    };
  }
  const parts = (images ?? []).filter(({ url }) => url).map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role, content: parts.length ? [...parts, ...(content ? [{ type: "text", text: content }] : [])] : content };
}
