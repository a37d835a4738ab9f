module github.com/gotenure/tenure/store/sqlite

go 1.25.0

require (
	github.com/gotenure/tenure v0.0.0
	github.com/ncruces/go-sqlite3 v0.35.3
	golang.org/x/sys v0.47.0
)

require (
	github.com/ncruces/go-sqlite3-wasm/v3 v3.2.35304 // indirect
	github.com/ncruces/julianday v1.0.0 // indirect
)
