import { createHash, randomUUID } from 'node:crypto'
import { closeSync, fsyncSync, mkdirSync, openSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeSync } from 'node:fs'
import { join } from 'node:path'

const hour = 3600e3
const shown = 64 // entries that one look at them shows

/**
 * A storage for once() whose entries outlive the process and the machine's
 * restart: a file each, in a folder that is made if it is not there. What
 * setItem has returned from is on disk. Like the browser's it is no lock: two
 * processes that begin one action at one moment may make two keys.
 *
 * length and key(i) show at most 64 of the entries, others each time, so that
 * removing what is over costs the same however many there are.
 */
export function fileStorage(folder) {
  mkdirSync(folder, { recursive: true, mode: 0o700 })
  const path = (slot) => join(folder, createHash('sha256').update(slot).digest('hex'))
  let window = []
  return {
    getItem: (slot) => read(path(slot))?.text ?? null,
    setItem(slot, text) {
      const temporary = `${path(slot)}.${randomUUID()}`
      try {
        write(temporary, JSON.stringify({ slot, text: String(text) }))
        renameSync(temporary, path(slot))
      } catch (error) {
        rmSync(temporary, { force: true })
        throw error
      }
      sync(folder)
    },
    removeItem(slot) { rmSync(path(slot), { force: true }) },
    get length() {
      const names = readdirSync(folder)
      const start = names.length > shown ? Math.floor(Math.random() * names.length) : 0
      window = []
      for (const name of [...names, ...names].slice(start, start + Math.min(shown, names.length))) {
        if (/^[0-9a-f]{64}\./.test(name)) discard(join(folder, name))
        const slot = /^[0-9a-f]{64}$/.test(name) ? read(join(folder, name))?.slot : undefined
        if (slot !== undefined) window.push(slot)
      }
      return window.length
    },
    key: (i) => window[i] ?? null,
  }
}

// An entry that cannot be read as one is there all the same: its action must
// not be taken for a new one.
function read(file) {
  let content
  try {
    content = readFileSync(file, 'utf8')
  } catch (error) {
    if (error.code === 'ENOENT') return undefined
    throw error
  }
  try {
    const { slot, text } = JSON.parse(content)
    if (typeof slot === 'string' && typeof text === 'string') return { slot, text }
  } catch { /* it is not JSON */ }
  return { text: '' }
}

function write(file, content) {
  const fd = openSync(file, 'wx', 0o600)
  try {
    writeSync(fd, content)
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

// The new name is on disk once its folder is. Windows has no such call, and
// keeps the order of renames by itself.
function sync(folder) {
  if (process.platform === 'win32') return
  const fd = openSync(folder, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

// What a process left behind that was killed while it wrote.
function discard(file) {
  const { mtimeMs } = statSync(file, { throwIfNoEntry: false }) ?? { mtimeMs: Date.now() }
  if (Date.now() - mtimeMs > hour) rmSync(file, { force: true })
}
