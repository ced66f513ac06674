package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/glovebox-dev/glovebox/internal/lazyregexp"
)

// maxSeconds bounds durations to ten years.
const maxSeconds = 10 * 365 * 24 * 3600

// The spellings of booleans.
var (
	trueWords  = []string{"true", "1", "yes", "on", "enabled"}
	falseWords = []string{"false", "0", "no", "off", "disabled"}
)

// redacted returns the text of a URL, valid or not, without credentials.
func redacted(text string) string {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		return text
	}
	scheme, _, ok := strings.Cut(text[:at], "://")
	if !ok {
		return "xxxxx" + text[at:]
	}
	return scheme + "://xxxxx" + text[at:]
}

func boolean(name, text string) (bool, error) {
	word := strings.ToLower(text)
	switch {
	case slices.Contains(trueWords, word):
		return true, nil
	case slices.Contains(falseWords, word):
		return false, nil
	}
	return false, invalid("%s must be one of: %s, or: %s, got '%s'", name, strings.Join(trueWords, ", "), strings.Join(falseWords, ", "), text)
}

// maxCount bounds settings that count processes.
const maxCount = 1000

// count parses a number; it returns -1 for auto.
func count(name, text string) (int, error) {
	if strings.EqualFold(text, "auto") {
		return -1, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > maxCount {
		return 0, invalid("%s must be a number from 0 to %d, got '%s'", name, maxCount, text)
	}
	return n, nil
}

func positive(name, text string) (int, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || n > math.MaxInt32:
		return 0, invalid("%s must be at most %d, got %s", name, math.MaxInt32, text)
	case err != nil:
		return 0, invalid("%s must be a valid integer, got '%s'", name, text)
	case n <= 0:
		return 0, invalid("%s must be a positive integer, got %d", name, n)
	}
	return int(n), nil
}

// port parses a port. Only a flag may be 0 (any free port): in a variable it is a
// mistake, since clients would not find the server.
func port(name, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, invalid("Invalid %s: must be a valid integer, got '%s'", name, text)
	}
	if n == 0 && strings.HasPrefix(name, "--") {
		return 0, nil
	}
	if n < 1 || n > 65535 {
		return 0, invalid("Invalid %s: must be between 1 and 65535, got %d", name, n)
	}
	return n, nil
}

// Seconds parses a number of seconds, with or without a fraction, or a duration such as
// 30m. Error messages call it name.
func Seconds(name, text string) (time.Duration, error) {
	if _, err := time.ParseDuration(text); err != nil && !isNumber(text) {
		return 0, invalid("%s must be a time, got '%s': %s", name, text, timeForms[time.Second])
	}
	return duration(name, text, time.Second)
}

// timeForms describes valid durations, by the unit of a bare number.
var timeForms = map[time.Duration]string{
	time.Second:      "write seconds, such as 90, or a unit, such as 90s, 5m or 1h30m",
	time.Millisecond: "write milliseconds, such as 90000, or a unit, such as 90s, 5m or 1h30m",
}

// duration parses a number of units, or a duration with its own unit. Only seconds may
// have a fraction.
func duration(name, text string, unit time.Duration) (time.Duration, error) {
	if !isNumber(text) {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil:
			return 0, invalid("%s must be a valid integer, got '%s': %s", name, text, timeForms[unit])
		case d <= 0:
			return 0, invalid("%s must be a positive duration, got %s: %s", name, text, timeForms[unit])
		}
		return min(d, maxSeconds*time.Second), nil
	}
	if f, err := strconv.ParseFloat(text, 64); unit == time.Second && err == nil && strings.ContainsAny(text, ".eE") {
		if !(f > 0 && f <= maxSeconds) { // also refuses NaN
			return 0, invalid("%s must be a positive number of at most %d, got %s: %s", name, maxSeconds, text, timeForms[unit])
		}
		return time.Duration(f * float64(time.Second)), nil
	}
	n, err := positive(name, text)
	var bad *Error
	if errors.As(err, &bad) {
		return 0, invalid("%s: %s", bad.Text, timeForms[unit])
	}
	if unit == time.Second && n > maxSeconds {
		return 0, invalid("%s must be at most %d, got %d: %s", name, maxSeconds, n, timeForms[unit])
	}
	return time.Duration(n) * unit, nil
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// list parses a JSON array of strings or a comma-separated list.
func list(name, text string) ([]string, error) {
	var items []string
	if strings.HasPrefix(text, "[") {
		if err := json.Unmarshal([]byte(text), &items); err != nil {
			return nil, invalid("%s must be a JSON array of strings or a comma-separated list: %v", name, err)
		}
	} else {
		items = strings.Split(text, ",")
	}
	out := items[:0]
	for _, item := range items {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	if len(out) == 0 {
		return nil, invalid("%s must not be empty", name)
	}
	return out, nil
}

// moduleName matches the name of a Python module.
var moduleName = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)

