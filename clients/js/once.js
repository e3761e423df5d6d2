// One Idempotency-Key for each action of a user: across double clicks, retries
// and reloads of the page. docs/clients.md says how to use it and where it ends.

const flights = new Map() // what this page is sending now
const month = 30 * 24 * 3600e3

/**
 * Sends a request whose effect must happen once, and returns the Response. The
 * same action, asked for again, is sent with the same key until its answer is
 * on record at the server; while it is being sent, it is not sent a second time.
 *
 * Options:
 *   id       what the action is about, as a cart's id: one effect for it, for a
 *            month, and a changed request is refused (422). Without it, a changed
 *            request is another action. Needed where the body is not text.
 *   key      a key that the server made for this action and put into the page, for
 *            all tabs that show it. Default: a random UUID.
 *   storage  where keys are kept. sessionStorage (default): for the tab, its
 *            reloads and duplicates. localStorage: for all tabs, and later. In
 *            Node, fileStorage of node.js: for a folder, and later.
 *   maxAge   ms until a key may not be used any more; must be well below the
 *            server's retention. Default 12 hours.
 *   pause    ms after an answer in which the same request is still the same
 *            action: the second half of a double click. Default 2 seconds.
 *   tries    how often to send, at most. Default 6.
 *   settled  (response) => whether the server has it on record. Default: it has
 *            the header Idempotency-Expires.
 *
 * Rejects like fetch when no answer came or init.signal was aborted: the key is
 * kept, ask again. Rejects, sending nothing, with a StaleKeyError when the key
 * has become too old or cannot be read any more, and with a StorageError when it
 * cannot be kept.
 */
export async function once(action, url, init = {}, options = {}) {
  const { signal } = init
  signal?.throwIfAborted()
  const { slot, request } = place(action, url, init, options)
  const name = slot + request
  const flight = flights.get(name) ?? { calls: 0, abort: new AbortController() }
  const land = () => { if (flights.get(name) === flight) flights.delete(name) }
  if (flight.calls++ === 0) {
    flights.set(name, flight)
    flight.answer = send(slot, url, { ...init, signal: flight.abort.signal }, options).finally(land)
  }
  return new Promise((resolve, reject) => {
    const leave = () => {
      reject(signal.reason)
      if (--flight.calls > 0) return // somebody else waits for the answer
      land() // who asks now begins anew
      flight.abort.abort(signal.reason) // which also ends the tries
    }
    signal?.addEventListener('abort', leave)
    flight.answer.then((response) => resolve(response.clone()), reject)
      .finally(() => signal?.removeEventListener('abort', leave))
  })
}

/**
 * Makes the same call of once a new action. If the outcome of the old one is not
 * known, only the user can say that a second effect would be right.
 */
export function forget(action, url, init = {}, options = {}) {
  const { storage = sessionStorage } = options
  const { slot, request } = place(action, url, init, options)
  storage.removeItem(slot)
  flights.delete(slot + request)
}

async function send(slot, url, init, options) {
  const { id, maxAge = 12 * 3600e3, pause = 2000, tries = 6, settled = onRecord } = options
  const now = Date.now()
  let storage, entry
  try {
    ({ storage = sessionStorage } = options)
    entry = load(storage, slot)
    if (!entry || isOver(entry, now)) {
      entry = { key: options.key ?? newKey(), made: now, life: maxAge + month }
      sweep(storage, now)
      storage.setItem(slot, JSON.stringify(entry))
    }
  } catch (cause) {
    throw named('StorageError', 'once: the key cannot be kept, so nothing was sent', cause)
  }
  const { key, made } = entry
  if (!key || Math.abs(now - made) > maxAge) {
    throw named('StaleKeyError', 'once: the key cannot tell a retry from a new request any more, so nothing was sent')
  }
  const headers = new Headers(init.headers)
  headers.set('Idempotency-Key', `"${key}"`)
  for (let n = 1; ; n++) {
    const { response, retry, error } = await receive(url, { ...init, headers }).catch((error) => ({ error }))
    const fate = error ? 'keep' : decide(response, retry, settled)
    try {
      entry = load(storage, slot)
      if (entry?.key === key) { // or another tab has gone on to its next action
        if (fate === 'drop') storage.removeItem(slot)
        // It counts from the first answer. The entry gets no longer, so that it
        // fits a storage that has become full.
        if (fate === 'done' && id === undefined && entry.made) storage.setItem(slot, JSON.stringify({ key, done: Date.now(), life: pause }))
      }
    } catch { /* the answer is what matters: the action stays the same */ }
    const wait = retryAfter(response)
    const again = error ? !init.signal.aborted : retry ? retry === 'same-key' : fate === 'keep' && busy.has(response.status)
    if (!again || n >= tries || wait > 30) {
      if (error) throw error
      return response
    }
    const backoff = 250 * 2 ** (n - 1) * (1 + Math.random())
    await new Promise((resolve) => setTimeout(resolve, Math.max(wait * 1000, backoff)))
  }
}

