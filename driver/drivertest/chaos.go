package drivertest

import (
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"time"
)

// Chaos is a script for Faults that draws from a seed what happens to each call. What happens to a call depends on the seed and on which call it is
// (its method, member, election and number) and not on what other goroutines do meanwhile: in a bubble the same seed gives the same
// story, as far as the program under test makes the same calls.
type Chaos struct {
	Seed  uint64
	Rate  float64       // the share of calls that something happens to, from 0 to 1
	Delay time.Duration // the longest delay of a request, an answer or a second arrival
	Hang  bool          // some calls hang until their contexts end
	Deaf  bool          // some calls hang on, until Faults.Wake or Close

	// Acts are operators' acts. Now and then one is done, before a renewal or the acquisition of an election arrives.
	Acts []func(Call)
}

// Script returns the function for NewFaults.
func (c Chaos) Script() func(Call) Fault { return c.fault }

func (c Chaos) fault(call Call) Fault {
	h := fnv.New64a()
	for _, part := range []string{call.Method, call.Member, call.Election, strconv.Itoa(call.Number)} {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	rng := rand.New(rand.NewPCG(c.Seed, h.Sum64()))
	if rng.Float64() >= c.Rate {
		return Fault{}
	}
	delay := func() time.Duration {
		if c.Delay <= 0 {
			return 0
		}
		// Most delays are short, few are as long as they get.
		return time.Duration(float64(c.Delay) * rng.Float64() * rng.Float64() * rng.Float64())
	}
	if call.Method == "Event" {
		// The last state of an election may not be lost, so none is.
		switch rng.IntN(4) {
		case 0:
			return Fault{Twice: true}
		case 1:
			return Fault{Stale: true}
		case 2:
			return Fault{Lose: Answer}
		}
		return Fault{Before: delay()}
	}
	var fault Fault
	switch rng.IntN(9) {
	case 0:
		fault = Fault{Lose: Request, After: delay()}
	case 1:
		fault = Fault{Lose: Answer, Before: delay(), After: delay()}
	case 2: // the caller is told of an error, and then the request arrives
		fault = Fault{Lose: Request, Twice: true, Again: delay()}
	case 3:
		fault = Fault{Twice: true, Again: delay()}
	case 4:
		fault = Fault{After: delay()}
	case 5:
		fault = Fault{Before: delay(), Hang: c.Hang}
	case 6:
		fault = Fault{Before: delay(), Deaf: c.Deaf && rng.IntN(4) == 0}
	default:
		fault = Fault{Before: delay(), After: delay()}
	}
	if len(c.Acts) > 0 && (call.Method == "KeepAlive" || call.Method == "Acquire") && rng.IntN(4) == 0 {
		act := c.Acts[rng.IntN(len(c.Acts))]
		fault.Act = func() { act(call) }
	}
	return fault
}
