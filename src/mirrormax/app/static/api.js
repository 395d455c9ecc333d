// Questions to the server. A refusal comes back as an error whose message is one sentence to show.

import { newestOf } from "./newest.js";

async function sent(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new Error("The explorer does not answer; is it still running?");
  }
}

async function ask(path, options) {
  const response = await sent(path, options);
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    throw new Error("The explorer gave no answer; is it still running?");
  }
  if (!response.ok) throw new Error(answer.error ?? "The explorer refused without a reason.");
  return answer;
}

const question = (value) => ({ method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });

export const get = (path) => ask(path, {});
export const post = (path, value) => ask(path, question(value));
export const upload = (path, file) =>
  ask(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file });

/** A file that the server makes, as a Blob. */
export async function fetchFile(path, value) {
  const response = await sent(path, question(value));
  if (!response.ok) throw new Error((await response.json()).error);
  return response.blob();
}

/** {@link newestOf} for a question that the server answers. */
export const newest = (path, stage, handlers) =>
  newestOf(new Worker(new URL("./asker.js", import.meta.url), { type: "module", name: path }), stage, handlers);
