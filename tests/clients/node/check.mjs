// node-redis against a node, in RESP2 (its default) and RESP3: node check.mjs HOST PORT
// With REDIS_TLS_CA, the file of an authority, over TLS; with REDIS_USER and REDIS_PASSWORD as that user.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createClient } from "redis";

const [host, port] = process.argv.slice(2);
const { REDIS_TLS_CA: ca, REDIS_USER: username, REDIS_PASSWORD: password } = process.env;
const socket = { host, port: Number(port), ...(ca ? { tls: true, ca: readFileSync(ca) } : {}) };
let checks = 0;
const equal = (found, expected) => {
  checks++;
  assert.deepEqual(found, expected);
};

for (const RESP of [2, 3]) {
  const client = createClient({ socket, RESP, username, password });
  client.on("error", (error) => {
    throw error;
  });
  await client.connect();
  equal(await client.ping(), "PONG");
  equal(await client.set("js:a", "1"), "OK");
  equal(await client.get("js:a"), "1");
  equal(await client.get("js:none"), null);
  equal(await client.set("js:a", "2", { NX: true }), null);
  equal(await client.set("js:a", "2", { GET: true }), "1");
  equal(await client.incrBy("js:a", 40), 42);
  equal(await client.append("js:a", "0"), 3);
  equal(await client.mSet({ "js:b": "x", "js:z": "y" }), "OK");
  equal(await client.mGet(["js:b", "js:none", "js:z"]), ["x", null, "y"]);
  equal(await client.exists(["js:a", "js:none"]), 1);
  const keys = [];
  for await (const some of client.scanIterator({ MATCH: "js:*", COUNT: 2 })) keys.push(...[some].flat());
  equal(keys, ["js:a", "js:b", "js:z"]);
  equal(await client.sendCommand(["KRANGE", "js:", "js:c", "KEYS"]), ["js:a", "js:b"]);
  const replies = await Promise.all(Array.from({ length: 100 }, () => client.incr("js:n")));
  equal(replies[99], 100);
  await assert.rejects(() => client.lPush("js:list", "x"), /unknown command/);
  await assert.rejects(() => client.multi().set("js:a", "9").incr("js:n").exec(), /MULTI is not supported/);
  equal(await client.mGet(["js:a", "js:n"]), ["420", "100"]);
  await assert.rejects(() => client.eval("return 1"), /EVAL is not supported/);
  assert.match(await client.info("server"), /leeward_version/);
  equal(await client.del(["js:a", "js:b", "js:z", "js:n"]), 4);
  await client.close();
}
console.log(`node-redis: ${checks} checks passed`);
