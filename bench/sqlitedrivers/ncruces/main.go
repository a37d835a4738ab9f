// Command ncruces is the measured process over github.com/ncruces/go-sqlite3: SQLite translated to Go, with a VFS in Go.
package main

import (
	"github.com/gotenure/tenure/bench/sqlitedrivers/worker"
	_ "github.com/ncruces/go-sqlite3/driver"
)

func main() { worker.Main("sqlite3") }
