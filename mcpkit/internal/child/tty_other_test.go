//go:build unix && !linux

package child

const (
	ttyEnv       = "CHILD_TEST_TTY"
	interruptEnv = "CHILD_TEST_INTERRUPT"
)

func startFromTerminal(string) int { return 1 }
func waitForInterrupt(string) int  { return 1 }
