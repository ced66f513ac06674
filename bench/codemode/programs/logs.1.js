const {content: list} = await tools.files.list_directory({path: "logs"});
const {content: head} = await tools.files.read_text_file({path: "logs/" + list.match(/\] (.+)/)[1], head: 3});
console.log(list + "\n" + head);
