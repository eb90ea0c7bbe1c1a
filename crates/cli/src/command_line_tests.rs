//! The command line is well-formed, its help says what matters, and bad flags are refused with a reason.

use super::{Cli, Command};
use clap::{CommandFactory, Parser};
use leeward_bench::replication::EXPERIMENTS;

/// The text that clap prints for `leeward <args>` instead of running it: an error, or help.
fn refused(args: &str) -> String {
    let args = std::iter::once("leeward").chain(args.split_whitespace());
    Cli::try_parse_from(args).expect_err("it is refused").to_string()
}

fn help(args: &str) -> String {
    refused(&format!("{args} --help"))
}

#[test]
fn the_definition_is_well_formed() {
    Cli::command().debug_assert();
}

#[test]
fn the_first_help_page_is_as_it_was() {
    let expected = "\
A replicated, persistent, ordered key-value store

Usage: leeward [OPTIONS] <COMMAND>

Commands:
  dev     Run a whole cluster on this machine: one process per node, and the coordinator
  serve   Run one node
  status  Show nodes, roles, regions and lag of a running cluster
  bench   Measure a cluster
  get     Print the value of a key
  put     Set a key
  del     Remove a key
  scan    Print keys and values in order
  count   Estimate how many keys and bytes a range has
  table   Create, change, drop and show tables
  checkpoint  Copy regions to stores of their own, while they serve
  ingest  Put the sorted pairs of a file or a store into a table or an embedded store
  move    Move a region's copy, or its primary role, to another server
  drain   Move everything off a server, so that it can be stopped for good
  join    Let a server take its share of copies and primary roles
  restart  Restart servers one after the other, so that no request fails
  config  Check a node's settings and print them, or explain them
  certs   Make and show certificates, for a cluster with TLS
  user    Make, change and show users, their passwords and rights
  split   Split a region into two
  merge   Merge a small region into its neighbour
  accept-loss  Give up the data that only a lost volume holds, so that the region that waits for it can serve again
  restore-coordinator  Restore a coordinator that lost its data, or was put back to an older state, from what the nodes know
  inspect Show what a volume holds, down to each record, without opening it
  rekey   Rewrite an encrypted volume with a new data key
  verify Read everything that a volume holds, and verify every checksum
  help    Print this message or the help of the given subcommand(s)

Options:
  -h, --help          Print help
  -V, --version       Print version
      --log <FILTER>  What to log to the standard error: a level, or levels by crate
                      (warn,leeward_server=debug) [default: info for `serve`, else warn]

Examples:
  leeward dev                                  three nodes on this machine
  redis-cli -p 7379 set hello world            any Redis client, any node
  leeward status                               nodes, roles, regions, lag
  leeward bench ycsb --workload a --mix sd     YCSB against the running nodes
";
    let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(unwrapped(&help("")), unwrapped(expected));
}

#[test]
fn every_page_has_an_example() {
    for page in [
        "",
        "dev",
        "serve",
        "status",
        "bench ycsb",
        "bench replication",
        "get",
        "put",
        "del",
        "scan",
        "count",
        "table create",
        "table drop",
        "table list",
        "table describe",
        "join",
        "restart",
        "config",
        "certs create",
        "certs add",
        "certs show",
        "accept-loss",
        "restore-coordinator",
        "inspect",
        "rekey",
        "verify",
    ] {
        let text = help(page);
        assert!(text.contains("Example"), "{page}: {text}");
    }
}

#[test]
fn the_help_names_every_experiment() {
    let text = help("bench replication");
    for experiment in &EXPERIMENTS {
        assert!(text.contains(experiment.name), "{}: {text}", experiment.name);
    }
}

