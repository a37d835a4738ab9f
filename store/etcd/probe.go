package etcd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// probeLimit bounds each step of finding out why no server answers.
const probeLimit = 500 * time.Millisecond

// unreachable returns why the first server does not answer, which the client, busy trying again, does not say; nil when it is not seen.
func unreachable(config clientv3.Config) error {
	_, addr, _ := strings.Cut(config.Endpoints[0], "://")
	conn, err := net.DialTimeout("tcp", addr, probeLimit)
	if err != nil {
		return fmt.Errorf("%w: check that the server is running there", err)
	}
	defer func() { _ = conn.Close() }() // it was only for the question
	if err := conn.SetDeadline(time.Now().Add(probeLimit)); err != nil {
		return err
	}
	if config.TLS == nil {
		c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // nothing is sent on it: the answer is whether there is one
		if err := c.Handshake(); err == nil || strings.Contains(err.Error(), "remote error: tls") {
			return errors.New("the server wants TLS: name its authorities with cacert=FILE, or use tls=true")
		}
		return nil
	}
	with := config.TLS.Clone()
	with.ServerName, _, _ = net.SplitHostPort(addr)
	with.NextProtos = []string{"h2"}
	c := tls.Client(conn, with)
	if err := c.Handshake(); err != nil {
		return fmt.Errorf("%w: check cacert, cert and key, and whether the server has TLS", err)
	}
	// A server that does not like the client's certificate says so only now.
	if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: check cert and key", err)
	}
	return nil
}
