//go:build !unix

package cli

import "github.com/spf13/cobra"

const demoMemberArg = "__demo-member"

func runDemoMember(string) int { return codeUsage }

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use: "demo", Short: "See three processes elect a leader (not on this system)", Args: exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			return usage("tenure demo stops and continues processes, for which this system has no signals")
		},
	}
}
