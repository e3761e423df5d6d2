// Package postgres keeps semel's records in a PostgreSQL database (13 or later).
package postgres
