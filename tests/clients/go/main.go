// Command main checks that go-redis, with its defaults (RESP3), works against a node: go run . HOST:PORT
// With REDIS_TLS_CA, the file of an authority, over TLS; with REDIS_USER and REDIS_PASSWORD as that user.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/redis/go-redis/v9"
)

var checks int

func equal(what string, found, expected any) {
	checks++
	if !reflect.DeepEqual(found, expected) {
		fmt.Fprintf(os.Stderr, "%s: found %v, expected %v\n", what, found, expected)
		os.Exit(1)
	}
}

func value[T any](result T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return result
}

func main() {
	ctx := context.Background()
	options := &redis.Options{Addr: os.Args[1], Username: os.Getenv("REDIS_USER"), Password: os.Getenv("REDIS_PASSWORD")}
	if ca := os.Getenv("REDIS_TLS_CA"); ca != "" {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(value(os.ReadFile(ca)))
		options.TLSConfig = &tls.Config{RootCAs: roots}
	}
	rdb := redis.NewClient(options)
	defer rdb.Close()

	equal("ping", value(rdb.Ping(ctx).Result()), "PONG")
	equal("set", value(rdb.Set(ctx, "go:a", "1", 0).Result()), "OK")
	equal("get", value(rdb.Get(ctx, "go:a").Result()), "1")
	equal("setnx", value(rdb.SetNX(ctx, "go:a", "2", 0).Result()), false)
	equal("incrby", value(rdb.IncrBy(ctx, "go:a", 41).Result()), int64(42))
	equal("append", value(rdb.Append(ctx, "go:a", "0").Result()), int64(3))
	_, err := rdb.Get(ctx, "go:none").Result()
	equal("a missing key", err, redis.Nil)
	equal("mset", value(rdb.MSet(ctx, "go:b", "x", "go:z", "y").Result()), "OK")
	equal("mget", value(rdb.MGet(ctx, "go:b", "go:none", "go:z").Result()), []any{"x", nil, "y"})
	equal("exists", value(rdb.Exists(ctx, "go:a", "go:b", "go:none").Result()), int64(2))
	keys, _ := value2(rdb.Scan(ctx, 0, "go:*", 100).Result())
	equal("scan", keys, []string{"go:a", "go:b", "go:z"})
	equal("krange", value(rdb.Do(ctx, "KRANGE", "go:", "go:c", "KEYS").Result()), []any{"go:a", "go:b"})
	equal("type", value(rdb.Type(ctx, "go:a").Result()), "string")

	pipe := rdb.Pipeline()
	for i := 0; i < 100; i++ {
		pipe.Incr(ctx, "go:n")
	}
	replies := value(pipe.Exec(ctx))
	equal("pipeline", replies[99].(*redis.IntCmd).Val(), int64(100))

	_, err = rdb.LPush(ctx, "go:list", "x").Result()
	equal("an unknown command", strings.Contains(err.Error(), "unknown command"), true)
	_, err = rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "go:a", "9", 0)
		return pipe.Incr(ctx, "go:n").Err()
	})
	equal("a transaction", strings.Contains(fmt.Sprint(err), "MULTI is not supported"), true)
	equal("nothing of it", value(rdb.MGet(ctx, "go:a", "go:n").Result()), []any{"420", "100"})
	err = redis.NewScript("return 1").Run(ctx, rdb, nil).Err()
	equal("a script", strings.Contains(fmt.Sprint(err), "EVALSHA is not supported"), true)
	info := value(rdb.Info(ctx, "server").Result())
	equal("info", strings.Contains(info, "leeward_version"), true)
	commands := value(rdb.Command(ctx).Result())
	equal("command", commands["get"].ReadOnly, true)
	equal("del", value(rdb.Del(ctx, "go:a", "go:b", "go:z", "go:n").Result()), int64(4))
	fmt.Printf("go-redis: %d checks passed\n", checks)
}

func value2[T, U any](first T, second U, err error) (T, U) {
	return value(first, err), second
}
