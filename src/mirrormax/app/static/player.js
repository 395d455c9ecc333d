// Play, pause and scrub through the frames of a training run.

const SECONDS = 5;

export function makePlayer(button, scrub, show) {
  let frames = 1;
  let playing = false;
  let began = 0;

  const go = (frame) => {
    scrub.value = frame;
    show(frame);
  };
  const stop = () => {
    playing = false;
    button.textContent = "Play";
  };
  const tick = (now) => {
    if (!playing) return;
    const frame = Math.floor(((now - began) / (1000 * SECONDS)) * frames);
    if (frame >= frames - 1) {
      go(frames - 1);
      stop();
      return;
    }
    go(Math.max(0, frame));
    requestAnimationFrame(tick);
  };
  button.addEventListener("click", () => {
    if (playing) {
      stop();
      return;
    }
    const from = Number(scrub.value) >= frames - 1 ? 0 : Number(scrub.value);
    playing = true;
    button.textContent = "Pause";
    began = performance.now() - (from / frames) * 1000 * SECONDS;
    requestAnimationFrame(tick);
  });
  scrub.addEventListener("input", () => {
    stop();
    show(Number(scrub.value));
  });

  /** Take another run: at its end if the last one stood there, else at the same share of the way. */
  return (count) => {
    const share = frames > 1 ? Number(scrub.value) / (frames - 1) : 1;
    const was = frames;
    frames = count;
    scrub.max = count - 1;
    if (playing) began = performance.now() - share * 1000 * SECONDS;
    go(was > 1 ? Math.round(share * (count - 1)) : count - 1);
  };
}
