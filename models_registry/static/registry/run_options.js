// The fields that say how the checkpoints of a run are measured; each has the name that the API gives it.
import { $$ } from "./kit.js";

function valueOf({ name, type, value }) {
  if (name === "prompts") return value.split("\n").filter((line) => line.trim());
  return type === "number" ? Number(value) : value;
}

export const runOptions = (form) => Object.fromEntries($$("[name]", form).map((field) => [field.name, valueOf(field)]));

/** Those that are no longer as the page had them: a prompt of several lines is kept while nobody touches the prompts. */
export const changedOptions = (form) =>
  Object.fromEntries($$("[name]", form).filter((field) => field.value !== field.defaultValue).map((field) => [field.name, valueOf(field)]));
