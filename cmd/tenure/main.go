// Command tenure runs a job on one of several replicas, and shows and changes who leads.
package main

import (
	"os"

	"github.com/gotenure/tenure/cmd/tenure/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args)) }
