// node-redis and ioredis in cluster mode, while primaries move and a node is killed:
// node cluster.mjs node-redis|ioredis HOST PORT DIRECTORY
// cluster.sh has what the files in DIRECTORY mean.
import assert from "node:assert/strict";
import { existsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const [library, host, port, directory] = process.argv.slice(2);
const there = (name) => existsSync(`${directory}/${name}`);
const keys = Array.from({ length: 48 }, (_, number) => `${library}:${number}`);

// Errors of connections that come beside those of commands.
const note = (error) => assert.ok(there("killed"), `${error} while no node is dead`);

async function connect() {
  if (library === "ioredis") {
    const { Cluster } = await import("ioredis");
    const cluster = new Cluster([{ host, port: Number(port) }]);
    cluster.on("node error", note);
    return {
      set: (key, value) => cluster.set(key, value),
      get: (key) => cluster.get(key),
      keysOfMasters: async () => (await Promise.all(cluster.nodes("master").map((node) => node.keys(`${library}:*`)))).flat(),
      close: () => cluster.disconnect(),
    };
  }
  const { createClient, createCluster } = await import("redis");
  // By itself node-redis asks for the slots anew when it is redirected, not when a node is gone: so commands to a dead
  // node must fail, and then a new connection has the new slots.
  const open = async () => {
    const cluster = createCluster({
      rootNodes: [port, Number(port) + 1, Number(port) + 2].map((at) => ({ url: `redis://${host}:${at}` })),
      defaults: { disableOfflineQueue: true, socket: { reconnectStrategy: false } },
    });
    cluster.on("error", note);
    cluster.on("node-error", note);
    return cluster.connect();
  };
  let cluster = await open();
  const reopening = (run) => async (...args) => {
    try {
      return await run(cluster, ...args);
    } catch (error) {
      note(error);
      const old = cluster;
      cluster = await open();
      old.destroy();
      throw error;
    }
  };
  return {
    set: reopening((cluster, key, value) => cluster.set(key, value)),
    get: reopening((cluster, key) => cluster.get(key)),
    keysOfMasters: async () => {
      const of = async (master) => {
        const client = createClient({ url: `redis://${master.address}` });
        await client.connect();
        const found = await client.keys(`${library}:*`);
        await client.close();
        return found;
      };
      return (await Promise.all(cluster.masters.map(of))).flat();
    },
    close: () => cluster.destroy(),
  };
}

const client = await connect();
for (const key of keys) await client.set(key, "0");
assert.deepEqual((await client.keysOfMasters()).sort(), [...keys].sort(), "each key is on one master");
writeFileSync(`${directory}/ready-${library}`, "");

let [checks, errors, number] = [1, 0, 0];
for (let last = false; !last; ) {
  // The last round begins when all is over.
  last = there("stop");
  number++;
  for (const key of keys) {
    let found;
    for (const begun = Date.now(); ; ) {
      try {
        await client.set(key, String(number));
        found = await client.get(key);
        break;
      } catch (error) {
        assert.ok(there("killed"), `${key}: ${error} while no node is dead`);
        assert.ok(Date.now() - begun < 30_000, `${key}: ${error} for 30 s`);
        errors++;
        await sleep(50);
      }
    }
    assert.equal(found, String(number), key);
    checks++;
  }
}
client.close();
console.log(`${library} in cluster mode: ${checks} checks passed, ${errors} errors after the kill`);
process.exit(0);
