// This is the application for node. It sleeps as asgi.py does. The draw equals that of work.py.
// The environment variables are APPLICATION, which describes it in JSON, and PORT.
import { createHash } from "node:crypto";
import { createServer } from "node:http";

const spec = JSON.parse(process.env.APPLICATION);
const BYTES = 6;
const COST = 50;

function draw(seed, number) {
  const digest = createHash("sha256").update(`${seed}/${number}`).digest();
  return -Math.log1p(-digest.readUIntBE(0, BYTES) / 2 ** (8 * BYTES));
}

function amount(number, path) {
  if (number === undefined) return 0;
  return spec.mean * draw(spec.seed, number) * (path.startsWith("/costly") ? COST : 1);
}

const server = createServer((request, response) => {
  const answer = () => {
    response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": 3, "X-Pool": spec.name });
    response.end("ok\n");
  };
  const seconds = amount(request.headers["x-request-number"], request.url);
  if (seconds) setTimeout(answer, seconds * 1000);
  else answer();
});
server.keepAliveTimeout = 75_000;
server.listen(Number(process.env.PORT), "127.0.0.1");
