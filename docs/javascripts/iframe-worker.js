/* Browsers start no worker from a file on disk. There, the search runs its script in a hidden frame instead,
   which speaks as a worker does. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.tell(this, data);
      this.inside.importScripts = (...addresses) => Promise.all(addresses.map((one) => this.run(one)));
      this.run(address).then(() => {
        this.waiting.forEach((data) => this.tell(this.inside, data));
        this.waiting = null;
      });
    }

    run(address) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, { src: new URL(address, location), onload: done, onerror: failed });
        this.inside.document.body.append(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.tell(this.inside, data);
    }

    tell(target, data) {
      const event = new MessageEvent("message", { data });
      target.dispatchEvent(event);
      if (target === this && this.onmessage) this.onmessage(event);
    }

    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
