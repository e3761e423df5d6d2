// Package har writes exchanges as HAR 1.2, with the exact bytes beside the
// fields that HAR has, and takes requests out of HAR files of browsers.
package har
