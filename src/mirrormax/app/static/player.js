// Play, pause and scrub through the frames of a training run.

const SECONDS = 5;

export function makePlayer(button, scrub, show) {
  let frames = 1;
  let playing = false;
  let began = 0;

  const go = (frame) => {
    if (Number(scrub.value) !== frame) scrub.value = frame;
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
    if (frame !== Number(scrub.value)) go(Math.max(0, frame));
    requestAnimationFrame(tick);
  };
  const play = () => {
    const from = Number(scrub.value) >= frames - 1 ? 0 : Number(scrub.value);
    playing = true;
    button.textContent = "Pause";
    go(from);
    began = performance.now() - (from / frames) * 1000 * SECONDS;
    requestAnimationFrame(tick);
  };
  button.addEventListener("click", () => (playing ? stop() : play()));
  scrub.addEventListener("input", () => {
    stop();
    show(Number(scrub.value));
  });

  return {
    play,
    /** Go to one frame and stay there. */
    stay: (frame) => {
      stop();
      go(Math.max(0, Math.min(frame, frames - 1)));
    },
    /** Take another run: at its end if the last one stood there, else at this frame, or -1 for the same share of the way. */
    take: (count, at) => {
      const share = frames > 1 ? Number(scrub.value) / (frames - 1) : 0;
      frames = count;
      if (Number(scrub.max) !== count - 1) scrub.max = count - 1;
      if (playing) began = performance.now() - share * 1000 * SECONDS;
      go(at >= 0 && share < 1 && !playing ? at : Math.round(share * (count - 1)));
    },
  };
}
