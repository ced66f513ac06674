// Prints the number of tokens of each line of input, a JSON string, in the encoding o200k_base.
import { createInterface } from "node:readline";
import { countTokens } from "gpt-tokenizer/encoding/o200k_base";

for await (const line of createInterface({ input: process.stdin })) {
	// Text of servers is data: no special tokens in it.
	console.log(countTokens(JSON.parse(line), { disallowedSpecial: new Set() }));
}
