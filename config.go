package tenure

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gotenure/tenure/driver"
)

// Config says how a member behaves. The zero value works; every zero field takes the default that its comment gives and explains.
type Config struct {
	// ID names the member to people; it need not be unique, since the session is what counts. 1 to 255 bytes without control characters.
	// Default: host name, process ID and a random suffix.
	ID string

	// TTL is how long the store keeps what the member holds after the last renewal: a leader that dies is replaced within it.
	// Default: 15 s, which survives a failover of most stores, and pauses of a busy machine.
	TTL time.Duration

	// RenewInterval is the time between renewals. Default: a third of TTL, so that two in a row may fail.
	RenewInterval time.Duration

	// RenewDeadline is how long after the last successful renewal was sent the terms end, when it is sooner than the lease would make
	// it: TTL - Drift - StopTimeout, which is also the default.
	RenewDeadline time.Duration

	// Drift is by how much this machine's clock may run slower than the store's within one TTL. Default: 1 % of TTL; a quartz drifts
	// by 0.02 % at the most, what is left is for clocks that are being slewed.
	Drift time.Duration

	// StopTimeout is what the work needs to stop once its context is cancelled: that much before the lease can be another's it is cancelled. Work
	// that takes longer is reported (see Overrun). Default: a fifth of TTL.
	StopTimeout time.Duration

	// StablePeriod is how long a member that lost an election against its will waits before it stands there again, while others may win at
	// once: a member on a failing machine then does not take leadership back and forth. Default: a third of TTL.
	StablePeriod time.Duration

	// RetryMin and RetryMax bound the waits after errors of the store, which grow exponentially between them, with full jitter.
	// Default: 50 ms, and a third of TTL.
	RetryMin, RetryMax time.Duration

	// Value is published with every election that the member wins, for example the address where its leader is reached.
	// Term.Publish changes it. Default: empty.
	Value []byte

	// Logger is told of every change of leadership and every failure, from a goroutine of its own, so that a blocked one delays no renewal. Default: silent.
	Logger *slog.Logger

	// Observer is called with every event, one at a time, in order, from a goroutine of its own. A slow one delays only the
	// events after it. Default: none.
	Observer func(Event)
}

// withDefaults returns the configuration with its zero fields filled, or an error that wraps driver.ErrInvalid and names the field.
func (c Config) withDefaults(info driver.Info) (Config, error) {
	if c.ID == "" {
		c.ID = defaultID()
	}
	if err := driver.CheckName("Config.ID", c.ID); err != nil {
		return c, err
	}
	set := func(field *time.Duration, v time.Duration) {
		if *field == 0 {
			*field = v
		}
	}
	set(&c.TTL, min(max(15*time.Second, info.MinTTL), info.MaxTTL))
	set(&c.RenewInterval, c.TTL/3)
	set(&c.Drift, c.TTL/100)
	set(&c.StopTimeout, c.TTL/5)
	set(&c.RenewDeadline, c.TTL-c.Drift-c.StopTimeout)
	set(&c.StablePeriod, c.TTL/3)
	set(&c.RetryMax, c.TTL/3)
	set(&c.RetryMin, min(50*time.Millisecond, c.RetryMax))
	bad := func(field string, v time.Duration, remedy string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: Config.%s is %v: %s", driver.ErrInvalid, field, v, fmt.Sprintf(remedy, args...))
	}
	lease := c.TTL - c.Drift - c.StopTimeout
	switch {
	case c.TTL < info.MinTTL || c.TTL > info.MaxTTL:
		return bad("TTL", c.TTL, "%s takes %v to %v", info.Name, info.MinTTL, info.MaxTTL)
	case c.Drift < 0:
		return bad("Drift", c.Drift, "it cannot be negative")
	case c.StopTimeout < 0:
		return bad("StopTimeout", c.StopTimeout, "it cannot be negative")
	case c.RenewInterval < time.Millisecond:
		return bad("RenewInterval", c.RenewInterval, "set at least 1ms, usually a third of the TTL")
	case c.RenewInterval >= c.TTL:
		return bad("RenewInterval", c.RenewInterval, "it must be below the TTL of %v, usually a third of it", c.TTL)
	case c.RenewInterval >= lease:
		return bad("RenewInterval", c.RenewInterval, "it must be below TTL - Drift - StopTimeout, which is %v", lease)
	case c.RenewDeadline > lease:
		return bad("RenewDeadline", c.RenewDeadline, "it cannot exceed TTL - Drift - StopTimeout, which is %v", lease)
	case c.RenewDeadline <= c.RenewInterval:
		return bad("RenewDeadline", c.RenewDeadline, "it must exceed RenewInterval, which is %v", c.RenewInterval)
	case c.StablePeriod < 0:
		return bad("StablePeriod", c.StablePeriod, "it cannot be negative")
	case c.RetryMin < 0:
		return bad("RetryMin", c.RetryMin, "it cannot be negative")
	case c.RetryMax < c.RetryMin:
		return bad("RetryMax", c.RetryMax, "it must be at least RetryMin, which is %v", c.RetryMin)
	}
	return c, nil
}

func defaultID() string {
	host, err := os.Hostname()
	if err != nil || driver.CheckName("host name", host) != nil || len(host) > 200 {
		host = "host"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), strings.ToLower(rand.Text()[:6]))
}
