// In a worker: asks the newest of the page's questions (newest.js). In the page itself every answer would wait for the
// picture that is being drawn, twice, before the next question could follow.

const AHEAD = 2; // answers that the page has not shown yet: one is drawn while the next is waited for

/** Take messages { number, question } and send { number, answer } or { number, refusal }, as `ask` answers or fails. */
export function answering(ask) {
  let next = null;
  let busy = false;
  let unshown = 0;
  const go = async () => {
    busy = true;
    while (next !== null && unshown < AHEAD) {
      const { number, question } = next;
      next = null;
      const reply = await ask(question).then((answer) => ({ answer }), ({ message }) => ({ refusal: message }));
      unshown += 1;
      postMessage({ number, ...reply });
    }
    busy = false;
  };
  addEventListener("message", ({ data }) => {
    if (data.shown) unshown -= 1;
    else next = data;
    if (!busy) go();
  });
}
