// Package rpc is what the gRPC and the Connect adapters have in common: one
// protected call over a semel.Guard, in terms of protobuf messages, google.rpc
// statuses and metadata, which both protocols share. It knows no transport.
package rpc
