// The newest of many questions, as fast as answers come.

const LATE = 400; // a shorter wait is not worth a flicker

/**
 * A question that is asked again and again while somebody types or drags. A worker asks it (courier.js): one is under
 * way at a time, and when its answer is there the newest one follows at once, whatever the page is busy drawing. What
 * came between is never sent, and every answer is shown. The stage is busy until the newest question is answered, and
 * waiting when an answer takes long. An answer comes with its question, and what `answered` returns is asked next if
 * nothing newer is; a refusal is told if nothing newer is asked.
 */
export function newestOf(worker, stage, { asked, answered, refused }) {
  const open = new Map(); // questions without an answer, by number
  let count = 0;
  let timer = 0;
  const wait = () => {
    timer = setTimeout(() => stage.classList.add("waiting"), LATE);
  };
  const ask = (question) => {
    asked?.();
    if (!open.size) {
      stage.ariaBusy = "true";
      wait();
    }
    open.set((count += 1), question);
    worker.postMessage({ number: count, question });
  };
  worker.addEventListener("message", ({ data: { number, answer, refusal } }) => {
    const question = open.get(number);
    for (const earlier of [...open.keys()]) if (earlier <= number) open.delete(earlier);
    clearTimeout(timer);
    stage.classList.remove("waiting");
    try {
      if (refusal === undefined) {
        const further = answered(answer, question);
        if (further && !open.size) ask(further);
      } else if (!open.size) refused(refusal);
    } catch (error) {
      console.error(error); // a mistake in drawing must not end the questions
      refused(error.message);
    }
    worker.postMessage({ shown: true });
    clearTimeout(timer);
    if (open.size) wait();
    else stage.ariaBusy = "false";
  });
  worker.addEventListener("error", () => refused("The explorer does not answer; is it still running?"));
  return ask;
}
