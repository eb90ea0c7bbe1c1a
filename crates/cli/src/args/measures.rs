//! The command lines of the measurements that print one figure.

use super::Fabric;
use clap::Args;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward bench idle --dev 3 --seconds 30
  leeward bench idle --dev 3 --regions 1000 --pairs 20
The figures cover the nodes and this process, which hosts their coordinator. Memory is resident memory, shared memory
included, without the page cache.")]
pub(crate) struct IdleArgs {
    /// Start a cluster of this many nodes
    #[arg(long, value_name = "NODES", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) dev: u32,
    /// How nodes write each other's memory
    #[arg(long, value_enum, default_value = "shm")]
    pub(crate) fabric: Fabric,
    /// Number of regions, all of the same size [default: two per node]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) regions: Option<u32>,
    /// Put this many pairs of 100 bytes into each region, and restart the cluster, before the measurement
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) pairs: u32,
    /// Seconds to measure
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  leeward bench routes --regions 10000 --key-bytes 20
One node runs in this process. Its regions have random first keys and belong to servers that do not exist. So the benchmark
measures nothing but how a client learns where regions are.")]
pub(crate) struct RoutesArgs {
    /// Number of regions
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=30_000))]
    pub(crate) regions: u32,
    /// Bytes of their first keys
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(8..=4096))]
    pub(crate) key_bytes: u32,
    /// Members of each region
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) members: u32,
    /// Number of clients that start, one after the other
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) clients: u32,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}
