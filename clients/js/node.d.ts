import type { KeyStorage } from './once.js'

/**
 * A storage for once whose entries outlive the process: a file each, in a folder
 * that is made if it is not there. It is no lock between processes.
 */
export function fileStorage(folder: string): KeyStorage
