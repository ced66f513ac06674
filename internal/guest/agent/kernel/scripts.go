package kernel

import (
	"bytes"
	"embed"
	"sync"
)

// The scripts of the kernels, one subject a file. The files of one kernel share a
// scope: they are joined when the first kernel starts, which costs the interpreter
// no more than one file would.
//
//go:embed python/*.py node/*.cjs
var scripts embed.FS

// pythonScript is the Python kernel.
var pythonScript = sync.OnceValue(func() []byte {
	return join("python/", "state.py", "events.py", "streams.py", "display.py", "figures.py", "imports.py",
		"errors.py", "cell.py", "run.py", "serve.py", "start.py")
})

// pythonMagics extends the Python kernel for cells with IPython's syntax. The
// kernel compiles it at its first use.
var pythonMagics = sync.OnceValue(func() []byte {
	return join("python/", "transform.py", "shell.py", "magics.py", "cellmagics.py", "ipython.py")
})

// nodeScript is the JavaScript kernel as a function of its surroundings, a null byte,
// and the transformer of sources as another.
var nodeScript = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	b.WriteString("(function (require, dynamicImport, source) {\n'use strict';\n")
	b.Write(join("node/", "state.cjs", "events.cjs", "output.cjs", "display.cjs", "errors.cjs", "inspector.cjs",
		"globals.cjs", "interrupt.cjs", "run.cjs", "start.cjs", "random.cjs", "network.cjs", "ready.cjs"))
	b.WriteString("})\x00")
	b.Write(join("node/", "source.cjs"))
	return b.Bytes()
})

// toolsScript lets code call the host. A kernel gets it with the first run that may.
func toolsScript(language string) []byte {
	if language == Python {
		return join("python/", "tools.py", "toolvalues.py")
	}
	return join("node/", "tools.cjs")
}

func join(dir string, names ...string) []byte {
	var b bytes.Buffer
	for _, name := range names {
		text, err := scripts.ReadFile(dir + name)
		if err != nil {
			panic(err) // the file is embedded
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// pythonBoot runs the script of descriptor 8 outside the namespace of user code, with
// builtins that user code cannot take away.
const pythonBoot = `exec(compile(open(8,'rb').read(),'<glovebox>','exec'),{'__name__':'glovebox','__builtins__':dict(__builtins__.__dict__)})`

// nodeBoot runs the two scripts of descriptor 8 with the module loaders, which only
// the program given on the command line has.
const nodeBoot = `{const [k,s]=require('fs').readFileSync(8,'utf8').split('\0'),` +
	`r=(t,n)=>require('vm').runInThisContext(t,{filename:'glovebox:'+n});` +
	`r(k,'kernel')(require,(s,o)=>import(s,o),r(s,'source')(require))}`
