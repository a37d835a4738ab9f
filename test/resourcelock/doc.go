// Package resourcelock tests that client-go elects through other stores than its own.
package resourcelock
