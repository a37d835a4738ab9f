// Command modernc is the measured process over modernc.org/sqlite: SQLite and its C library translated to Go.
package main

import (
	"github.com/gotenure/tenure/bench/sqlitedrivers/worker"
	_ "modernc.org/sqlite"
)

func main() { worker.Main("sqlite") }
