// Questions to the server. A refusal comes back as an error whose message is one sentence to show.

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

const LATE = 400; // a shorter wait is not worth a flicker

/**
 * A question that is asked again and again while somebody types or drags: one is under way at a time, and when its
 * answer is there the newest one follows at once, so that the server works on it while the answer is drawn. What came
 * between is never sent, and every answer is shown: the picture moves as fast as answers come. The stage is busy until
 * the newest question is answered, and waiting when an answer takes long. An answer comes with its question, and what
 * `answered` returns is asked next if nothing newer is; a refusal is told if nothing newer is asked.
 */
export function newest(path, stage, { asked, answered, refused }) {
  let next = null;
  let busy = false;
  const send = () => {
    const value = next;
    next = null;
    asked?.();
    const timer = setTimeout(() => stage.classList.add("waiting"), LATE);
    const reply = post(path, value).then((answer) => ({ answer, value }), ({ message }) => ({ message }));
    return reply.finally(() => clearTimeout(timer));
  };
  const go = async () => {
    busy = true;
    stage.ariaBusy = "true";
    for (let reply = send(); reply !== null; ) {
      const { answer, value, message } = await reply;
      reply = next === null ? null : send();
      stage.classList.remove("waiting");
      try {
        if (message === undefined) {
          const further = answered(answer, value);
          if (reply === null) next ??= further ?? null;
        } else if (reply === null) refused(message);
      } catch (error) {
        console.error(error); // a mistake in drawing must not end the questions
        refused(error.message);
      }
      if (reply === null && next !== null) reply = send();
    }
    busy = false;
    stage.ariaBusy = "false";
  };
  return (value) => {
    next = value;
    if (!busy) go();
  };
}
