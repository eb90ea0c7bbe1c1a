//! `leeward status --watch`: shows repeatedly what each server has, and which regions move.

use crate::Outcome;
use crate::args::StatusArgs;
use crate::status::{Overview, region_table};
use crate::text::{bytes, table};
use leeward_client::RegionMap;
use leeward_operate::spread::{Share, Spread};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

/// Moves the cursor to the upper left corner and clears everything below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the cluster until the reader closes the output.
pub(crate) fn run(args: &StatusArgs, every: Duration) -> Outcome {
    let mut out = io::stdout().lock();
    let is_terminal = out.is_terminal();
    loop {
        // An error does not end the loop: another node may answer next time.
        let text = match Overview::of(&args.connect.addresses()) {
            Ok(overview) => describe(&overview),
            Err(error) => format!("{error}\n"),
        };
        let (before, after) = if is_terminal { (CLEAR, "") } else { ("", "\n") };
        let written = write!(out, "{before}{text}{after}").and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(true),
            written => written?,
        }
        thread::sleep(every);
    }
}

fn describe(overview: &Overview) -> String {
    let (map, nodes) = (overview.map(), overview.nodes());
    let spread = Spread::of(&map, &nodes);
    let mut text = format!("{}\n{}", overview.node_table(), share_table(&spread));
    let balances = nodes.iter().any(|node| node.balances);
    let others = map.regions.len() - spread.moving.len();
    let how = if balances { "" } else { "; balancing is switched off" };
    writeln!(text, "\n{} regions move, {others} are settled{how}", spread.moving.len()).expect("writing to memory");
    if !spread.moving.is_empty() {
        let moving = map.regions.iter().filter(|group| spread.moving.contains(&group.region)).cloned().collect();
        let moving = RegionMap { regions: moving, ..map.into_owned() };
        write!(text, "\n{}", region_table(&moving, &nodes)).expect("writing to memory");
    }
    text
}

/// The table of shares: copies and bytes of each server, also as a percentage of an equal share.
fn share_table(spread: &Spread) -> String {
    let even = spread.even_bytes(|_| true).max(1);
    let row = |(server, share): (&leeward_format::ServerId, &Share)| {
        let percent = format!("{:.0} %", 100.0 * share.bytes as f64 / even as f64);
        let counts = [share.primaries, share.copies, share.builds].map(|count| count.to_string());
        [vec![server.to_string()], counts.to_vec(), vec![bytes(share.bytes), percent]].concat()
    };
    let head = ["node", "primary of", "copies", "building", "bytes of copies", "of an equal share"];
    table(&head, spread.shares.iter().map(row).collect())
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