#[test]
fn the_help_of_dev_tells_the_ports_and_what_happens_to_the_dead() {
    let text = help("dev");
    for part in ["base port", "--restart", "leeward-data", "7379", "i,user06,user12", "Ctrl-C"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_command_lines_of_the_readme_are_understood() {
    for line in [
        "leeward dev",
        "leeward dev --nodes 1",
        "leeward status",
        "leeward bench ycsb --workload a --mix sd --records 1000000 --ops 1000000",
        "leeward bench ycsb --dev 3 --workload load,a,b,c,d,e,f --mix sd --records 1000000 --ops 1000000 --verify",
        "leeward bench ycsb --dev 3 --workload LOAD,A --mix SD --kill-primary-every 5 --kills 10 --verify --json x",
        "leeward inspect leeward-data/node-1 --segment 12 --entries",
        "leeward verify leeward-data/node-1",
        "leeward serve --config node.toml --set server_id=2",
        "leeward config --explain lease_ms",
        "leeward scan --reverse --limit 10",
        "leeward table create orders --preset tebis",
        "leeward get --table orders 4711",
        "leeward table describe orders",
    ] {
        if let Err(error) = Cli::try_parse_from(line.split(' ')) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn bad_flags_are_refused_with_what_would_be_right() {
    for (args, part) in [
        ("dev --nodes 0", "1..=32"),
        ("dev --nodes many", "invalid digit"),
        ("dev --base-port 65535", "1..=65000"),
        ("dev --fabric carrier-pigeon", "possible values: shm, tcp, libfabric, libfabric:verbs"),
        ("dev --set memory_budget", "NAME=VALUE"),
        ("dev --colour", "unexpected argument"),
        ("bench ycsb --mix xxl", "s, m, l, sd, md, ld"),
        ("bench ycsb --workload z", "load, a, b, c, d, e, f"),
        ("bench ycsb --distribution gauss", "zipfian, zipfian:THETA, uniform, latest"),
        ("bench ycsb --distribution zipfian:1", "above 0 and below 1"),
        ("bench ycsb --kill-primary-every 5", "--dev"),
        ("bench ycsb --kills 5 --dev 3", "--kill-primary-every"),
        ("bench ycsb --dev 3 --connect 127.0.0.1:1", "cannot be used with"),
        ("get", "<KEY>"),
        ("get --table 7 k", "begins with a letter"),
        ("table create Orders", "begins with a letter"),
        ("table create a --preset x", "possible values: default, anthus, tebis"),
        ("table create a --regions 2 --split-at m", "cannot be used with"),
        ("merge --region 4", "--into <REGION>"),
        ("merge --region 4 --into 3 --cancel", "cannot be used with"),
        ("bench ycsb --dev 3 --table a", "cannot be used with"),
        ("fly", "unrecognized subcommand"),
    ] {
        let text = refused(args);
        assert!(text.contains(part), "{args}: {part:?} in {text}");
    }
}

#[test]
fn lists_are_split_at_commas() {
    let cli = Cli::try_parse_from(["leeward", "dev", "--split-at", "k1,k2", "--set", "a=b=c", "--set", "d= 1"]);
    let Ok(Cli { command: Command::Dev(args), .. }) = cli else { panic!("{cli:?}") };
    assert_eq!(args.split_at, Some(vec!["k1".into(), "k2".into()]));
    assert_eq!(args.settings, [("a".to_string(), "b=c".to_string()), ("d".into(), "1".into())]);
}

#[test]
fn a_time_has_a_unit_and_conditions_exclude_each_other() {
    let put = |args: &[&str]| Cli::try_parse_from([&["leeward", "put", "k", "v"], args].concat());
    for (text, ms) in [("5", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000), ("7d", 604_800_000)] {
        match put(&["--ttl", text]).expect("a time").command {
            Command::Put(args) => assert_eq!(args.ttl, Some(std::time::Duration::from_millis(ms)), "{text}"),
            _ => panic!("put is put"),
        }
    }
    for text in ["0", "-1", "x", "5 s", "1.5", "99999999999999999999", "18446744073709551615d"] {
        assert!(put(&["--ttl", text]).is_err(), "{text}");
    }
    assert!(put(&["--ttl", "5", "--keep-ttl"]).is_err());
    assert!(put(&["--if-absent", "--if-version", "3"]).is_err());
    assert!(put(&["--if-value", "x"]).is_ok());
}
