// The page of a model, on every tab: what the page before this one had to say.
import { showSaid } from "./reload.js";

showSaid();
