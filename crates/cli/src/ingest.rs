//! `leeward ingest`: puts the sorted pairs of a file or a store into a table or an embedded store; and `leeward checkpoint`.

use crate::args::{CheckpointArgs, IngestArgs, Keys};
use crate::inspect::encryption;
use crate::text::table;
use crate::{Outcome, data, show};
use leeward_client::{Client, Condition, Lifetime, Op, OpResult};
use leeward_engine::embedded::{Db, DbOptions};
use leeward_engine::{ScanBounds, VolumeOptions};
use leeward_format::{Lsn, RegionId};
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::thread;
use std::time::Duration;

#[cfg(test)]
#[path = "ingest_tests.rs"]
mod tests;

/// Limits of one batch: pairs, and bytes of keys and values.
const BATCH_PAIRS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// Pause between two requests for the progress of a checkpoint.
const LOOK: Duration = Duration::from_millis(100);

type Pair = (Vec<u8>, Vec<u8>);
type Failure = Box<dyn Error>;

pub(crate) fn ingest(args: &IngestArgs) -> Outcome {
    let mut pairs: Box<dyn Iterator<Item = Result<Pair, Failure>>> = match (&args.from_store, &args.file) {
        (Some(directory), _) => Box::new(StorePairs::open(directory, &args.keys)?),
        (None, Some(file)) => Box::new(Lines::open(file)?),
        (None, None) => unreachable!("the command line asks for one of them"),
    };
    let count = match &args.dir {
        Some(directory) => into_store(directory, &args.keys, &mut pairs)?,
        None => into_table(&data::connect(&args.place.connect)?.table(args.place.table.clone()), &mut pairs)?,
    };
    println!("{count} pairs");
    Ok(true)
}

fn options(keys: &Keys) -> io::Result<DbOptions> {
    let volume = VolumeOptions { encryption: encryption(keys)?, ..VolumeOptions::default() };
    Ok(DbOptions { volume, ..DbOptions::default() })
}

/// Puts pairs into an embedded store, all or nothing.
fn into_store(
    directory: &Path,
    keys: &Keys,
    pairs: &mut dyn Iterator<Item = Result<Pair, Failure>>,
) -> Result<u64, Failure> {
    let db = Db::open(directory, options(keys)?)?;
    let mut failure = None;
    let whole = std::iter::from_fn(|| match pairs.next()? {
        Ok(pair) => Some(pair),
        Err(error) => {
            failure = Some(error);
            // An empty key makes the ingestion fail as a whole.
            Some((Vec::new(), Vec::new()))
        }
    });
    let ingested = db.ingest(whole);
    match failure {
        Some(failure) => Err(failure),
        None => {
            let count = ingested?;
            db.close()?;
            Ok(count)
        }
    }
}

/// Puts pairs into a table of a cluster, batch by batch; returns how many.
fn into_table(client: &Client, pairs: &mut dyn Iterator<Item = Result<Pair, Failure>>) -> Result<u64, Failure> {
    let (mut done, mut batch, mut bytes) = (0, Vec::new(), 0);
    loop {
        let pair = pairs.next();
        if let Some(Ok((key, value))) = pair {
            bytes += key.len() + value.len();
            let (key, value) = (key.into(), value.into());
            batch.push(Op::Put { key, value, when: Condition::Always, want_old: false, lifetime: Lifetime::Forever });
            if batch.len() < BATCH_PAIRS && bytes < BATCH_BYTES {
                continue;
            }
            (done, bytes) = (done + put(client, &mut batch, done)?, 0);
            continue;
        }
        done += put(client, &mut batch, done)?;
        match pair {
            Some(Err(error)) => return Err(format!("{error}\n{done} pairs before it were written").into()),
            _ => return Ok(done),
        }
    }
}

fn put(client: &Client, batch: &mut Vec<Op>, done: u64) -> Result<u64, Failure> {
    let count = batch.len() as u64;
    for result in client.execute(std::mem::take(batch))? {
        if let OpResult::Error(error) = result {
            return Err(format!(
                "{error}\n{done} pairs, and perhaps some more, were written: the command may be repeated"
            )
            .into());
        }
    }
    Ok(count)
}

/// Pairs of a file, one per line.
struct Lines {
    lines: io::Split<Box<dyn BufRead>>,
    name: String,
    number: u64,
    last: Option<Vec<u8>>,
}

