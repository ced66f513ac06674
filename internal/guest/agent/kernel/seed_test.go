package kernel

import (
	"strings"
	"testing"
)

// seeds returns what code draws after a known state and a run with a new seed.
func seeds(t *testing.T, k *Kernel, known, draw string) (before, after string) {
	t.Helper()
	value := func(code string, seed []byte) string {
		res, rec := runWith(t, k, Request{Code: []byte(code), Seed: seed})
		if !res.OK {
			t.Fatalf("%s: %+v", code, res)
		}
		return rec.out.String()
	}
	value(known, nil)
	before = value(draw, nil)
	if again := func() string { value(known, nil); return value(draw, nil) }(); again != before {
		t.Fatalf("%s: draws %q and %q from one state", known, before, again)
	}
	value(known, nil)
	return before, value(draw, []byte(strings.Repeat("seed", 8)))
}

func TestSeedPython(t *testing.T) {
	for _, python := range pythons(t) {
		k := start(t, Python, python)
		before, after := seeds(t, k, "import random; random.seed(1)", "print(random.random())")
		if before == after {
			t.Errorf("random draws %q before and after a seed", before)
		}
		if res, _ := runWith(t, k, Request{Code: []byte("import numpy")}); !res.OK {
			continue
		}
		before, after = seeds(t, k, "import numpy; numpy.random.seed(1)", "print(numpy.random.random())")
		if before == after {
			t.Errorf("numpy.random draws %q before and after a seed", before)
		}
	}
}

// TestSeed_BrokenByUserCode removes what reseeding needs.
func TestSeed_BrokenByUserCode(t *testing.T) {
	k := start(t, Python, pythons(t)[0])
	runCells(t, k, []cell{{code: "import random, sys, os\ndel os.urandom\nrandom.seed = None\nsys.modules['numpy.random'] = 1"}})
	if res, rec := runWith(t, k, Request{Code: []byte("print(1)"), Seed: []byte("x")}); !res.OK || rec.out.String() != "1\n" {
		t.Errorf("%+v, %q", res, rec.out.String())
	}
}

// TestSeedNode cannot set V8 to a known state; it checks the replaced functions.
func TestSeedNode(t *testing.T) {
	for _, node := range nodes(t) {
		k := start(t, JavaScript, node)
		runCells(t, k, []cell{{code: `
			const v8Random = Math.random, crypto = require('crypto');
			const {getRandomValues} = globalThis.crypto || crypto.webcrypto;
			let seen = new Set();
			0`, value: "0"}})
		for _, seed := range []string{"a", "a"} { // the same seed twice: the system's randomness is mixed in
			const check = `{
				const draws = Array.from({length: 20000}, () => Math.random());
				const mean = draws.reduce((a, b) => a + b) / draws.length;
				const web = globalThis.crypto || crypto.webcrypto;
				const found = [draws[0], crypto.randomUUID(), crypto.randomInt(2 ** 47), crypto.randomBytes(8).toString('hex'),
					crypto.randomFillSync(new Uint32Array(4), 1, 2).join(), web.getRandomValues(new Uint8Array(8)).join()];
				for (const bad of [() => crypto.randomBytes(-1), () => crypto.randomInt(5, 1), () => crypto.randomFillSync(1), () => web.getRandomValues([1])]) {
					try { bad(); throw 1 } catch (e) { if (e === 1) throw new Error('not refused: ' + bad) }
				}
				if (crypto.randomFillSync(new Uint32Array([7, 7, 7, 7]), 1, 2).join().replace(/,.*,/, ' ') !== '7 7') throw new Error('randomFillSync');
				crypto.randomBytes(4, (e, b) => { if (e || b.length !== 4) throw new Error('randomBytes') });
				crypto.randomInt(4, (e, n) => { if (e || !(n >= 0 && n < 4)) throw new Error('randomInt') });
				crypto.randomFill(new Uint8Array(4), (e, b) => { if (e || b.length !== 4) throw new Error('randomFill') });
				for (const f of found) { if (seen.has(f)) throw new Error('again ' + f); seen.add(f); }
				[Math.random !== v8Random, Math.random.name, Math.random.length, Math.abs(mean - 0.5) < 0.02,
					draws.every((d) => d >= 0 && d < 1), /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/.test(crypto.randomUUID())].join();
			}`
			res, rec := runWith(t, k, Request{Code: []byte(strings.Trim(check, "{}")), Seed: []byte(seed)})
			if !res.OK || rec.value() != "'true,random,0,true,true,true'" || rec.err.Len() > 0 {
				t.Errorf("%s: %+v, %s, %s", node, res, rec.value(), rec.err.String())
			}
		}
	}
}
