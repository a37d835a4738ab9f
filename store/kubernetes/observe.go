package kubernetes

import (
	"sync"
	"time"
)

// observations remember when each holder was first seen in its present life: a Lease tells nobody that it has run out, and times that other machines wrote into it
// mean nothing here. A holder whose lease has stood unchanged for its own duration, on this process's clock, is dead. Methods may be called concurrently.
type observations struct {
	mu     sync.Mutex
	leases map[string]*observation // by name of the Lease
	sweep  int                     // at how many to look for what nobody asks for any more
}

type observation struct {
	life   string
	since  time.Time // after the answer that brought it: its holder counts from before its request
	looked time.Time
}

const (
	firstSweep = 1000
	staleAfter = time.Hour
)

func newObservations() *observations {
	return &observations{leases: make(map[string]*observation), sweep: firstSweep}
}

// expired reports whether the holder of a Lease that was just read, or is still as it was, is dead.
func (o *observations) expired(l *lease) bool {
	at, held := o.expiry(l)
	return held && !time.Now().Before(at)
}

// expiry returns when the holder is dead unless it renews. held is false when there is none.
func (o *observations) expiry(l *lease) (at time.Time, held bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l.holder == "" {
		delete(o.leases, l.name)
		return time.Time{}, false
	}
	now, life := time.Now(), l.life()
	seen := o.leases[l.name]
	if seen == nil || seen.life != life {
		seen = &observation{life: life, since: now}
		o.leases[l.name] = seen
		o.prune(now)
	}
	seen.looked = now
	return seen.since.Add(l.duration), true
}

func (o *observations) forget(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.leases, name)
}

// prune forgets what nobody has looked at for long. Whoever looks again waits again. The mutex is held.
func (o *observations) prune(now time.Time) {
	if len(o.leases) < o.sweep {
		return
	}
	for name, seen := range o.leases {
		if now.Sub(seen.looked) > staleAfter {
			delete(o.leases, name)
		}
	}
	o.sweep = max(firstSweep, 2*len(o.leases))
}
