// Command semel-caddy is Caddy with this module in it, for whoever builds without
// xcaddy. It has Caddy's commands and flags.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/semelhq/semel/adapter/caddy"
)

func main() { caddycmd.Main() }
