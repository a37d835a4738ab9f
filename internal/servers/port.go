package servers

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// freePort returns a loopback port that was free a moment ago. It is below the range from which systems choose the ports of
// outgoing connections, so that a server that is down for a while finds its port free when it comes back.
func freePort() (int, error) {
	const low, high, tries = 10_000, 30_000, 100
	var err error
	for range tries {
		port := low + rand.IntN(high-low)
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("no free port in %d tries: %w", tries, err)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
