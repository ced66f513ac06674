// Pyodide in Node on request. Without arguments each line on stdin is answered by
// one on stdout: "run CODE" runs CODE and answers by the milliseconds that it took.
// With "once CODE" it runs CODE and ends; pandas is loaded if CODE asks for it and
// its wheels lie beside Pyodide, where nothing is fetched from.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { loadPyodide } from "pyodide";

const home = dirname(createRequire(import.meta.url).resolve("pyodide"));
const [mode, code] = process.argv.slice(2);

// wheels lists the files that a package needs.
async function wheels(name) {
	const { packages } = JSON.parse(await readFile(join(home, "pyodide-lock.json"), "utf8"));
	const files = new Map();
	const add = (n) => {
		if (files.has(n)) return;
		files.set(n, packages[n].file_name);
		packages[n].depends.forEach(add);
	};
	add(name);
	return [...files.values()];
}

let printed = "";
const load = async () => {
	const py = await loadPyodide();
	py.setStdout({ batched: (line) => { printed += line + "\n"; } });
	return py;
};

if (mode === "once") {
	if (code.includes("pandas")) {
		const missing = (await wheels("pandas")).filter((f) => !existsSync(join(home, f)));
		if (missing.length > 0) {
			console.error(`no wheel of pandas beside Pyodide, and npm has none; see docs/benchmark.md`);
			process.exit(3);
		}
	}
	const py = await load();
	if (code.includes("pandas")) await py.loadPackage("pandas", { messageCallback: () => {} });
	py.runPython(code);
	process.stdout.write(printed);
	process.exit(0);
}
const py = await load();
for await (const line of createInterface({ input: process.stdin })) {
	printed = "";
	const begun = performance.now();
	py.runPython(line.slice(line.indexOf(" ") + 1));
	console.log(performance.now() - begun);
}
