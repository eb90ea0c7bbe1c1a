//! The command lines of operations on pairs: get, put, del, count and scan.

use super::InTable;
use clap::Args;
use std::time::Duration;

#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  leeward get hello\n  leeward get --table orders 4711\nExit code 1: there is no such key."
)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// The key
    pub(crate) key: String,
    /// Also print the version and the time of expiry, to the standard error
    #[arg(long)]
    pub(crate) details: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward put hello world
  leeward put --ttl 30m session alive
  leeward put --if-version 4711 hello again
Exit code 1: the condition did not hold.")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// The key
    pub(crate) key: String,
    /// Its new value
    pub(crate) value: String,
    /// The key expires after this time: seconds, or a number with ms, s, m, h or d
    #[arg(long, value_parser = duration, conflicts_with = "keep_ttl")]
    pub(crate) ttl: Option<Duration>,
    /// Keep the key's time of expiry
    #[arg(long)]
    pub(crate) keep_ttl: bool,
    #[command(flatten)]
    pub(crate) when: ConditionArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward del hello
  leeward del --if-value mine lock
  leeward del --from log/2024 --to log/2025    all keys from log/2024 up to, and without, log/2025
  leeward del --from z                         all from z on
A range is deleted with one record per region, however many keys it has: atomically in each region, not across regions.
Exit code 1: there was no such key, or the condition did not hold.")]
pub(crate) struct DelArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// The key
    #[arg(required_unless_present_any = ["from", "to"], conflicts_with_all = ["from", "to"])]
    pub(crate) key: Option<String>,
    /// Remove a range instead: its first key [default: the first of all]
    #[arg(long, value_name = "KEY")]
    pub(crate) from: Option<String>,
    /// Remove a range instead: the key after its last [default: none]
    #[arg(long, value_name = "KEY")]
    pub(crate) to: Option<String>,
    #[command(flatten)]
    pub(crate) when: ConditionArgs,
}

/// The condition of a write.
#[derive(Args, Debug)]
#[group(multiple = false)]
pub(crate) struct ConditionArgs {
    /// Only if the key does not exist
    #[arg(long)]
    pub(crate) if_absent: bool,
    /// Only if the key exists
    #[arg(long)]
    pub(crate) if_present: bool,
    /// Only if the last put of the key has this version, which `get --details` and `put --if-...` print
    #[arg(long, value_name = "N")]
    pub(crate) if_version: Option<u64>,
    /// Only if the key has this value
    #[arg(long, value_name = "VALUE")]
    pub(crate) if_value: Option<String>,
}

/// A time of more than 0 ms: seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit_ms = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(format!("unit '{unit}': must be ms, s, m, h or d")),
    };
    let ms = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit_ms)).filter(|ms| *ms > 0);
    ms.map(Duration::from_millis).ok_or_else(|| "must be a whole number above 0, with or without a unit".into())
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward count                        all keys of the table
  leeward count a z                    keys from a up to, and without, z
The estimate includes overwritten, deleted and expired pairs until compactions have removed them. `scan --keys` lists the
exact ones.")]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// First key [default: the first of all]
    pub(crate) start: Option<String>,
    /// Key after the last [default: none]
    pub(crate) end: Option<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  leeward scan a z                     keys from a up to, and without, z
  leeward scan --reverse --limit 10    the last ten keys of all
Bytes that are not printable ASCII are escaped, as is the tab between key and value.")]
pub(crate) struct ScanArgs {
    #[command(flatten)]
    pub(crate) place: InTable,
    /// First key [default: the first of all]
    pub(crate) start: Option<String>,
    /// Key after the last [default: none]
    pub(crate) end: Option<String>,
    /// From the end down to the start
    #[arg(long)]
    pub(crate) reverse: bool,
    /// At most this many
    #[arg(long)]
    pub(crate) limit: Option<u64>,
    /// Leave the values out
    #[arg(long)]
    pub(crate) keys: bool,
}
