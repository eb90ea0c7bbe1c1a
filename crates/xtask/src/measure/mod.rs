//! `cargo xtask measure`: measurements for developers, on clusters of the `leeward` binary.
//!
//! Figures mean something only if both programs are built for release: `docs/benchmark.md` has the commands.

mod idle;
mod routes;

use clap::{Args, Subcommand};
use idle::IdleArgs;
use leeward_bench::Failure;
use leeward_bench::starter::Starter;
use leeward_bench::{faults, moves, pauses, redis, rights, rotation, splits};
use routes::RoutesArgs;
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(test)]
mod tests;

/// What to measure, and with what.
#[derive(Args, Debug)]
pub struct Measure {
    /// The binary that nodes are processes of [default: `leeward` beside this program]
    #[arg(long, value_name = "PATH", global = true)]
    leeward: Option<PathBuf>,
    /// Directory in which each cluster creates its own [default: the one for temporary files]
    #[arg(long, value_name = "DIR", global = true)]
    data: Option<PathBuf>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What an idle cluster spends
    #[command(after_help = "\
Examples:
  cargo xtask measure idle --dev 3 --seconds 30
  cargo xtask measure idle --dev 3 --regions 1000 --pairs 20
The figures cover the nodes and this process, which hosts their coordinator. Memory is resident memory, shared memory
included, without the page cache.")]
    Idle(IdleArgs),
    /// How long a client takes to start when it must learn where many regions are
    #[command(after_help = "\
Example:
  cargo xtask measure routes --regions 10000 --key-bytes 20
One node runs in this process. Its regions have random first keys and belong to servers that do not exist. So nothing is
measured but how a client learns where regions are.")]
    Routes(RoutesArgs),
    /// How long a region pauses when its primary role is transferred, or a member dies or stops
    #[command(after_help = "\
Examples:
  cargo xtask measure pauses
  cargo xtask measure pauses --only hand-over,dead-backup --rounds 5 --json pauses.json

One region on three nodes serves a moderate load of writes. Kinds of pauses: hand-over, dead-backup, stopped-backup,
dead-primary (L0s of 16 MiB, nearly full) and dead-primary-64 (of 64 MiB). A client writes one key again and again. The pause is
the longest time between two answers to it; where the primary dies, it counts from the end of the primary's session.
Exit code 1: a pause was longer than its budget.")]
    Pauses(pauses::Options),
    /// What it costs to add servers, and to drain them again, while clients work
    #[command(after_help = "\
Examples:
  cargo xtask measure moves
  cargo xtask measure moves --regions 48 --records 5000000 --mix md --json moves.json

Three nodes serve YCSB A. Two more start, and get their share of copies and primary roles by themselves. Then both are drained
and stopped. Printed are the requests that failed, the throughput before and during each move, and how evenly bytes are spread
afterwards.
Exit code 1: a request failed, less than 0.7 of the throughput was left, or a server is more than a tenth off its share.")]
    Moves(moves::Options),
    /// What it costs to split regions under load
    #[command(after_help = "\
Examples:
  cargo xtask measure splits
  cargo xtask measure splits --rounds 1 --records 4000000 --mix md --json splits.json

One region on three nodes serves YCSB A. It is split, then its half with the lowest keys is split, and so on. One client writes
one key of the region again and again. Printed are the longest time between two answers to that client, and the throughput of
all others: before the split, until there are two regions, in the five seconds after that, and later.
Exit code 1: a request failed.")]
    Splits(splits::Options),
    /// Kill primaries in every mode of replication, change modes meanwhile, and check that nothing is lost
    #[command(after_help = "\
Examples:
  cargo xtask measure faults
  cargo xtask measure faults --only send-index,build-index-last-flush,2 --kills 10
  cargo xtask measure faults --json faults.json

Runs every mode of replication that `leeward bench replication` knows, with two and with three replicas. Each run has its own
cluster of three nodes: Load A, then Run A while primaries are killed as by `leeward bench ycsb --kill-primary-every --verify`.
After --kills of them come six more, each with a change of the table (`leeward table alter`); one of these comes while the node
killed before is not in sync yet. Then every acknowledged write is read back and the replicas are compared. docs/benchmark.md
says more.
Exit code 1: something failed, was lost, or differs.")]
    Faults(faults::Options),
    /// What checks of rights cost a get
    #[command(after_help = "\
Examples:
  cargo xtask measure rights
  cargo xtask measure rights --rounds 9 --users 1000 --json rights.json

One node without replicas gets redis-benchmark's GET at depth 16, which must be installed (package redis-tools): in turn while
there are no users, and as one of many users with many grants, of which only the last gives the right.
Exit code 1: with users less than 0.97 of the throughput was left, the median of all rounds.")]
    Rights(rights::Options),
    /// Replace passwords and certificates while clients work
    #[command(after_help = "\
Examples:
  cargo xtask measure rotation
  cargo xtask measure rotation --rounds 3 --records 100000 --json rotation.json

Three nodes with TLS serve YCSB A to a user. In each round all nodes get new certificates, the user gets another password,
clients change to it, and the old one is removed.
Exit code 1: a request failed.")]
    Rotation(rotation::Options),
    /// What a request of a Redis client costs, beside Redis
    #[command(after_help = "\
Examples:
  cargo xtask measure redis
  cargo xtask measure redis --rounds 5 --requests 2000000 --json redis.json

Three nodes with three copies of one region run beside a redis-server with two replicas, which must be installed (packages
redis-server and redis-tools). redis-benchmark with 50 connections drives them in turn. Printed is the CPU time of all server
processes. Redis keeps its data in memory only, and acknowledges a write before replicas have it.
Exit code 1: a request cost more than it should.")]
    Redis(redis::Options),
}

/// Runs a measurement. The exit code is 1 if a target was missed or something failed in a run, and 2 if there is no
/// result.
pub fn measure(options: &Measure) -> ExitCode {
    match options.run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

impl Measure {
    fn run(&self) -> Result<bool, Failure> {
        let data = self.data.as_deref();
        let starter = || Starter::new(self.program()?, data);
        match &self.what {
            What::Idle(args) => idle::run(args, self.program()?, data),
            What::Routes(args) => routes::run(args, data),
            What::Pauses(options) => pauses::run(options, &starter()?),
            What::Moves(options) => moves::run(options, &starter()?),
            What::Splits(options) => splits::run(options, &starter()?),
            What::Faults(options) => faults::run(options, &starter()?),
            What::Rights(options) => rights::run(options, self.program()?, data),
            What::Rotation(options) => rotation::run(options, self.program()?, data),
            What::Redis(options) => redis::run(options, self.program()?, data),
        }
    }

    /// The binary that each node runs.
    fn program(&self) -> Result<PathBuf, Failure> {
        let beside = || env::current_exe().map(|own| own.with_file_name("leeward"));
        let path = self.leeward.clone().map_or_else(beside, Ok)?;
        if path.is_file() {
            return Ok(path);
        }
        let (path, release) = (path.display(), if cfg!(debug_assertions) { "" } else { " --release" });
        Err(format!("{path}: there is no such program; build it first: cargo build{release} -p leeward-cli").into())
    }
}
