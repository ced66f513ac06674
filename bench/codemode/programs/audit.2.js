const {content: list} = await tools.files.list_directory({path: "deploy"});
const report = {};
await Promise.all([...list.matchAll(/^\[FILE\] (.+)$/gm)].map(async ([, name]) => {
  const {content} = await tools.files.read_text_file({path: "deploy/" + name});
  const m = JSON.parse(content), broken = [];
  if (m.image.endsWith(":latest")) broken.push("latest");
  if (m.replicas < 2) broken.push("replicas");
  if (!m.readinessProbe) broken.push("probe");
  if (!m.securityContext.runAsNonRoot) broken.push("root");
  if (broken.length) report[m.service] = broken;
}));
await tools.files.write_file({path: "reports/audit.json", content: JSON.stringify(report)});
const all = Object.values(report);
console.log(JSON.stringify({services: all.length, violations: all.flat().length}));
