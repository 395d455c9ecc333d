// In the place of the explorer's own api.js, which the page's import map names: a worker in the browser has the answers.

import { newestOf } from "./static/newest.js";

export const newest = (path, stage, handlers) =>
  newestOf(new Worker(new URL("./worker.js", import.meta.url), { type: "module" }), stage, handlers);

// What needs Python is not offered on this page (page.js hides it).
const onlyThere = async () => {
  throw new Error("This needs 'mirrormax explore'.");
};
export { onlyThere as fetchFile, onlyThere as post, onlyThere as upload };
