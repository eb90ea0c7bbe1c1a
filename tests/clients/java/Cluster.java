// jedis and lettuce in cluster mode, while primaries move and a node is killed:
// java -cp 'target/dependency/*' Cluster.java jedis|lettuce HOST PORT DIRECTORY
// cluster.sh has what the files in DIRECTORY mean.

import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import io.lettuce.core.cluster.models.partitions.RedisClusterNode;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import redis.clients.jedis.Connection;
import redis.clients.jedis.ConnectionPool;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisCluster;
import redis.clients.jedis.exceptions.JedisException;

public class Cluster {
    interface Client extends AutoCloseable {
        void set(String key, String value);

        String get(String key);

        /** What each master has. */
        List<String> keysOfMasters(String pattern);

        @Override
        void close();
    }

    static class OfJedis implements Client {
        final JedisCluster cluster;

        OfJedis(String host, int port) {
            cluster = new JedisCluster(new HostAndPort(host, port));
        }

        public void set(String key, String value) {
            cluster.set(key, value);
        }

        public String get(String key) {
            return cluster.get(key);
        }

        public List<String> keysOfMasters(String pattern) {
            List<String> found = new ArrayList<>();
            for (ConnectionPool pool : cluster.getClusterNodes().values()) {
                try (Connection connection = pool.getResource()) {
                    found.addAll(new Jedis(connection).keys(pattern));
                }
            }
            return found;
        }

        public void close() {
            cluster.close();
        }
    }

    static class OfLettuce implements Client {
        final RedisClusterClient client;
        final StatefulRedisClusterConnection<String, String> connection;
        final RedisAdvancedClusterCommands<String, String> commands;

        OfLettuce(String host, int port) {
            client = RedisClusterClient.create(RedisURI.Builder.redis(host, port).withTimeout(Duration.ofSeconds(10)).build());
            // By default it asks for the nodes only once. Now it does so when it is redirected, or fails to connect.
            ClusterTopologyRefreshOptions refresh = ClusterTopologyRefreshOptions.builder()
                    .enableAllAdaptiveRefreshTriggers().adaptiveRefreshTriggersTimeout(Duration.ofSeconds(1)).build();
            client.setOptions(ClusterClientOptions.builder().topologyRefreshOptions(refresh).build());
            connection = client.connect();
            commands = connection.sync();
        }

        public void set(String key, String value) {
            commands.set(key, value);
        }

        public String get(String key) {
            return commands.get(key);
        }

        public List<String> keysOfMasters(String pattern) {
            List<String> found = new ArrayList<>();
            for (RedisClusterNode node : connection.getPartitions()) {
                found.addAll(connection.getConnection(node.getNodeId()).sync().keys(pattern));
            }
            return found;
        }

        public void close() {
            connection.close();
            client.shutdown();
        }
    }

    static void check(boolean isSo, String otherwise) {
        if (!isSo) {
            throw new AssertionError(otherwise);
        }
    }

    public static void main(String[] args) throws Exception {
        String library = args[0];
        int port = Integer.parseInt(args[2]);
        Path directory = Path.of(args[3]), killed = directory.resolve("killed"), stop = directory.resolve("stop");
        List<String> keys = new ArrayList<>();
        for (int number = 0; number < 48; number++) {
            keys.add(library + ":" + number);
        }
        try (Client client = library.equals("jedis") ? new OfJedis(args[1], port) : new OfLettuce(args[1], port)) {
            for (String key : keys) {
                client.set(key, "0");
            }
            List<String> found = client.keysOfMasters(library + ":*");
            Collections.sort(found);
            List<String> sorted = new ArrayList<>(keys);
            Collections.sort(sorted);
            check(found.equals(sorted), "each key is on one master: " + found);
            Files.createFile(directory.resolve("ready-" + library));

            int checks = 1, errors = 0, number = 0;
            for (boolean last = false; !last; ) {
                // The last round begins when all is over.
                last = Files.exists(stop);
                String value = Integer.toString(++number);
                for (String key : keys) {
                    long begun = System.nanoTime();
                    while (true) {
                        try {
                            client.set(key, value);
                            String read = client.get(key);
                            check(value.equals(read), key + ": found " + read + ", wrote " + value);
                            break;
                        } catch (JedisException | RedisException error) {
                            check(Files.exists(killed), key + ": " + error + " while no node is dead");
                            check(System.nanoTime() - begun < 30_000_000_000L, key + ": " + error + " for 30 s");
                            errors++;
                            Thread.sleep(50);
                        }
                    }
                    checks++;
                }
            }
            System.out.println(library + " in cluster mode: " + checks + " checks passed, " + errors + " errors after the kill");
        }
    }
}
