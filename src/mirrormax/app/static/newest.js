// The newest of many questions, as fast as answers come.

const LATE = 400; // a shorter wait is not worth a flicker

/**
 * A question that is asked again and again while somebody types or drags: one is under way at a time, and when its
 * answer is there the newest one follows at once, so that it is worked on while the answer is drawn. What came
 * between is never sent, and every answer is shown: the picture moves as fast as answers come. The stage is busy until
 * the newest question is answered, and waiting when an answer takes long. An answer comes with its question, and what
 * `answered` returns is asked next if nothing newer is; a refusal is told if nothing newer is asked.
 */
export function newestOf(ask, stage, { asked, answered, refused }) {
  let next = null;
  let busy = false;
  const send = () => {
    const value = next;
    next = null;
    asked?.();
    const timer = setTimeout(() => stage.classList.add("waiting"), LATE);
    const reply = ask(value).then((answer) => ({ answer, value }), ({ message }) => ({ message }));
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
