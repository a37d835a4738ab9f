package testserver

import (
	"net"
	"testing"
)

func TestKubernetesKeepsPort(t *testing.T) {
	k := StartKubernetes(t)
	addr := k.Addr()
	k.Kill()
	if c, err := net.Dial("tcp", addr); err == nil {
		_ = c.Close()
		t.Fatal("connected to a killed server")
	}
	k.KillEtcd()
	k.StartEtcd()
	k.Start()
	if k.Addr() != addr {
		t.Fatalf("the address was %s and is %s", addr, k.Addr())
	}
	k.Pause()
	k.Resume()
	k.Stop()
	k.Start()
}
