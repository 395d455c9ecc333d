// Answers questions beside the page, so that the page stays quick.

import { answered } from "./answer.js";

const problems = fetch(new URL("./problems.json", import.meta.url)).then((response) => response.json());

addEventListener("message", async ({ data: { id, question } }) => {
  try {
    postMessage({ id, answer: answered(await problems, question) });
  } catch (error) {
    postMessage({ id, refusal: error.message });
  }
});
