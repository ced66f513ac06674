package gvisor

// Finding is one fact about this machine, for people.
type Finding struct {
	Name   string // what was looked at, a few words
	OK     bool   // false if something is missing that guests need
	Level  Level
	Detail string // what was found
	Fix    string // what to type or do about it; may be empty
}

// Level says how much a finding matters.
type Level string

// The closed set of levels.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn" // guests run, with weaker limits or slower
	LevelFail Level = "fail" // guests cannot run
)
