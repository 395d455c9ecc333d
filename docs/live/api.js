// In the place of the explorer's own api.js, which the page's import map names: questions go to a worker in the browser.

import { newestOf } from "./static/newest.js";

const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
let count = 0;

worker.addEventListener("message", ({ data: { id, answer, refusal } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (refusal === undefined) resolve(answer);
  else reject(new Error(refusal));
});

const ask = (question) =>
  new Promise((resolve, reject) => {
    waiting.set(++count, { resolve, reject });
    worker.postMessage({ id: count, question });
  });

export const newest = (path, stage, handlers) => newestOf(ask, stage, handlers);

// What needs Python is not offered on this page (page.js hides it).
const onlyThere = async () => {
  throw new Error("This needs 'mirrormax explore'.");
};
export { onlyThere as fetchFile, onlyThere as post, onlyThere as upload };
