//! The command line of what is done to a table as a whole: checkpoint and ingest.

use super::{Connect, InTable};
use clap::Args;
use leeward_format::table::TableName;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward checkpoint monday                    every region of every table
  leeward checkpoint monday --table orders
Each region's primary copies it, as of one instant, to checkpoints/NAME/region-N in its data directory, while it goes on
serving; instants of two regions differ. A copy is a store of its own: `leeward verify`, `leeward inspect` and the embedded
engine open it, and `leeward ingest --from-store` reads it back. It takes as much space as the region.
The name has 1 to 64 letters, digits, -, _ and ., and must be new on each node.")]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Its name
    pub(crate) name: String,
    /// Only regions of this table
    #[arg(long, value_name = "NAME")]
    pub(crate) table: Option<TableName>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward scan --table orders > orders.txt
  leeward ingest orders.txt --table orders             to a cluster, as puts
  leeward ingest orders.txt --dir /srv/embedded        to an embedded store, as finished segments, all or nothing
  leeward ingest --from-store node-1/checkpoints/monday/region-3 --table orders
A line is a key, a tab and a value, both escaped as `leeward scan` prints them: \\t, \\n, \\r, \\', \\\", \\\\ and \\xNN. Keys
ascend, as bytes. `-` is the standard input. After an error in a cluster the lines before it are there; the same
command may be repeated.")]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// The file with the pairs
    #[arg(required_unless_present = "from_store")]
    pub(crate) file: Option<PathBuf>,
    /// Read the pairs of a store instead, such as a checkpoint's
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub(crate) from_store: Option<PathBuf>,
    /// Into the embedded store in this directory, which nobody has open; made if there is none
    #[arg(long, value_name = "DIR", conflicts_with_all = ["connect", "table"])]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A region whose in-sync members have all died waits for the volumes that may hold acknowledged writes which no other has;
`leeward status` names them. This command gives the volumes of one server up: the region goes on with the longest copy of
the others, WITHOUT what only the lost ones hold, once it waits for nobody else. Stop the server's old process first. It is
refused for a server that the region does not wait for.

Example:
  leeward accept-loss --region 1 --server 2")]
pub(crate) struct AcceptLossArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// The region that waits
    #[arg(long)]
    pub(crate) region: u32,
    /// The server whose data is lost
    #[arg(long)]
    pub(crate) server: u32,
}
