const {content: list} = await tools.files.list_directory({path: "logs"});
const all = {}, failed = {}, days = {};
for (const [, name] of list.matchAll(/^\[FILE\] (.+)$/gm)) {
  const {content} = await tools.files.read_text_file({path: "logs/" + name});
  for (const line of content.trim().split("\n")) {
    const [time, , , path, status] = line.split(" ");
    const route = path.replace(/\d+/g, ":id"), day = time.slice(0, 10);
    all[route] = (all[route] ?? 0) + 1;
    if (status < "500") continue;
    failed[route] = (failed[route] ?? 0) + 1;
    days[day] = (days[day] ?? 0) + 1;
  }
}
const worst = Object.entries(failed).sort((a, b) => b[1] / all[b[0]] - a[1] / all[a[0]]).slice(0, 3);
const day = Object.entries(days).sort((a, b) => b[1] - a[1])[0];
console.log(JSON.stringify({worst: worst.map(([route, n]) => [route, n, all[route]]), day}));
