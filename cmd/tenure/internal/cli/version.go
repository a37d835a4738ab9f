package cli

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args: func(cmd *cobra.Command, args []string) error {
			if err := exactArgs()(cmd, args); err != nil {
				return err
			}
			return checkOutput(output)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo()
			if output == "json" {
				return failed(json.NewEncoder(cmd.OutOrStdout()).Encode(v))
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), v)
			return failed(err)
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

type version struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func (v version) String() string {
	return fmt.Sprintf("tenure %s (%s, %s)", v.Version, v.Go, v.Platform)
}

func versionInfo() version {
	v := version{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	return v
}
