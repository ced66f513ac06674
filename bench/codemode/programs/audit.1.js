const {content: list} = await tools.files.list_directory({path: "deploy"});
const {content} = await tools.files.read_text_file({path: "deploy/" + list.match(/\] (.+)/)[1]});
console.log(list.slice(0, 100) + "\n" + content);
