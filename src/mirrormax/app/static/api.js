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

/**
 * A question that is asked again and again while somebody types or drags: one is under way at a time, and when its
 * answer is there the newest one follows. What came between is never sent, and every answer is shown, so that the
 * picture moves as fast as answers come. A refusal is shown if nothing newer waits.
 */
export function newest(path, { waiting, answered, refused }) {
  let next = null;
  let busy = false;
  const go = async () => {
    busy = true;
    while (next !== null) {
      const value = next;
      next = null;
      waiting?.();
      try {
        answered(await post(path, value), value);
      } catch (error) {
        if (next === null) refused(error.message);
      }
    }
    busy = false;
  };
  return (value) => {
    next = value;
    if (!busy) go();
  };
}
