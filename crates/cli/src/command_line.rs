//! The command line: what clap parses, and the text of `--help`.

use crate::args::{
    AcceptLossArgs, BenchArgs, CheckpointArgs, CountArgs, DelArgs, DevArgs, GetArgs, IngestArgs, InspectArgs, PutArgs,
    RekeyArgs, RestoreCoordinatorArgs, ScanArgs, ServeArgs, StatusArgs, TableCommands, VerifyArgs,
};
use crate::certs::CertsCommands;
use crate::config::ConfigArgs;
use crate::join::JoinArgs;
use crate::merge::MergeArgs;
use crate::moves::{DrainArgs, MoveArgs};
use crate::restart::RestartArgs;
use crate::split::SplitArgs;
use crate::user::UserCommands;
use clap::{Parser, Subcommand};

/// A replicated, persistent, ordered key-value store.
#[derive(Debug, Parser)]
#[command(
    name = "leeward",
    version,
    after_help = "\
Examples:
  leeward dev                                  three nodes on this machine
  redis-cli -p 7379 set hello world            any Redis client, any node
  leeward status                               nodes, roles, regions, lag
  leeward bench ycsb --workload a --mix sd     YCSB against the running nodes"
)]
pub(crate) struct Cli {
    /// What to log to the standard error: a level, or levels by crate (warn,leeward_server=debug) [default: info for
    /// `serve`, else warn]
    #[arg(long, global = true, value_name = "FILTER", display_order = 1000)]
    pub(crate) log: Option<String>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole cluster on this machine: one process per node, and the coordinator
    Dev(DevArgs),
    /// Run one node
    Serve(ServeArgs),
    /// Show nodes, roles, regions and lag of a running cluster
    Status(StatusArgs),
    /// Measure a cluster
    Bench(BenchArgs),
    /// Print the value of a key
    Get(GetArgs),
    /// Set a key
    Put(PutArgs),
    /// Remove a key
    Del(DelArgs),
    /// Print keys and values in order
    Scan(ScanArgs),
    /// Estimate how many keys and bytes a range has
    Count(CountArgs),
    /// Create, change, drop and show tables
    Table(TableCommands),
    /// Copy regions to stores of their own, while they serve
    Checkpoint(CheckpointArgs),
    /// Put the sorted pairs of a file or a store into a table or an embedded store
    Ingest(IngestArgs),
    /// Move a region's copy, or its primary role, to another server
    Move(MoveArgs),
    /// Move everything off a server, so that it can be stopped for good
    Drain(DrainArgs),
    /// Let a server take its share of copies and primary roles
    Join(JoinArgs),
    /// Restart servers one after the other, so that no request fails
    Restart(RestartArgs),
    /// Check a node's settings and print them, or explain them
    Config(ConfigArgs),
    /// Make and show certificates, for a cluster with TLS
    Certs(CertsCommands),
    /// Make, change and show users, their passwords and rights
    User(UserCommands),
    /// Split a region into two
    Split(SplitArgs),
    /// Merge a small region into its neighbour
    Merge(MergeArgs),
    /// Give up the data that only a lost volume holds, so that the region that waits for it can serve again
    AcceptLoss(AcceptLossArgs),
    /// Restore a coordinator that lost its data, or was put back to an older state, from what the nodes know
    RestoreCoordinator(RestoreCoordinatorArgs),
    /// Show what a volume holds, down to each record, without opening it
    Inspect(InspectArgs),
    /// Rewrite an encrypted volume with a new data key
    Rekey(RekeyArgs),
    /// Read everything that a volume holds, and verify every checksum
    Verify(VerifyArgs),
}

#[cfg(test)]
#[path = "command_line_tests.rs"]
mod tests;
