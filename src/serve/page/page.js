// Keeps the page up to date while it is visible: fetches it again and changes only what differs, so that focus, selection
// and scroll positions stay. Nothing is requested by a hidden page.
"use strict";
(() => {
  const every = 2000;
  const patience = 15000;
  let timer, tag, answered = Date.now(), busy = false;

  const morph = (old, now) => {
    if (old.nodeType !== now.nodeType || old.nodeName !== now.nodeName) {
      old.replaceWith(now);
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
      return;
    }
    for (const { name } of [...old.attributes]) {
      // What the reader opened stays open.
      if (!now.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
    }
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const children = [...old.childNodes], wanted = [...now.childNodes];
    wanted.forEach((child, place) => {
      if (place < children.length) morph(children[place], child);
      else old.append(child);
    });
    children.slice(wanted.length).forEach((child) => child.remove());
  };

  const lost = (why) => {
    let note = document.querySelector(".lost");
    if (!why) {
      if (note) note.remove();
      document.body.classList.remove("gone");
      return;
    }
    if (!note) {
      note = document.createElement("p");
      note.className = "lost";
      note.setAttribute("role", "alert");
      document.body.prepend(note);
      document.body.classList.add("gone");
      document.title = "? " + document.title;
    }
    if (note.textContent !== why) note.textContent = why;
  };

  const update = async () => {
    if (busy || document.hidden) return;
    busy = true;
    const stop = new AbortController();
    const limit = setTimeout(() => stop.abort(), patience);
    try {
      const headers = tag ? { "If-None-Match": tag } : {};
      const answer = await fetch(location.href, { headers, cache: "no-store", signal: stop.signal });
      if (answer.status === 200 || answer.status === 404) {
        const now = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!now.querySelector("main")) throw new Error("no page");
        tag = answer.headers.get("ETag");
        lost();
        for (const part of ["header", "main", "footer"]) morph(document.querySelector(part), now.querySelector(part));
        document.title = now.title;
      } else if (answer.status === 304) {
        lost();
      } else {
        throw new Error("status " + answer.status);
      }
      answered = Date.now();
    } catch (error) {
      const seconds = Math.round((Date.now() - answered) / 1000);
      lost("memwarden does not answer for " + seconds + " s: what is shown is old, and the state of the node is unknown.");
    } finally {
      clearTimeout(limit);
      busy = false;
    }
  };

  const run = () => {
    clearInterval(timer);
    if (document.hidden) return;
    update();
    timer = setInterval(update, every);
  };
  document.addEventListener("visibilitychange", run);
  run();
})();
