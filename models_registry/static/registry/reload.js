// Draw a page anew, and say something after that.
import { toast } from "./kit.js";

const KEY = "blazr-said";

/** Most of a model's page follows from the inspection, so a change of it loads the page again. */
export function reloadWith(message) {
  sessionStorage.setItem(KEY, message);
  location.reload();
}

/** Show what the page before this one had to say. */
export function showSaid() {
  const said = sessionStorage.getItem(KEY);
  if (!said) return;
  sessionStorage.removeItem(KEY);
  toast(said);
}
