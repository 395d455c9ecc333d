// Questions to the server. A refusal comes back as an error whose message is one sentence to show.

async function reply(response) {
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    throw new Error("The explorer gave no answer; is it still running?");
  }
  if (!response.ok) throw new Error(answer.error ?? "The explorer refused without a reason.");
  return answer;
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The explorer does not answer; is it still running?");
  }
  return reply(response);
}

export const get = (path) => ask(path, {});

export const post = (path, value, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value), signal });

export const upload = (path, file) =>
  ask(path, { method: "POST", headers: { "content-type": "application/octet-stream" }, body: file });

/**
 * A question that is asked again and again while somebody types or drags: after a short pause, the
 * newest one only, and no answer to an older one is ever shown.
 */
export function latest(path, pause, { waiting, answered, refused }) {
  let timer = 0;
  let current = null;
  return (value) => {
    clearTimeout(timer);
    current?.abort();
    const controller = new AbortController();
    current = controller;
    timer = setTimeout(async () => {
      waiting?.();
      try {
        const answer = await post(path, value, controller.signal);
        if (current === controller) answered(answer);
      } catch (error) {
        if (error.name !== "AbortError" && current === controller) refused(error.message);
      }
    }, pause);
  };
}