impl Lines {
    fn open(file: &Path) -> Result<Lines, Failure> {
        let name = file.display().to_string();
        let input: Box<dyn BufRead> = match name.as_str() {
            "-" => Box::new(BufReader::new(io::stdin())),
            _ => Box::new(BufReader::new(File::open(file).map_err(|error| format!("{name}: {error}"))?)),
        };
        Ok(Lines { lines: input.split(b'\n'), name, number: 0, last: None })
    }

    fn pair(&mut self, line: &[u8]) -> Result<Pair, String> {
        let tab = line.iter().position(|byte| *byte == b'\t').ok_or("there is no tab between a key and a value")?;
        let (key, value) = (unescaped(&line[..tab])?, unescaped(&line[tab + 1..])?);
        if self.last.as_ref().is_some_and(|last| *last >= key) {
            return Err(format!("key {:?} does not come after the one before: keys must ascend", shown(&key)));
        }
        self.last = Some(key.clone());
        Ok((key, value))
    }
}

impl Iterator for Lines {
    type Item = Result<Pair, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let line = self.lines.next()?;
        self.number += 1;
        let pair = line.map_err(|error| error.to_string()).and_then(|line| self.pair(&line));
        Some(pair.map_err(|error| format!("{}, line {}: {error}", self.name, self.number).into()))
    }
}

fn shown(key: &[u8]) -> String {
    key[..key.len().min(64)].escape_ascii().to_string()
}

/// Reverses the escaping of `leeward scan`.
fn unescaped(text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        let hex = |digit: Option<&u8>| digit.and_then(|digit| char::from(*digit).to_digit(16));
        bytes.push(match rest.next() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(mark @ (b'\'' | b'"' | b'\\')) => *mark,
            Some(b'x') => match (hex(rest.next()), hex(rest.next())) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err("two hexadecimal digits must follow \\x".into()),
            },
            _ => return Err("a backslash must be followed by t, n, r, ', \", \\ or xNN".into()),
        });
    }
    Ok(bytes)
}

/// Pairs of a store, as of the moment when it was opened.
struct StorePairs {
    cursor: leeward_engine::Cursor,
    _db: Db,
}

impl StorePairs {
    fn open(directory: &Path, keys: &Keys) -> Result<StorePairs, Failure> {
        if !directory.join(leeward_engine::VOLUME_NAME).exists() {
            return Err(format!("{}: has no store", directory.display()).into());
        }
        let db = Db::open(directory, options(keys)?)?;
        Ok(StorePairs { cursor: db.scan(ScanBounds::default()), _db: db })
    }
}

impl Iterator for StorePairs {
    type Item = Result<Pair, Failure>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.cursor.next().transpose()?;
        Some(entry.map(|entry| (entry.key.to_vec(), entry.value.to_vec())).map_err(Into::into))
    }
}

pub(crate) fn checkpoint(args: &CheckpointArgs) -> Outcome {
    let client = data::connect(&args.connect)?;
    let map = client.region_map()?;
    if let Some(name) = args.table.as_ref().filter(|name| map.table(name).is_none()) {
        return Err(leeward_format::table::unknown_table(name).into());
    }
    let is_wanted = |table: &str| args.table.as_ref().is_none_or(|wanted| **wanted == *table);
    let groups = map.regions.iter().filter(|group| is_wanted(&group.table));
    let mut waiting: Vec<RegionId> = groups.map(|group| group.region).collect();
    let mut done = BTreeMap::<RegionId, (String, Lsn)>::new();
    while !waiting.is_empty() {
        let ops = waiting.iter().map(|region| Op::Checkpoint { region: *region, name: args.name.clone() }).collect();
        for (region, result) in waiting.clone().into_iter().zip(client.execute(ops)?) {
            match result {
                OpResult::Checkpoint { left: 0, path, last } => drop(done.insert(region, (path, last))),
                OpResult::Checkpoint { .. } => {}
                OpResult::Error(error) => return Err(format!("region {region}: {error}").into()),
                other => return Err(format!("region {region}: unexpected answer {other:?}").into()),
            }
        }
        waiting.retain(|region| !done.contains_key(region));
        if !waiting.is_empty() {
            thread::sleep(LOOK);
        }
    }
    let map = client.region_map()?;
    let row = |(region, (path, last)): (&RegionId, &(String, Lsn))| {
        let group = map.regions.iter().find(|group| group.region == *region);
        let table = group.map_or_else(String::new, |group| group.table.clone());
        let node =
            group.and_then(|group| group.primary).map_or_else(|| "-".into(), |primary| primary.server.to_string());
        vec![region.to_string(), table, node, last.to_string(), path.clone()]
    };
    show(&table(&["region", "table", "node", "last LSN", "path"], done.iter().map(row).collect()))?;
    Ok(true)
}
