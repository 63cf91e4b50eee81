// Facts of a checkpoint that a person sets: a field for the value, by the fact's rule.
import { h } from "./kit.js";

/** The choices of a rule; none where any text or number is taken. */
const choicesOf = (rule) => (rule.kind === "boolean" ? ["true", "false"] : rule.choices);

/** A field for the value of a fact, filled with `current` where it can be. */
export function factField(rule, id, current) {
  const choices = choicesOf(rule);
  const listed = choices.length > 0;
  const field = listed
    ? h("select", { id }, rule.nullable && h("option", { value: "" }, "none"), choices.map((choice) => h("option", {}, choice)))
    : rule.is_long
      ? h("textarea.font-monospace", { id, rows: 8, required: true, autocomplete: "off", autocapitalize: "off", spellcheck: "false" })
      : h("input", {
          id,
          type: rule.kind === "string" ? "text" : "number",
          step: rule.kind === "integer" ? 1 : "any",
          min: rule.low,
          max: rule.high,
          required: true,
          autocomplete: "off",
        });
  if (current !== null && current !== undefined && (!listed || choices.includes(String(current)))) field.value = String(current);
  return field;
}

/** The value of such a field, as the server takes it. */
export function factValue(rule, text) {
  if (rule.kind === "integer" || rule.kind === "number") return Number(text);
  if (rule.kind === "boolean") return text === "true";
  return rule.nullable && text === "" ? null : text;
}
