//go:build !linux

package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// attackCommand says that boxes, and so attacks on them, need Linux.
func (a *app) attackCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "attack",
		Short: "Attack this machine's boxes and check that they hold",
		RunE: func(*cobra.Command, []string) error {
			return errors.New("attack boxes: boxes need Linux")
		},
	}
}
