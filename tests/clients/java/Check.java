// jedis against a node, in RESP2 and RESP3: java -cp 'target/dependency/*' Check.java HOST PORT
// With REDIS_TLS_CA, the file of an authority, over TLS; with REDIS_USER and REDIS_PASSWORD as that user.

import java.io.FileInputStream;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;

public class Check {
    static int checks = 0;

    static void equal(Object found, Object expected) {
        checks++;
        if (!Objects.equals(found, expected)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    static SSLSocketFactory trusting(String ca) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null);
        try (FileInputStream file = new FileInputStream(ca)) {
            store.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context.getSocketFactory();
    }

    static void check(Jedis jedis) {
        equal(jedis.ping(), "PONG");
        equal(jedis.set("java:a", "1"), "OK");
        equal(jedis.get("java:a"), "1");
        equal(jedis.get("java:none"), null);
        equal(jedis.set("java:a", "2", SetParams.setParams().nx()), null);
        equal(jedis.setGet("java:a", "2"), "1");
        equal(jedis.incrBy("java:a", 40), 42L);
        equal(jedis.append("java:a", "0"), 3L);
        equal(jedis.mset("java:b", "x", "java:z", "y"), "OK");
        equal(jedis.mget("java:b", "java:none", "java:z"), Arrays.asList("x", null, "y"));
        equal(jedis.exists("java:a", "java:none"), 1L);
        equal(jedis.scan("0", new ScanParams().match("java:*").count(100)).getResult(), List.of("java:a", "java:b", "java:z"));
        Pipeline pipeline = jedis.pipelined();
        Response<Long> last = null;
        for (int i = 0; i < 100; i++) {
            last = pipeline.incr("java:n");
        }
        pipeline.sync();
        equal(last.get(), 100L);
        try {
            jedis.lpush("java:list", "x");
            throw new AssertionError("an unknown command is answered");
        } catch (JedisDataException error) {
            equal(error.getMessage().contains("unknown command"), true);
        }
        try {
            Transaction transaction = jedis.multi();
            transaction.set("java:a", "9");
            transaction.incr("java:n");
            transaction.exec();
            throw new AssertionError("a transaction is executed");
        } catch (JedisDataException error) {
            equal(error.getMessage().contains("MULTI is not supported") || error.getMessage().contains("EXECABORT"), true);
        }
        if (jedis.isBroken()) {
            throw new AssertionError("the connection is not as before");
        }
        equal(jedis.mget("java:a", "java:n"), Arrays.asList("420", "100"));
        try {
            jedis.evalsha("0123456789012345678901234567890123456789");
            throw new AssertionError("a script is executed");
        } catch (JedisDataException error) {
            equal(error.getMessage().contains("EVALSHA is not supported"), true);
        }
        equal(jedis.info("server").contains("leeward_version"), true);
        equal(jedis.del("java:a", "java:b", "java:z", "java:n"), 4L);
    }

    public static void main(String[] args) throws Exception {
        HostAndPort at = new HostAndPort(args[0], Integer.parseInt(args[1]));
        String ca = System.getenv("REDIS_TLS_CA"), user = System.getenv("REDIS_USER");
        for (RedisProtocol protocol : RedisProtocol.values()) {
            DefaultJedisClientConfig.Builder config = DefaultJedisClientConfig.builder().protocol(protocol);
            if (ca != null) {
                config.ssl(true).sslSocketFactory(trusting(ca));
            }
            if (user != null) {
                config.user(user).password(System.getenv("REDIS_PASSWORD"));
            }
            try (Jedis jedis = new Jedis(at, config.build())) {
                check(jedis);
            }
        }
        System.out.println("jedis: " + checks + " checks passed");
    }
}
