// Package interop tests package webhook against what others have: the libraries of
// Standard Webhooks and of Stripe, and a database with the handler's own rows. It
// is a module of its own, so that nobody who receives webhooks has to have them.
package interop
