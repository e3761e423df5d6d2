/** Where keys are kept: what once needs of the browsers' Storage. */
export interface KeyStorage {
  readonly length: number
  key(index: number): string | null
  getItem(slot: string): string | null
  setItem(slot: string, text: string): void
  removeItem(slot: string): void
}

export interface OnceOptions {
  /**
   * What the action is about, as a cart's id: one effect for it, for a month, and
   * a changed request is refused (422). Anything that JSON can write. Without it,
   * a changed request is another action. Required where the body is not text.
   */
  id?: unknown
  /**
   * A key that the server made for this action, for all tabs that show it.
   * Default: a random UUID.
   */
  key?: string
  /** Default: sessionStorage. Where there is none, pass one. */
  storage?: KeyStorage
  /**
   * Milliseconds until a key may not be used any more. It must be well below the
   * server's retention. Default: 12 hours.
   */
  maxAge?: number
  /**
   * Milliseconds after an answer in which the same request is still the same
   * action: the second half of a double click. Default: 2000.
   */
  pause?: number
  /** How often to send, at most. Default: 6. */
  tries?: number
  /**
   * Reports whether the server has the answer on record. Default: it has the
   * header Idempotency-Expires.
   */
  settled?: (response: Response) => boolean
}

/**
 * Sends a request whose effect must happen once, and returns the Response. The
 * same action, asked for again, is sent with the same key until its answer is on
 * record at the server; while it is being sent, it is not sent a second time.
 *
 * Rejects like fetch when no answer came or init.signal was aborted: the key is
 * kept, ask again. Rejects with an error whose name is StaleKeyError or
 * StorageError when the key has become too old, cannot be read any more or cannot
 * be kept: nothing was sent.
 */
export function once(action: string, url: string | URL, init?: RequestInit, options?: OnceOptions): Promise<Response>

/**
 * Makes the same call of once a new action. If the outcome of the old one is not
 * known, only the user can say that a second effect would be right.
 */
export function forget(action: string, url: string | URL, init?: RequestInit, options?: OnceOptions): void