// maxModules bounds lists of modules.
const maxModules = 64

// modules parses a list of Python modules; "none" is the empty list.
func modules(name, text string) ([]string, error) {
	if text == "" || text == "none" || strings.ReplaceAll(text, " ", "") == "[]" {
		return nil, nil
	}
	names, err := list(name, text)
	if err != nil {
		return nil, err
	}
	if len(names) > maxModules {
		return nil, invalid("%s must be at most %d modules, got %d", name, maxModules, len(names))
	}
	for _, n := range names {
		if len(n) > 128 || !moduleName().MatchString(n) {
			return nil, invalid("%s must be names of modules, or none, got '%s'%s", name, n, importHint(n))
		}
	}
	return names, nil
}

// imported are modules whose packages have other names.
var imported = map[string]string{
	"scikit-learn": "sklearn", "scikit-image": "skimage", "beautifulsoup4": "bs4", "opencv-python": "cv2", "opencv-python-headless": "cv2",
	"python-dateutil": "dateutil", "pytorch": "torch", "pyyaml": "yaml", "pillow": "PIL",
}

// importHint says which module the name of a package probably stands for.
func importHint(name string) string {
	module := imported[strings.ToLower(name)]
	if module == "" {
		module = strings.ReplaceAll(name, "-", "_")
	}
	if module == name || !moduleName().MatchString(module) {
		return ""
	}
	return fmt.Sprintf(", the name of a package: write it as programs import it, such as '%s'", module)
}

// roots parses a list of directories and resolves their symbolic links.
func roots(name, text string) ([]string, error) {
	dirs, err := list(name, text)
	if err != nil {
		return nil, err
	}
	for i, d := range dirs {
		if !filepath.IsAbs(d) {
			return nil, invalid("%s must be absolute directories, got '%s'", name, d)
		}
		if dirs[i], err = filepath.EvalSymlinks(d); err != nil {
			return nil, invalid("%s: %v", name, err)
		}
	}
	return dirs, nil
}

// check checks the rules between settings.
func (c *Config) check() error {
	var errs []error
	if c.CleanupInterval >= c.SessionTimeout {
		errs = append(errs, invalid("MSB_CLEANUP_INTERVAL must be less than MSB_SESSION_TIMEOUT, got %v and %v", c.CleanupInterval, c.SessionTimeout))
	}
	if need := flavorMB[c.DefaultFlavor]; c.MaxTotalMemoryMB != 0 && c.MaxTotalMemoryMB < need {
		errs = append(errs, invalid("MSB_MAX_TOTAL_MEMORY_MB must be at least the %d MB of the flavor %s, got %d", need, c.DefaultFlavor, c.MaxTotalMemoryMB))
	}
	if c.Image != "" && (c.Python != "" || c.Node != "") {
		errs = append(errs, invalid("python and node select programs of this machine and cannot be combined with image (%s)", c.Image))
	}
	errs = append(errs, c.checkSecurity()...)
	if !c.VolumesEnabled {
		c.Volumes = nil
	}
	for _, v := range c.Volumes {
		if !within(c.VolumeRoots, v.Host) {
			errs = append(errs, invalid("volume: %s is not below a directory of GLOVEBOX_VOLUME_ROOTS (%s)", v.Host, strings.Join(c.VolumeRoots, ", ")))
		}
	}
	if err := checkVolumes(c.Volumes); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// within reports whether dir is one of roots or below one. Without roots it returns
// true.
func within(roots []string, dir string) bool {
	for _, root := range roots {
		if rel, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(rel) {
			return true
		}
	}
	return len(roots) == 0
}

// StateDir returns the state directory for commands without settings: that of the
// environment, or the default.
func StateDir(lookup func(string) (string, bool)) (string, error) {
	if dir, ok := lookup("GLOVEBOX_STATE_DIR"); ok && dir != "" {
		return filepath.Abs(dir)
	}
	return defaultStateDir(lookup)
}

// defaultStateDir returns the default state directory.
func defaultStateDir(lookup func(string) (string, bool)) (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/glovebox", nil
	}
	if dir, ok := lookup("XDG_STATE_HOME"); ok && filepath.IsAbs(dir) {
		return filepath.Join(dir, "glovebox"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", invalid("no state directory: %v; set GLOVEBOX_STATE_DIR", err)
	}
	return filepath.Join(home, ".local", "state", "glovebox"), nil
}
