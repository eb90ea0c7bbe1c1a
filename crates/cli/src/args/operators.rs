//! The command lines of operator commands: checkpoint, ingest, accept-loss and restore-coordinator.

use super::{Connect, InTable, Keys};
use clap::Args;
use leeward_format::table::TableName;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward checkpoint monday                    every region of every table
  leeward checkpoint monday --table orders
Each region's primary copies the region, as of one instant, to checkpoints/NAME/region-N in its data directory. It serves
meanwhile. The instants of two regions differ. A copy is a store of its own: `leeward verify`, `leeward inspect` and the
embedded engine open it, and `leeward ingest --from-store` reads it back. It takes as much space as the region.
A part is on the node that was the region's primary; the command prints where.
The name has 1 to 64 letters, digits, -, _ and ., and must be new on each node.")]
pub(crate) struct CheckpointArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
    /// Name of the checkpoint
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
ascend, as bytes. `-` is the standard input. If a cluster returns an error, the lines before it stay written; the same
command may be repeated. A checkpoint has one directory for each region: run the command once for each. Pairs of a store lose
their expiry in a table.")]
pub(crate) struct IngestArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// The file with the pairs
    #[arg(required_unless_present = "from_store")]
    pub(crate) file: Option<PathBuf>,
    /// Read the pairs of a store instead, such as a checkpoint's
    #[arg(long, value_name = "DIR", conflicts_with = "file")]
    pub(crate) from_store: Option<PathBuf>,
    /// Put them into the embedded store in this directory, which no process may have open; created if there is none
    #[arg(long, value_name = "DIR", conflicts_with_all = ["connect", "table"])]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) keys: Keys,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A coordinator that lost its data, or was put back to an older state, says less than the nodes know. Each node notices, goes on
with what it serves, takes nothing from that coordinator, and says so in its log, in /readyz and in `leeward status`. Put the
newest data of the coordinator back if there is any; this is the way if there is none. It has each of these nodes add what it
knows: regions and tables as a running node knew them last, or as the copies on the volume of a restarted node say. Then all
nodes take part in the cluster again. Nothing is removed but regions that nodes know to have ended.

Name every node, and start those that are stopped before. What only an absent node knows is lacking; it will refuse the
coordinator until this command is repeated with it.

Example:
  leeward restore-coordinator --connect 10.0.0.1:7479,10.0.0.2:7479,10.0.0.3:7479")]
pub(crate) struct RestoreCoordinatorArgs {
    #[command(flatten)]
    pub(crate) connect: Connect,
}

#[derive(Args, Debug)]
#[command(after_help = "\
If all in-sync members of a region have died, the region waits for the volumes that may hold acknowledged writes which no
other volume has. `leeward status` names them. This command gives up the volumes of one server. Once the region waits for no
other volume, it serves again from the longest copy that is left, WITHOUT the writes that only the lost volumes hold.
Stop the server's old process first. The command is refused for a server that the region does not wait for.

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
