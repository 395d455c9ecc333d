// Answers questions beside the page, so that the page stays quick.

import { answered } from "./answer.js";
import { answering } from "./static/courier.js";

const problems = fetch(new URL("./problems.json", import.meta.url)).then((response) => response.json());

answering(async (question) => {
  const answer = answered(await problems, question);
  await new Promise((go) => setTimeout(go)); // what was asked meanwhile is read now, and the newest of it comes next
  return answer;
});
