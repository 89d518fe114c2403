// What keeps itself fresh: nothing is asked while nobody looks, and nothing that a person is at is taken away.
(() => {
  const polls = (element) => element.matches("[data-live]");
  const lost = () => document.getElementById("lost");

  Idiomorph.defaults.callbacks.beforeNodeMorphed = (old, fresh) =>
    !(old instanceof Element && old.matches("[data-keep]") && fresh instanceof Element && old.id === fresh.id);
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, element) =>
    !(name === "open" && element instanceof HTMLDetailsElement);

  // A stream of events says what changed, so that polling can be slow. Without one, polling goes on as the page has it.
  const SLOW_MS = 20000; // ages on the page, as of heartbeats, change without an event
  const AGAIN_MS = 60000;
  let stream = null, connected = false, refreshed = 0;
  const live = () => document.querySelectorAll("[data-live]");
  const disconnect = () => {
    stream?.close();
    stream = null;
    connected = false;
  };
  const connect = () => {
    if (stream || document.hidden || !window.EventSource || live().length === 0) return;
    const opened = (stream = new EventSource("/events"));
    opened.addEventListener("open", () => (connected = true));
    opened.addEventListener("changed", (event) => {
      const changed = JSON.parse(event.data);
      live().forEach((part) => {
        const topics = part.dataset.live.split(" ");
        if (changed.some((topic) => topic === "all" || topics.includes(topic))) htmx.trigger(part, "refresh");
      });
    });
    opened.addEventListener("error", () => {
      connected = false;
      if (opened.readyState !== EventSource.CLOSED || stream !== opened) return; // the browser connects again
      stream = null;
      setTimeout(connect, AGAIN_MS);
    });
  };
  connect();
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);
  document.addEventListener("htmx:afterSwap", () => live().length === 0 && disconnect());

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (!polls(event.detail.elt)) return;
    const asked = event.detail.requestConfig.triggeringEvent?.type === "refresh";
    if (document.hidden || (connected && !asked && Date.now() - refreshed < SLOW_MS)) event.preventDefault();
    else refreshed = Date.now();
  });
  // A hidden page holds no connection: a browser has six for all pages of a server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return disconnect();
    live().forEach((part) => htmx.trigger(part, "refresh"));
    connect();
  });
  document.addEventListener("htmx:afterRequest", (event) => (lost().hidden = event.detail.successful === true));

  const dark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  };
  const toggle = document.getElementById("theme");
  const label = () => {
    toggle.textContent = dark() ? "Light" : "Dark";
    toggle.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
  };
  toggle.addEventListener("click", () => {
    const chosen = dark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    localStorage.setItem("theme", chosen);
    label();
    document.dispatchEvent(new Event("farm:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    document.dispatchEvent(new Event("farm:theme"));
  });
  label();
})();
