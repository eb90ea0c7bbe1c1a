// What Redisson does about what there is not: java -cp 'target/dependency/*' Scripts.java HOST PORT
// With REDIS_TLS_CA, the file of an authority, over TLS; with REDIS_USER and REDIS_PASSWORD as that user.
//
// With its cache of scripts Redisson answers `ERR unknown command` to EVALSHA by the same EVALSHA, without end.

import java.io.File;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.BatchOptions;
import org.redisson.api.RBatch;
import org.redisson.api.RScript;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

public class Scripts {
    static int checks = 0;
    static final ExecutorService THREADS = Executors.newCachedThreadPool(run -> {
        Thread thread = new Thread(run);
        thread.setDaemon(true);
        return thread;
    });

    static void equal(Object found, Object expected) {
        checks++;
        if (!expected.equals(found)) {
            throw new AssertionError("found " + found + ", expected " + expected);
        }
    }

    /** It fails with these words, within ten seconds. */
    static void refused(String says, Callable<Object> act) throws Exception {
        checks++;
        Object found;
        try {
            found = THREADS.submit(act).get(10, TimeUnit.SECONDS);
        } catch (java.util.concurrent.TimeoutException error) {
            throw new AssertionError("no end within 10 s, expected an error with " + says);
        } catch (java.util.concurrent.ExecutionException error) {
            String said = String.valueOf(error.getCause());
            if (!said.contains(says)) {
                throw new AssertionError("refused by " + said + ", expected " + says);
            }
            return;
        }
        throw new AssertionError("answered " + found + ", expected an error with " + says);
    }

    static RedissonClient connect(String address, boolean cachesScripts) {
        Config config = new Config();
        config.setCodec(StringCodec.INSTANCE);
        config.setUseScriptCache(cachesScripts);
        String ca = System.getenv("REDIS_TLS_CA"), user = System.getenv("REDIS_USER");
        SingleServerConfig server = config.useSingleServer();
        server.setAddress((ca == null ? "redis://" : "rediss://") + address);
        if (ca != null) {
            try {
                server.setSslTruststore(truststore(ca).toURI().toURL()).setSslTruststorePassword("changeit");
            } catch (Exception error) {
                throw new AssertionError(error);
            }
        }
        if (user != null) {
            server.setUsername(user).setPassword(System.getenv("REDIS_PASSWORD"));
        }
        return Redisson.create(config);
    }

    static File truststore(String ca) throws Exception {
        java.security.KeyStore store = java.security.KeyStore.getInstance("PKCS12");
        store.load(null);
        try (java.io.FileInputStream file = new java.io.FileInputStream(ca)) {
            store.setCertificateEntry("ca", java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        File saved = File.createTempFile("authority", ".p12");
        saved.deleteOnExit();
        try (java.io.FileOutputStream out = new java.io.FileOutputStream(saved)) {
            store.store(out, "changeit".toCharArray());
        }
        return saved;
    }

    static void batch(RedissonClient client, BatchOptions.ExecutionMode mode) throws Exception {
        refused("", () -> {
            RBatch batch = client.createBatch(BatchOptions.defaults().executionMode(mode));
            batch.getBucket("rs:a").setAsync("9");
            batch.getAtomicLong("rs:n").incrementAndGetAsync();
            return batch.execute().getResponses();
        });
        equal(client.getBucket("rs:a").get(), "1");
        equal(client.getAtomicLong("rs:n").get(), 1L);
    }

    public static void main(String[] args) throws Exception {
        for (boolean cachesScripts : new boolean[] {false, true}) {
            RedissonClient client = connect(args[0] + ":" + args[1], cachesScripts);
            client.getBucket("rs:a").set("1");
            equal(client.getAtomicLong("rs:n").incrementAndGet(), 1L);
            String script = "return 1", words = "is not supported: Leeward runs no scripts";
            for (RScript.Mode mode : RScript.Mode.values()) {
                refused(words, () -> client.getScript().eval(mode, script, RScript.ReturnType.INTEGER));
                refused(words, () -> client.getScript().evalSha(mode, "0".repeat(40), RScript.ReturnType.INTEGER));
            }
            refused(words, () -> client.getAtomicLong("rs:n").compareAndSet(1, 2));
            refused(words, () -> client.getLock("rs:lock").tryLock(1, 10, TimeUnit.SECONDS));
            refused("Leeward has no channels", () -> client.getTopic("rs:t").publish("x"));
            batch(client, BatchOptions.ExecutionMode.REDIS_WRITE_ATOMIC);
            batch(client, BatchOptions.ExecutionMode.IN_MEMORY_ATOMIC);
            equal(client.getKeys().delete("rs:a", "rs:n"), 2L);
            client.shutdown();
        }
        System.out.println("Redisson: " + checks + " checks passed");
        System.exit(0);
    }
}
