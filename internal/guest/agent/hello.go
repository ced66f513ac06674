package agent

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/glovebox-dev/glovebox/internal/guest/agent/asuser"
	"github.com/glovebox-dev/glovebox/internal/guest/agent/files"
	"github.com/glovebox-dev/glovebox/internal/guest/protocol"
)

// settings are the immutable settings of the first hello.
type settings struct {
	home         string
	env          []string // of user code
	interpreters map[string]string
	limits       map[string]string
	user         *asuser.Runner
	files        *files.Tree
	launch       *launcher
	memory       *memoryWatcher // nil: none
}

// priorWait bounds how long hello waits for the operations of the earlier connection:
// they are canceled, but a kernel gets its grace period.
const priorWait = 3 * time.Second

func hello(o *op, h protocol.Hello) (any, error) {
	a := o.conn.a
	if h.Version != protocol.Version {
		return nil, failf(protocol.CodeVersion, "the agent speaks version %d of the protocol, the host %d", protocol.Version, h.Version)
	}
	if o.conn.prior != nil {
		o.conn.prior.wait(priorWait)
		o.conn.prior = nil
	}
	mixEntropy(h.Entropy)
	a.mu.Lock()
	defer a.mu.Unlock()
	cfg := a.cfg.Load()
	if cfg == nil {
		var err error
		if cfg, err = a.configure(h); err != nil {
			return nil, err
		}
		a.cfg.Store(cfg)
	}
	if h.Restored {
		a.kernels.reseed(newSeed(h.Entropy))
	}
	res := protocol.HelloResult{Version: protocol.Version, Nonce: h.Nonce, Build: a.build, Limits: cfg.limits}
	if a.doors != nil {
		a.doors.Connect(o.conn)
		res.Features = append(res.Features, protocol.FeatureNetwork)
	}
	return res, nil
}

func ping(*op, struct{}) (any, error) { return nil, nil }

// wait waits for the connection's operations, at most d.
func (c *connection) wait(d time.Duration) {
	done := make(chan struct{})
	go func() { // ends with the operations, which are canceled
		c.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(d):
	}
}

// configure applies the first hello.
func (a *agent) configure(h protocol.Hello) (*settings, error) {
	if !filepath.IsAbs(h.Home) || filepath.Clean(h.Home) != h.Home || h.Home == "/" {
		return nil, failf(protocol.CodeInvalid, "home %.200q is not a clean absolute path", h.Home)
	}
	for _, d := range slices.Concat(h.Scratch, h.ReadOnly) {
		if !filepath.IsAbs(d) || filepath.Clean(d) != d || d == "/" {
			return nil, failf(protocol.CodeInvalid, "directory %.200q is not a clean absolute path", d)
		}
	}
	root := os.Geteuid() == 0
	if h.UID >= 0 && !root && h.UID != os.Geteuid() {
		return nil, failf(protocol.CodeInvalid, "become user %d: the agent is user %d, not root", h.UID, os.Geteuid())
	}
	owner := -1
	if root && h.UID >= 0 {
		owner = h.UID
	}
	if err := makeHome(h.Home, owner, h.GID); err != nil {
		return nil, failf(protocol.CodeInternal, "make home %q: %v", h.Home, err)
	}
	for _, d := range h.Scratch {
		if err := makeScratch(d); err != nil {
			return nil, failf(protocol.CodeInternal, "make scratch directory %q: %v", d, err)
		}
	}
	launchers := ""
	if a.init && root { // elsewhere the directory and the loopback would be the host's
		launchers = launcherDir
		a.openDoors()
	}
	path, err := searchPath(h.Interpreters, launchers, filepath.Join(h.Home, userPrograms))
	if err != nil {
		a.log.Warn("interpreters are not on PATH under all their names", "err", err)
	}
	cfg := &settings{
		home: h.Home, interpreters: h.Interpreters,
		env:    a.baseEnv(h, path),
		limits: make(map[string]string),
		user:   asuser.New(h.UID, h.GID),
	}
	cfg.files = files.New(h.Home, append([]string{h.Home}, h.Scratch...), h.ReadOnly)
	cfg.launch = a.newLauncher(h, cfg.env, cfg.limits)
	cfg.memory = a.watchMemory(h, cfg.launch.group, cfg.limits)
	return cfg, nil
}

func makeHome(home string, uid, gid int) error {
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return err
	}
	err := os.Mkdir(home, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if uid < 0 {
		return nil
	}
	if err := os.Lchown(home, uid, gid); err != nil {
		return err
	}
	return os.Chmod(home, 0o700)
}

func makeScratch(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777|fs.ModeSticky)
}

// baseEnv returns the environment of user code, without the agent's own.
func (a *agent) baseEnv(h protocol.Hello, path string) []string {
	name := userName(h.UID)
	env := []string{
		"PATH=" + path,
		"HOME=" + h.Home, "USER=" + name, "LOGNAME=" + name, "SHELL=" + shellPath(),
		"LANG=C.UTF-8", "TERM=dumb",
	}
	env = append(env, offline...)
	// npm installs global packages beside its own, where the user cannot write.
	env = append(env, "npm_config_prefix="+filepath.Join(h.Home, filepath.Dir(userPrograms)))
	if a.doors != nil {
		env = append(env, proxies...)
		env = append(env, a.openBundle()...)
	}
	if h.MemoryMB > 0 {
		env = append(env, fmt.Sprintf("NODE_OPTIONS=--max-old-space-size=%d", h.MemoryMB*nodeHeap/100))
	}
	return mergeEnv(env, h.Env)
}

// nodeHeap is the percentage of the guest's memory for the heap of Node.js. Its default
// is half, at most two gigabytes. The rest is for code, buffers and other processes.
const nodeHeap = 75

// offline makes installers fail at once without a network, and allows installing local
// packages: pip otherwise refuses to touch Debian's Python. With a single retry, which is
// immediate, pip shows why the proxy refused it; without any it keeps that to itself.
var offline = []string{
	"PIP_RETRIES=1", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_BREAK_SYSTEM_PACKAGES=1",
	"npm_config_fetch_retries=0", "npm_config_update_notifier=false", "npm_config_audit=false", "npm_config_fund=false",
}

// mergeEnv returns base with the variables of over added or replaced.
func mergeEnv(base, over []string) []string {
	env := append([]string(nil), base...)
	for _, kv := range over {
		k, _, ok := strings.Cut(kv, "=")
		if !ok || k == "" || strings.IndexByte(kv, 0) >= 0 {
			continue
		}
		found := false
		for i, old := range env {
			if strings.HasPrefix(old, k+"=") {
				env[i], found = kv, true
			}
		}
		if !found {
			env = append(env, kv)
		}
	}
	return env
}

// readBounded reads at most n bytes of a file.
func readBounded(path string, n int) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, n)
	m, err := f.Read(b)
	if m > 0 {
		err = nil
	}
	return b[:m], err
}

// newSeed returns an unpredictable seed, from the host's entropy and, in case the host
// sent none, the guest kernel's.
func newSeed(entropy []byte) []byte {
	var own [32]byte
	rand.Read(own[:]) // never fails
	seed := sha256.Sum256(append(own[:], entropy...))
	return seed[:]
}

// mixEntropy adds to the guest's random generator; it cannot weaken it.
func mixEntropy(b []byte) {
	if len(b) == 0 {
		return
	}
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	f.Write(b) // a kernel that refuses has entropy of its own
}
