const {content} = await tools.files.read_text_file({path: "notes/2026-03-review.md", head: 3});
console.log(JSON.stringify(content.trim().split("\n").pop()));
