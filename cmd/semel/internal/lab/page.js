"use strict";
// What the page shows is made by the server. This sends what the buttons say, and
// asks for the page anew when the server tells that there is something new.
const {operation, lang, example} = document.body.dataset;
const now = document.querySelector("#now");
let reference = new URLSearchParams(location.search).get("reference") ?? "";

// send asks once. The page shows whether a response comes.
const send = (key, {who = "alice@acme", body = example.replace("REF", reference)} = {}) =>
  fetch(`/page/${operation}`, {
    method: "POST", body,
    headers: {"Content-Type": "application/json", Authorization: `Bearer ${who}`, "Idempotency-Key": `"${key}"`},
  }).then(r => r.status, () => 0);

// Each asks for one thing. The key belongs to what is wanted, not to the request.
const ways = {
  once: key => send(key),
  double: key => Promise.all([send(key), send(key)]),
  race: key => Promise.all(Array.from({length: 5}, () => send(key))),
  async lose(key) {
    await change(operation, {lose_answer: true});
    await send(key);
    await change(operation, {lose_answer: false});
    await send(key);
  },
  async newkey(key) { await send(key); await send(crypto.randomUUID()); },
  async stranger(key) { await send(key); await send(key, {who: "mallory@acme"}); },
  webhook: () => fetch(`/lab/deliver/${operation}?times=2`, {method: "POST", body: example.replace("REF", reference)}),
  job: async key => { await job(key); await job(key); },
  async late(key) {
    const first = send(key);
    await new Promise(done => setTimeout(done, 300));
    await Promise.all([first, send(key)]);
  },
  crash: key => crashing(() => send(key)),
  crashjob: key => crashing(() => job(key)),
  async altered(key) {
    await send(key);
    await send(key, {body: example.replace("REF", reference + "-altered")});
  },
};

const job = key => fetch(`/jobs/${operation}`, {
  method: "POST", body: example.replace("REF", reference),
  headers: {"Content-Type": "application/json", Authorization: "Bearer alice@acme", "Idempotency-Key": `"${key}"`},
}).then(r => r.status, () => 0);

// crashing sends, has the app killed midway, and sends again.
async function crashing(send) {
  await change(operation, {crash: true});
  await send();
  await new Promise(done => setTimeout(done, 500)); // a job is begun after its response
  await change(operation, {crash: false});
  await send();
}

const change = (name, what) => fetch(`/lab/switches/${name}`, {method: "PATCH", body: JSON.stringify(what)});

document.addEventListener("click", async e => {
  const b = e.target.closest("button");
  if (!b) return;
  b.disabled = true;
  try {
    if (b.dataset.send === "again") {
      await send(b.dataset.key);
    } else if (b.dataset.send) {
      reference = `${operation}-${crypto.randomUUID().slice(0, 8)}`;
      history.replaceState(null, "", `/?lang=${lang}&operation=${operation}&reference=${reference}`);
      await ways[b.dataset.send](crypto.randomUUID());
    } else if (b.dataset.preset) {
      await fetch(`/lab/presets/${b.dataset.preset}?operation=${operation}`, {method: "POST"});
    } else if ("probe" in b.dataset) {
      await fetch(`/lab/probe/${operation}`, {method: "POST"});
    } else if ("reset" in b.dataset) {
      reference = "";
      await fetch("/lab/reset", {method: "POST"});
    }
  } finally { b.disabled = false; }
  refresh();
});

document.addEventListener("change", async e => {
  const name = e.target.dataset?.switch;
  if (!name) return;
  const value = {checkbox: t => t.checked, number: t => Number(t.value)}[e.target.type]?.(e.target) ?? e.target.value;
  await change(operation, {[name]: value});
  refresh();
});

// The part that changes is put in place anew; who was somewhere with the keyboard
// stays there, and what was unfolded stays so.
let asked = 0;
async function refresh() {
  const turn = ++asked;
  const r = await fetch(`/lab/now?lang=${lang}&operation=${operation}&reference=${encodeURIComponent(reference)}`).catch(() => null);
  if (!r?.ok || turn !== asked) return;
  const text = await r.text();
  const all = "button, input, select, summary, a, [tabindex]";
  const at = [...now.querySelectorAll(all)].indexOf(document.activeElement);
  if (document.activeElement?.type === "number") return;
  const open = [...now.querySelectorAll("details")].map(d => d.open);
  now.innerHTML = text;
  now.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? false; });
  if (at >= 0) now.querySelectorAll(all)[at]?.focus();
}
new EventSource("/lab/events").onmessage = refresh;