// An entry has the key, when it was made or, without an id, when its answer came,
// and for how long after that it is of use. One that cannot be read has no key.
function load(storage, slot) {
  const text = storage.getItem(slot)
  if (text === null) return null
  try {
    const { key, made, done, life } = JSON.parse(text)
    // JSON has null for Infinity.
    if (typeof key === 'string' && Number.isFinite(done ?? made)) return { key, made, done, life: life ?? Infinity }
  } catch { /* it is not JSON */ }
  return {}
}

const isOver = ({ made, done = made, life }, now) => Math.abs(now - done) >= life

// Removes the entries that are of no use any more, or they would fill the storage.
function sweep(storage, now) {
  const slots = Array.from({ length: storage.length }, (_, i) => storage.key(i))
  for (const slot of slots.filter((slot) => slot.startsWith('["once",'))) {
    if (isOver(load(storage, slot) ?? {}, now)) storage.removeItem(slot)
  }
}

const named = (name, message, cause) => Object.assign(new Error(message, { cause }), { name })

const busy = new Set([408, 425, 429, 502, 503, 504])

async function receive(url, init) {
  const response = await fetch(url, init)
  const text = await response.clone().text() // an answer cut off in its body is none
  let retry
  if (/^application\/problem\+json\b/i.test(response.headers.get('Content-Type'))) {
    try { ({ retry } = JSON.parse(text)) } catch { /* no advice */ }
  }
  return { response, retry }
}

const onRecord = (response) => response.headers.has('Idempotency-Expires')

// In how many seconds the server wants to be asked again: it says so, or says when,
// by its own clock where the page may see that.
function retryAfter(response) {
  const text = response?.headers.get('Retry-After') ?? ''
  if (/^\s*\d+\s*$/.test(text)) return Number(text)
  const now = Date.parse(response?.headers.get('Date') ?? '') || Date.now()
  return Math.max(0, (Date.parse(text) - now) / 1000) || 0
}

// What becomes of the key. Answers that are not from the record, as a 401 of a
// session that ended, say nothing about what an earlier try did: it is kept.
function decide(response, retry, settled) {
  if (retry) return { 'new-key': 'drop', no: 'done' }[retry] ?? 'keep'
  if (!settled(response) || response.status >= 500) return 'keep' // a 500 may have had its effect
  return response.status < 400 ? 'done' : 'drop'
}

// Where the key of an action is kept, and a digest of the request. A collision
// of that does no harm: the server refuses one key for two requests. An id is
// nobody's business who reads the storage.
function place(action, url, init, { id }) {
  const body = init.body ?? ''
  if (id === undefined && typeof body !== 'string' && !(body instanceof URLSearchParams)) {
    throw new TypeError('once: a body that is not text needs an id')
  }
  const request = digest(JSON.stringify([init.method ?? 'GET', new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href).href, String(body)]))
  const about = id === undefined ? { request } : { id: digest(JSON.stringify(id)) }
  return { slot: JSON.stringify(['once', action, about]), request }
}

// Two rounds of FNV-1a: crypto.subtle makes double clicks wait, and exists on
// secure origins only.
function digest(text) {
  let a = 0x811c9dc5, b = 0x9747b28c
  for (let i = 0; i < text.length; i++) {
    a = Math.imul(a ^ text.charCodeAt(i), 0x01000193)
    b = Math.imul(b ^ text.charCodeAt(i), 0x85ebca6b)
  }
  return [a, b].map((n) => (n >>> 0).toString(16).padStart(8, '0')).join('')
}

// A random UUID, version 4. randomUUID exists on secure origins only.
function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID()
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  bytes[6] = bytes[6] & 0x0f | 0x40
  bytes[8] = bytes[8] & 0x3f | 0x80
  const hex = Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}
