// A signup service that knows nothing of retries: post twice, and two mails are sent.
import { createServer } from "node:http";

const mails = [];

const server = createServer(async (request, response) => {
  let body = "";
  for await (const part of request) body += part;
  let status = 200;
  let answer = mails;
  if (request.method === "POST") {
    const { event, address } = JSON.parse(body);
    mails.push({ to: address, text: `Welcome. This is mail ${mails.length + 1}.` });
    status = 202;
    answer = { event, mails: mails.length };
  }
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(answer));
});

server.listen(Number(process.argv[2] ?? 9200), "127.0.0.1", () => {
  console.log(`signups on http://127.0.0.1:${server.address().port}`);
});
