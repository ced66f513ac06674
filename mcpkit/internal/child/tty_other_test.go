//go:build unix && !linux

package child

const (
	ttyEnv       = "CHILD_TEST_TTY"
	interruptEnv = "CHILD_TEST_INTERRUPT"

	rootInNameEnv = "CHILD_TEST_ROOT_IN_NAME"
)

func startFromTerminal(string) int { return 1 }
func waitForInterrupt(string) int  { return 1 }
func startAsRootInName(string) int { return 1 }
