//! `leeward get`, `put`, `del`, `scan` and `accept-loss`: the native client by hand.

use crate::Outcome;
use crate::args::{AcceptLossArgs, Connect, DelArgs, GetArgs, InTable, PutArgs, ScanArgs};
use leeward_client::{Client, ClientError, ClientOptions, Range};
use leeward_format::{RegionId, ServerId};
use std::io::{self, BufWriter, Write};
use std::time::Duration;

/// How long a command by hand may take.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) fn connect(connect: &Connect) -> Result<Client, ClientError> {
    let options = ClientOptions { name: "leeward-cli".into(), deadline: DEADLINE, ..ClientOptions::default() };
    Client::connect(&connect.connect, options)
}

fn open(place: &InTable) -> Result<Client, ClientError> {
    Ok(connect(&place.connect)?.table(place.table.clone()))
}

pub(crate) fn get(args: &GetArgs) -> Outcome {
    let Some(value) = open(&args.place)?.get(args.key.clone())? else {
        eprintln!("there is no such key");
        return Ok(false);
    };
    let mut out = io::stdout().lock();
    out.write_all(&value)?;
    out.write_all(b"\n")?;
    Ok(true)
}

pub(crate) fn put(args: &PutArgs) -> Outcome {
    open(&args.place)?.put(args.key.clone(), args.value.clone())?;
    Ok(true)
}

pub(crate) fn del(args: &DelArgs) -> Outcome {
    let existed = open(&args.place)?.delete(args.key.clone())?.is_some();
    if !existed {
        eprintln!("there is no such key");
    }
    Ok(existed)
}

pub(crate) fn accept_loss(args: &AcceptLossArgs) -> Outcome {
    connect(&args.connect)?.accept_loss(RegionId(args.region), ServerId(args.server))?;
    println!("region {} no longer waits for what server {} had; see `leeward status`", args.region, args.server);
    Ok(true)
}

pub(crate) fn scan(args: &ScanArgs) -> Outcome {
    let range = Range {
        start: args.start.clone().unwrap_or_default().into(),
        end: args.end.clone().map(Into::into),
        reverse: args.reverse,
        limit: args.limit,
        keys_only: args.keys,
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for entry in open(&args.place)?.scan(range) {
        let (key, value) = entry?;
        let written = if args.keys {
            writeln!(out, "{}", key.escape_ascii())
        } else {
            writeln!(out, "{}\t{}", key.escape_ascii(), value.escape_ascii())
        };
        match written {
            // `leeward scan | head`: whoever reads has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(true),
            written => written?,
        }
    }
    out.flush()?;
    Ok(true)
}
