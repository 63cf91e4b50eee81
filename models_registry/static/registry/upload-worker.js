// The shared worker that sends uploads; every page of the console is connected to it.
import { Uploader } from "./uploader.js";

const ports = new Set();
const uploader = new Uploader((runs) => ports.forEach((port) => port.postMessage({ runs })));

self.onconnect = ({ ports: [port] }) => {
  ports.add(port);
  port.onmessage = ({ data }) => {
    if (data.type === "bye") return ports.delete(port);
    ports.add(port); // of a page that was left, and is back
    uploader.receive(data);
  };
  port.postMessage({ runs: uploader.list() });
};
