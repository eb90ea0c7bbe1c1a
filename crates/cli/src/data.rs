//! `leeward get`, `put`, `del`, `scan`, `count` and `accept-loss`: the native client, used by hand.

use crate::Outcome;
use crate::args::{AcceptLossArgs, ConditionArgs, Connect, CountArgs, DelArgs, GetArgs, InTable, PutArgs, ScanArgs};
use leeward_client::{Client, ClientError, ClientOptions, Condition, Lifetime, Pair, PutOptions, Range, Written};
use leeward_format::{Lsn, RegionId, ServerId};
use std::io::{self, BufWriter, Write};
use std::time::Duration;

/// Deadline of one command.
const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) fn connect(connect: &Connect) -> Result<Client, ClientError> {
    Client::connect(&connect.addresses(), options())
}

/// As [`connect`], to a cluster that may have no table yet.
pub(crate) fn connect_to_new(connect: &Connect) -> Result<Client, ClientError> {
    Client::connect(&connect.addresses(), ClientOptions { needs_regions: false, ..options() })
}

fn options() -> ClientOptions {
    ClientOptions { name: "leeward-cli".into(), deadline: DEADLINE, ..ClientOptions::default() }
}

fn open(place: &InTable) -> Result<Client, ClientError> {
    Ok(connect(&place.connect)?.table(place.table.clone()))
}

pub(crate) fn get(args: &GetArgs) -> Outcome {
    let client = open(&args.place)?;
    let (value, details) = if args.details {
        let pair = client.get_pair(args.key.clone())?;
        let details = pair.as_ref().map(details);
        (pair.and_then(|pair| pair.value), details)
    } else {
        (client.get(args.key.clone())?, None)
    };
    let Some(value) = value else {
        eprintln!("there is no such key");
        return Ok(false);
    };
    if let Some(details) = details {
        eprintln!("{details}");
    }
    let mut out = io::stdout().lock();
    out.write_all(&value)?;
    out.write_all(b"\n")?;
    Ok(true)
}

/// The metadata of a pair.
fn details(pair: &Pair) -> String {
    let version = format!("version {}", pair.version);
    match pair.expires {
        None => format!("{version}, never expires"),
        Some(expires) => {
            let left = Duration::from_millis(expires.ms().saturating_sub(pair.now.0));
            format!("{version}, expires in {:.3} s, at {} ms since 1970", left.as_secs_f64(), expires.ms())
        }
    }
}

pub(crate) fn put(args: &PutArgs) -> Outcome {
    let lifetime = match args.ttl {
        None if args.keep_ttl => Lifetime::AsBefore,
        None => Lifetime::Forever,
        Some(ttl) => Lifetime::For(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
    };
    let when = condition(&args.when);
    let is_conditional = when != Condition::Always;
    let written = open(&args.place)?.put_with(args.key.clone(), args.value.clone(), PutOptions { when, lifetime })?;
    if is_conditional {
        report(written);
    }
    Ok(written.done)
}

pub(crate) fn del(args: &DelArgs) -> Outcome {
    let client = open(&args.place)?;
    let Some(key) = args.key.clone() else {
        client.delete_range(args.from.clone().unwrap_or_default(), args.to.clone().map(Into::into))?;
        return Ok(true);
    };
    let written = client.delete_if(key, condition(&args.when))?;
    if !written.done {
        report(written);
    }
    Ok(written.done)
}

fn condition(when: &ConditionArgs) -> Condition {
    match when {
        ConditionArgs { if_absent: true, .. } => Condition::Absent,
        ConditionArgs { if_present: true, .. } => Condition::Present,
        ConditionArgs { if_version: Some(version), .. } => Condition::Version(Lsn(*version)),
        ConditionArgs { if_value: Some(value), .. } => Condition::Value(value.clone().into()),
        _ => Condition::Always,
    }
}

/// Prints the result of a conditional write.
fn report(written: Written) {
    match (written.done, written.version) {
        (true, Some(version)) => eprintln!("version {version}"),
        (true, None) => {}
        (false, Some(version)) => eprintln!("nothing was changed: the key exists, with version {version}"),
        (false, None) => eprintln!("nothing was changed: there is no such key"),
    }
}

pub(crate) fn count(args: &CountArgs) -> Outcome {
    let (start, end) = (args.start.clone().unwrap_or_default(), args.end.clone().map(Into::into));
    let (pairs, bytes) = open(&args.place)?.approximate(start, end)?;
    println!("about {pairs} keys, {bytes} bytes of keys and values");
    Ok(true)
}

pub(crate) fn accept_loss(args: &AcceptLossArgs) -> Outcome {
    connect(&args.connect)?.accept_loss(RegionId(args.region), ServerId(args.server))?;
    println!("region {} no longer waits for the data of server {}; see `leeward status`", args.region, args.server);
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
            // `leeward scan | head`: the reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(true),
            written => written?,
        }
    }
    out.flush()?;
    Ok(true)
}
