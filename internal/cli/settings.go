package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/glovebox-dev/glovebox/internal/cli/help"
	"github.com/glovebox-dev/glovebox/internal/config"
)

// settingsTopic returns the help topic on settings.
func settingsTopic() *cobra.Command {
	cmd := &cobra.Command{Use: "settings", Short: "All settings: flags, environment variables, defaults"}
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		fmt.Fprint(cmd.OutOrStdout(), settingsText(help.Width(cmd.OutOrStdout())))
	})
	return cmd
}

// settingsText describes all settings in lines of at most width columns.
func settingsText(width int) string {
	var b strings.Builder
	b.WriteString(help.Reflow(`The first source that has a setting wins: flag, environment variable, file, default. --config FILE or `+config.FileEnv+` names the file, which is JSON with comments; its keys are the names of the flags without the dashes. Durations are seconds (90) or have a unit (90s, 5m, 1h30m).`, width))
	b.WriteByte('\n')
	keys := map[string]config.Key{}
	for _, k := range config.Keys() {
		keys[k.Name] = k
	}
	titles, names := config.GroupTitles()
	for _, title := range titles {
		fmt.Fprintf(&b, "\n%s:\n", title)
		for _, name := range names[title] {
			k := keys[name]
			heads := k.Env
			if k.HasFlag() {
				heads = append([]string{"--" + name}, heads...)
			}
			head := strings.Join(heads, ", ")
			fmt.Fprintf(&b, "\n%s\n%s\n", help.Indent("  ", head, width), help.Indent("      ", k.Describe(), width))
		}
	}
	return b.String()
}
