// Command cluster runs go-redis in cluster mode, while primaries move and a node is killed: cluster HOST:PORT DIRECTORY
// cluster.sh has what the files in DIRECTORY mean.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "go-redis: "+format+"\n", args...)
	os.Exit(1)
}

func must[T any](result T, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return result
}

func main() {
	ctx, directory := context.Background(), os.Args[2]
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(directory, name))
		return err == nil
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{os.Args[1]}})
	defer rdb.Close()

	keys := make([]string, 48)
	for i := range keys {
		keys[i] = "go:" + strconv.Itoa(i)
		must(rdb.Set(ctx, keys[i], 0, 0).Result())
	}
	var mutex sync.Mutex
	seen := map[string]int{}
	must(0, rdb.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
		found, err := master.Keys(ctx, "go:*").Result()
		mutex.Lock()
		defer mutex.Unlock()
		for _, key := range found {
			seen[key]++
		}
		return err
	}))
	for _, key := range keys {
		if seen[key] != 1 {
			fail("%s is on %d masters", key, seen[key])
		}
	}
	pipe := rdb.Pipeline()
	for _, key := range keys {
		pipe.Incr(ctx, key)
	}
	for _, reply := range must(pipe.Exec(ctx)) {
		if reply.(*redis.IntCmd).Val() != 1 {
			fail("a pipeline answers %v", reply)
		}
	}
	must(0, os.WriteFile(filepath.Join(directory, "ready-go-redis"), nil, 0o644))

	checks, errors, number := 2*len(keys), 0, 0
	for last := false; !last; {
		// The last round begins when all is over.
		last = there("stop")
		number++
		for _, key := range keys {
			for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
				var found string
				err := rdb.Set(ctx, key, number, 0).Err()
				if err == nil {
					found, err = rdb.Get(ctx, key).Result()
				}
				if err == nil {
					if found != strconv.Itoa(number) {
						fail("%s: found %s, wrote %d", key, found, number)
					}
					break
				}
				if !there("killed") {
					fail("%s: %v while no node is dead", key, err)
				}
				if time.Since(begun) > 30*time.Second {
					fail("%s: %v for 30 s", key, err)
				}
				errors++
			}
			checks++
		}
	}
	fmt.Printf("go-redis in cluster mode: %d checks passed, %d errors after the kill\n", checks, errors)
}
