//! `leeward join`: a server takes its share of copies and primary roles.
//!
//! The master gives a running server its share unless the server is being drained. So the command cancels a drain,
//! prints what the server has and what its share is, and waits. It ends when the server has its share, or when nothing
//! moves any more: regions are moved whole, so a share is rarely exact.

use crate::args::Connect;
use crate::moves::Wait;
use crate::status::Overview;
use crate::text::bytes;
use crate::{Outcome, data};
use clap::Args;
use leeward_format::ServerId;
use leeward_operate::spread::{Share, Spread};
use std::thread;
use std::time::{Duration, Instant};

/// How often nodes are asked.
const LOOK: Duration = Duration::from_secs(1);
/// Moving counts as over once nothing has moved for this long. The master waits after servers have come or gone before it moves
/// anything.
const STILL_FOR: Duration = Duration::from_secs(45);

#[derive(Args, Debug)]
#[command(after_help = "\
A server that starts for the first time (`leeward serve`, with a number and a data directory of its own) gets its share of
copies and primary roles by itself, some seconds after it registered. `join` prints the progress and waits until it is done. It
also cancels a drain (`leeward drain`): the server may have copies again. Where balancing is switched off (`balance = false`),
move copies by hand: `leeward move`.

Examples:
  leeward join --server 4
  leeward join --server 4 --no-wait")]
pub(crate) struct JoinArgs {
    #[command(flatten)]
    connect: Connect,
    /// The server
    #[arg(long)]
    server: u32,
    #[command(flatten)]
    wait: Wait,
}

pub(crate) fn run(args: &JoinArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let server = ServerId(args.server);
    let (mut spread, balances) = look(args)?;
    let Some(share) = spread.shares.get(&server).copied() else {
        let live: Vec<String> = spread.shares.keys().map(ToString::to_string).collect();
        return Err(
            format!("server {server} is not registered: start it first; live servers are {}", live.join(", ")).into()
        );
    };
    client.intend(server, None)?;
    println!("server {server} may have copies; {}", describe(share, &spread));
    if !balances {
        println!("balancing is switched off (balance = false): move copies with `leeward move`");
        return Ok(true);
    }
    if args.wait.no_wait {
        println!("its share comes by itself; see `leeward status --watch`");
        return Ok(true);
    }
    let deadline = Instant::now() + Duration::from_secs(args.wait.timeout);
    let (mut moved, mut said) = (Instant::now(), String::new());
    loop {
        let share = spread.shares.get(&server).copied().unwrap_or_default();
        let now = describe(share, &spread);
        if now != said {
            eprintln!("server {server}: {now}");
            said = now;
        }
        if !spread.moving.is_empty() {
            moved = Instant::now();
        }
        if spread.moving.is_empty() && has_its_share(share, &spread) {
            println!("server {server} has its share: {said}");
            return Ok(true);
        }
        if moved.elapsed() > STILL_FOR {
            println!("server {server}: nothing moves any more: {said}");
            return Ok(true);
        }
        if Instant::now() > deadline {
            let seconds = args.wait.timeout;
            return Err(
                format!("server {server}: not done after {seconds} s ({said}); the cluster goes on by itself").into()
            );
        }
        thread::sleep(LOOK);
        spread = look(args)?.0;
    }
}

/// The spread of copies over servers, and whether a master balances it.
fn look(args: &JoinArgs) -> Result<(Spread, bool), Box<dyn std::error::Error>> {
    let overview = Overview::of(&args.connect.addresses())?;
    let nodes = overview.nodes();
    Ok((Spread::of(&overview.map(), &nodes), nodes.iter().any(|node| node.balances)))
}

/// Whether it has copies, and nine tenths of an equal share of the bytes.
fn has_its_share(share: Share, spread: &Spread) -> bool {
    share.bytes / 9 * 10 >= spread.even_bytes(|_| true) && share.copies > 0
}

fn describe(share: Share, spread: &Spread) -> String {
    let all: u64 = spread.shares.values().map(|share| share.copies).sum();
    let even = bytes(spread.even_bytes(|_| true));
    let Share { primaries, copies, .. } = share;
    format!("{copies} of {all} copies with {}, primary of {primaries}; an equal share is {even}", bytes(share.bytes))
}
