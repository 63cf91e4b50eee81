// Pictures of the message that is being written: chosen, pasted or dropped, seen before they are sent.
import { $, bytes, h, toast } from "../kit.js";
import { iconButton } from "./parts.js";

const TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MAX_BYTES = 10 << 20; // of a picture, as the server reads it
const MAX_IMAGES = 32; // of a request
const IMAGE_URL = /^data:image\/(png|jpeg|webp|gif);base64,[A-Za-z0-9+/=]+$/;

const readAsUrl = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });

/** A picture that was sent, or its name where it isn't kept. */
export function thumbnail({ name, url }) {
  if (!url || !IMAGE_URL.test(url)) return h("span.badge.border.fw-normal.muted", {}, `${name} (not kept)`);
  return h("img.thumbnail.rounded.border", { src: url, alt: name, title: name });
}

export class Attachments {
  /** cannotSee: returns the name of a model that reads text only, if there is one. */
  constructor({ maxBodyBytes, cannotSee, changed }) {
    this.images = [];
    this.maxBodyBytes = maxBodyBytes;
    this.cannotSee = cannotSee;
    this.changed = changed;
    $("#attach").addEventListener("click", () => $("#image-files").click());
    $("#image-files").addEventListener("change", (event) => {
      this.add([...event.target.files]);
      event.target.value = "";
    });
    const composer = $("#composer");
    composer.addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    composer.addEventListener("drop", (event) => this.#take(event, event.dataTransfer));
    composer.addEventListener("dragover", (event) => event.dataTransfer.types.includes("Files") && event.preventDefault());
  }

  #take(event, data) {
    if (!data?.files.length) return;
    event.preventDefault();
    this.add([...data.files]);
  }

  async add(files) {
    const blind = this.cannotSee();
    if (blind) return toast(`${blind} reads text only.`, "warn");
    for (const file of files) {
      const problem = this.#problem(file);
      if (problem) {
        toast(problem, "bad");
        continue;
      }
      this.images.push({ name: (file.name || "picture").slice(0, 255), url: await readAsUrl(file), size: file.size });
    }
    this.draw();
  }

  #problem(file) {
    if (!TYPES.includes(file.type)) return `${file.name} is ${file.type || "of an unknown type"}; PNG, JPEG, WebP and GIF are read.`;
    if (file.size > MAX_BYTES) return `${file.name} has ${bytes(file.size)}; a picture may have ${bytes(MAX_BYTES)}.`;
    if (this.images.length >= MAX_IMAGES) return `A message may have ${MAX_IMAGES} pictures.`;
    const total = this.images.reduce((sum, { size }) => sum + size, file.size);
    if ((total * 4) / 3 > this.maxBodyBytes * 0.95) return `The pictures have ${bytes(total)} together; a request may have ${bytes(this.maxBodyBytes)}.`;
    return "";
  }

  /** Hand over the pictures: the next message begins without any. */
  take() {
    const taken = this.images.map(({ name, url }) => ({ name, url }));
    this.images = [];
    this.draw();
    return taken;
  }

  /** Take pictures back that weren't sent. */
  restore(images) {
    if (this.images.length || !images.length) return;
    this.images = images.map((image) => ({ ...image, size: (image.url.length * 3) / 4 }));
    this.draw();
  }

  draw() {
    const place = $("#attached");
    place.replaceChildren(
      ...this.images.map((image) =>
        h("li.attached", {}, thumbnail(image), iconButton("close", `Remove ${image.name}`, () => {
          this.images = this.images.filter((other) => other !== image);
          this.draw();
          $("#prompt").focus();
        })),
      ),
    );
    place.hidden = !this.images.length;
    this.changed();
  }
}
