// Command mattn is the measured process over github.com/mattn/go-sqlite3: SQLite compiled by a C compiler through cgo.
package main

import (
	"github.com/gotenure/tenure/bench/sqlitedrivers/worker"
	_ "github.com/mattn/go-sqlite3"
)

func main() { worker.Main("sqlite3") }
