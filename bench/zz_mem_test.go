package bench_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
)

func init() {
	if os.Getenv("ZZ") != "" {
		runtime.MemProfileRate = 512
		zz = func() {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			fmt.Fprintf(os.Stderr, "zz goroutines %d stackinuse %d heapalloc %d heapinuse %d heapidle %d released %d gcsys %d other %d mspan %d\n", runtime.NumGoroutine(), m.StackInuse, m.HeapAlloc, m.HeapInuse, m.HeapIdle, m.HeapReleased, m.GCSys, m.OtherSys, m.MSpanInuse)
			f, _ := os.Create("/tmp/zz.heap")
			pprof.Lookup("heap").WriteTo(f, 0)
			f.Close()
			g, _ := os.Create("/tmp/zz.goroutines")
			pprof.Lookup("goroutine").WriteTo(g, 1)
			g.Close()
		}
	}
}
