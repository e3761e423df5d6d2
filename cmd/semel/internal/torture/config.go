package torture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Config says what is tortured, and how.
type Config struct {
	// Binary is the semel program. Required.
	Binary string
	// Dir is an empty directory for the store, the ledger and the timeline.
	// Required.
	Dir string
	// Duration is how long the nemesis strikes. Settling everything and sending it
	// again takes some seconds more.
	Duration time.Duration
	// Longest is how long it strikes at most if Duration saw too little, as on a
	// slow machine. Default Duration.
	Longest time.Duration
	// Seed decides what is chosen at random.
	Seed uint64
	// OnCrash is the gateways' policy, hold or retry. Default hold.
	OnCrash string
	// Postgres is the URL of a PostgreSQL database for the records of the gateways.
	// It must be empty except for what an earlier run left in it. Default: an SQLite
	// file in Dir.
	Postgres string
	// RestartDatabase, if not nil, makes the server of Postgres crash and start
	// again. It returns when the server responds.
	RestartDatabase func(context.Context) error
	// Payments is the program of the payments example, which is tortured instead of
	// gateways. It needs Postgres. Beside it, on the same database, a service of our
	// own makes the responses that are not small.
	Payments string
	// Shop tortures shops instead of gateways: services that use all of the packages,
	// and behind them one that charges. It needs Postgres, and an empty database.
	Shop bool
	// Skewed is a build of Binary for shops. Its whole clock is off by the value of the
	// environment variable named by SkewVariable. Default: Binary, in which only the
	// clocks that are passed to packages are off.
	Skewed, SkewVariable string
	// Instead, if not empty, is a command that takes the place of each gateway on
	// SQLite, or of each shop, and gets its arguments after its own. Tests make a
	// mistake there, to see that it is found. Default: Binary.
	Instead []string
	// Lease is the gateways' lease. Default 1 s.
	Lease time.Duration
	// Gateways and Clients are how many there are. Default 2, or 3 shops, and 24. With
	// Payments there are as many of the example, and of the service beside it.
	Gateways, Clients int
	// Keys is the largest number of keys. Default 200,000.
	Keys int
	// Think is the longest time that a client waits between two keys. Default
	// 100 ms.
	Think time.Duration
	// SlowEvery says that one in so many effects is slow: it takes up to two
	// and a half leases. Default 20.
	SlowEvery int
	// LargeEvery says that one in so many keys has a response that is not small: in
	// turn large and recorded in pieces, over the limit with and without a length, and
	// a stream. Negative: none. Default 3.
	LargeEvery int
	// Nemesis is what strikes. Default DefaultNemesis or DefaultShopNemesis.
	Nemesis *Nemesis
	// FailFast ends the run at the first violation that can be seen while it goes on,
	// and leaves out what follows.
	FailFast bool
	// Progress, if not nil, gets a line every few seconds.
	Progress io.Writer
}

// DefaultNemesis strikes everywhere.
func DefaultNemesis() Nemesis {
	return Nemesis{
		Every:       800 * time.Millisecond,
		KillGateway: 3, PauseGateway: 2, KillLedger: 2, PauseLedger: 1,
		CutDatabase: 2, RestartDatabase: 1,
		CutFront: 0.12, CutBack: 0.04,
	}
}

// DefaultShopNemesis strikes everywhere if shops are tortured.
func DefaultShopNemesis() Nemesis {
	return Nemesis{
		Every:       500 * time.Millisecond,
		KillGateway: 3, PauseGateway: 2, KillLedger: 3, PauseLedger: 1,
		CutDatabase: 2, HoldDatabase: 1, HoldBack: 1, RestartDatabase: 1,
		CutFront: 0.08, CutBack: 0.08,
	}
}

func (c Config) withDefaults() Config {
	if c.Shop {
		c.Gateways, c.SlowEvery = cmp.Or(c.Gateways, 3), cmp.Or(c.SlowEvery, 8)
		c.OnCrash = "retry"
		if c.Nemesis == nil {
			n := DefaultShopNemesis()
			c.Nemesis = &n
		}
	}
	c.Longest = max(c.Longest, c.Duration)
	if c.OnCrash == "" {
		c.OnCrash = "hold"
	}
	if c.Lease == 0 {
		c.Lease = time.Second
	}
	if c.Gateways == 0 {
		c.Gateways = 2
	}
	if c.Clients == 0 {
		c.Clients = 24
	}
	if c.Keys == 0 {
		c.Keys = 200_000
	}
	if c.Think == 0 {
		c.Think = 100 * time.Millisecond
	}
	if c.SlowEvery == 0 {
		c.SlowEvery = 20
	}
	if c.LargeEvery == 0 {
		c.LargeEvery = 3
	}
	if c.Nemesis == nil {
		n := DefaultNemesis()
		c.Nemesis = &n
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Binary == "" {
		errs = append(errs, errors.New("field Binary is empty"))
	}
	if c.Dir == "" {
		errs = append(errs, errors.New("field Dir is empty"))
	}
	if c.Duration <= 0 {
		errs = append(errs, fmt.Errorf("field Duration is %v; it must be positive", c.Duration))
	}
	if c.OnCrash != "hold" && c.OnCrash != "retry" {
		errs = append(errs, fmt.Errorf("field OnCrash is %q; use hold or retry", c.OnCrash))
	}
	if c.Shop && (c.Postgres == "" || c.Payments != "") {
		errs = append(errs, errors.New("field Shop needs Postgres, and no Payments"))
	}
	if !c.Shop && c.Postgres != "" && len(c.Instead) > 0 {
		errs = append(errs, errors.New("field Instead is for gateways on SQLite and for shops only"))
	}
	if c.Payments != "" && (c.Postgres == "" || c.OnCrash != "hold") {
		errs = append(errs, errors.New("field Payments needs Postgres, and OnCrash hold"))
	}
	if c.Lease < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("field Lease is %v; it must be at least 100ms", c.Lease))
	}
	if c.Gateways < 1 || c.Clients < 1 || c.Keys < 1 || c.Think < 0 || c.SlowEvery < 1 || c.Nemesis.Every <= 0 {
		errs = append(errs, errors.New("fields Gateways, Clients, Keys, Think, SlowEvery and Nemesis.Every must be positive"))
	}
	return errors.Join(errs...)
}

// instead returns the program of gateways or shops, and its first arguments.
func (c *Config) instead() (binary string, args []string) {
	if len(c.Instead) == 0 {
		return c.Binary, nil
	}
	return c.Instead[0], slices.Clone(c.Instead[1:])
}
