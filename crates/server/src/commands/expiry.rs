//! Commands and options that set or show when keys expire. Replies and errors are those of Redis.
//!
//! A relative time is added to the primary's clock when it executes the operation.

use super::strings::one;
use super::work::{Work, unexpected};
use crate::resp::{Reply, parse_integer};
use bytes::Bytes;
use leeward_format::Expiry;
use leeward_format::op::{ExpireIf, Lifetime, Op, OpResult, Pair};

const NOT_AN_INTEGER: &str = "value is not an integer or out of range";

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Seconds from now.
    Ex,
    /// Milliseconds from now.
    Px,
    /// Seconds since 1970.
    ExAt,
    /// Milliseconds since 1970.
    PxAt,
}

impl Unit {
    /// The unit that an option in upper case names.
    pub(super) fn of_option(option: &[u8]) -> Option<Unit> {
        match option {
            b"EX" => Some(Unit::Ex),
            b"PX" => Some(Unit::Px),
            b"EXAT" => Some(Unit::ExAt),
            b"PXAT" => Some(Unit::PxAt),
            _ => None,
        }
    }

    /// The lifetime of `amount` units: at once, if that is in the past. `None`: it is too far away.
    fn lifetime(self, amount: i64) -> Option<Lifetime> {
        let ms = match self {
            Unit::Ex | Unit::ExAt => amount.checked_mul(1000)?,
            Unit::Px | Unit::PxAt => amount,
        };
        let Ok(ms) = u64::try_from(ms) else { return Some(Lifetime::For(0)) };
        match (self, ms) {
            (Unit::ExAt | Unit::PxAt, 0) => Some(Lifetime::For(0)),
            (Unit::ExAt | Unit::PxAt, ms) => Expiry::from_ms(ms).map(Lifetime::Until),
            (_, ms) => (ms <= Expiry::MAX_MS).then_some(Lifetime::For(ms)),
        }
    }
}

fn invalid_time(command: &str) -> Reply {
    Reply::err(format_args!("invalid expire time in '{command}' command"))
}

/// The time that an option of `command` gives, which must be in the future.
pub(super) fn option_time(command: &str, unit: Unit, amount: &[u8]) -> Result<Lifetime, Reply> {
    let amount = parse_integer(amount).ok_or_else(|| Reply::err(NOT_AN_INTEGER))?;
    unit.lifetime(amount).filter(|_| amount > 0).ok_or_else(|| invalid_time(command))
}

/// What the options of `SET` or `GETEX` say of the expiry.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpiryOption<'a> {
    /// `KEEPTTL` of `SET`, `PERSIST` of `GETEX`.
    Word,
    /// `EX`, `PX`, `EXAT` or `PXAT`, with the number behind it.
    Time(Unit, &'a [u8]),
}

impl<'a> ExpiryOption<'a> {
    /// Takes `new` in place of `chosen`. As in Redis, the same option may be given again, and its last value counts. Other
    /// options exclude each other.
    pub(super) fn choose(chosen: &mut Option<Self>, new: ExpiryOption<'a>) -> Result<(), Reply> {
        let is_same = match (&chosen, new) {
            (None, _) | (Some(ExpiryOption::Word), ExpiryOption::Word) => true,
            (Some(ExpiryOption::Time(before, _)), ExpiryOption::Time(unit, _)) => *before == unit,
            _ => false,
        };
        *chosen = Some(new);
        is_same.then_some(()).ok_or_else(|| Reply::err("syntax error"))
    }
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`
pub(super) fn getex(args: &[Bytes]) -> Work {
    let (key, mut chosen) = (args[1].clone(), None);
    let mut options = args[2..].iter();
    while let Some(option) = options.next() {
        let option = option.to_ascii_uppercase();
        let new = match (&option[..], Unit::of_option(&option)) {
            (b"PERSIST", _) => Some(ExpiryOption::Word),
            (_, Some(unit)) => options.next().map(|amount| ExpiryOption::Time(unit, amount)),
            _ => None,
        };
        let new = new.ok_or_else(|| Reply::err("syntax error"));
        if let Err(reply) = new.and_then(|new| ExpiryOption::choose(&mut chosen, new)) {
            return Work::Ready(reply);
        }
    }
    let (lifetime, when) = match chosen {
        None => return super::strings::get(args),
        Some(ExpiryOption::Word) => (Lifetime::Forever, ExpireIf { expires: Some(true), later: None }),
        Some(ExpiryOption::Time(unit, amount)) => match option_time("getex", unit, amount) {
            Ok(lifetime) => (lifetime, ExpireIf::default()),
            // As in Redis, a key that does not exist is null, whatever the time.
            Err(_) if parse_integer(amount).is_none() => {
                return one(Op::Get { key }, |result| null_or(result, || Reply::err(NOT_AN_INTEGER)));
            }
            Err(_) => return one(Op::Get { key }, |result| null_or(result, || invalid_time("getex"))),
        },
    };
    one(Op::Expire { key, lifetime, when, want_old: true }, |result| match result {
        OpResult::Put { old, .. } => Reply::bulk_or_null(old),
        other => unexpected(&other),
    })
}

/// Null if the key does not exist, else the error.
fn null_or(result: OpResult, error: fn() -> Reply) -> Reply {
    match result {
        OpResult::Value(None) => Reply::Null,
        OpResult::Value(Some(_)) => error(),
        other => unexpected(&other),
    }
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub(super) fn expire(args: &[Bytes]) -> Work {
    change("expire", Unit::Ex, args)
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub(super) fn pexpire(args: &[Bytes]) -> Work {
    change("pexpire", Unit::Px, args)
}

/// `EXPIREAT key seconds [NX | XX | GT | LT]`
pub(super) fn expireat(args: &[Bytes]) -> Work {
    change("expireat", Unit::ExAt, args)
}

/// `PEXPIREAT key milliseconds [NX | XX | GT | LT]`
pub(super) fn pexpireat(args: &[Bytes]) -> Work {
    change("pexpireat", Unit::PxAt, args)
}

fn change(command: &str, unit: Unit, args: &[Bytes]) -> Work {
    let when = match expire_if(&args[3..]) {
        Ok(when) => when,
        Err(reply) => return Work::Ready(reply),
    };
    let Some(amount) = parse_integer(&args[2]) else { return Work::Ready(Reply::err(NOT_AN_INTEGER)) };
    let Some(lifetime) = unit.lifetime(amount) else { return Work::Ready(invalid_time(command)) };
    one(Op::Expire { key: args[1].clone(), lifetime, when, want_old: false }, is_done)
}

fn is_done(result: OpResult) -> Reply {
    match result {
        OpResult::Put { done, .. } => Reply::Integer(i64::from(done)),
        other => unexpected(&other),
    }
}

fn expire_if(options: &[Bytes]) -> Result<ExpireIf, Reply> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for option in options {
        match &option.to_ascii_uppercase()[..] {
            b"NX" => nx = true,
            b"XX" => xx = true,
            b"GT" => gt = true,
            b"LT" => lt = true,
            _ => {
                let shown = String::from_utf8_lossy(&option[..option.len().min(128)]).into_owned();
                return Err(Reply::err(format_args!("Unsupported option {shown}")));
            }
        }
    }
    if nx && (xx || gt || lt) {
        return Err(Reply::err("NX and XX, GT or LT options at the same time are not compatible"));
    }
    if gt && lt {
        return Err(Reply::err("GT and LT options at the same time are not compatible"));
    }
    Ok(ExpireIf { expires: (nx || xx).then_some(xx), later: (gt || lt).then_some(gt) })
}

/// `PERSIST key`
pub(super) fn persist(args: &[Bytes]) -> Work {
    let when = ExpireIf { expires: Some(true), later: None };
    one(Op::Expire { key: args[1].clone(), lifetime: Lifetime::Forever, when, want_old: false }, is_done)
}

/// `TTL key`
pub(super) fn ttl(args: &[Bytes]) -> Work {
    of_pair(args, |result| time(result, |pair, expires| in_seconds(left_ms(pair, expires))))
}

/// `PTTL key`
pub(super) fn pttl(args: &[Bytes]) -> Work {
    of_pair(args, |result| time(result, left_ms))
}

/// `EXPIRETIME key`
pub(super) fn expiretime(args: &[Bytes]) -> Work {
    of_pair(args, |result| time(result, |_, expires| in_seconds(expires.ms())))
}

/// `PEXPIRETIME key`
pub(super) fn pexpiretime(args: &[Bytes]) -> Work {
    of_pair(args, |result| time(result, |_, expires| expires.ms()))
}

fn left_ms(pair: &Pair, expires: Expiry) -> u64 {
    expires.ms().saturating_sub(pair.now.0)
}

fn in_seconds(ms: u64) -> u64 {
    (ms + 500) / 1000
}

fn of_pair(args: &[Bytes], finish: fn(OpResult) -> Reply) -> Work {
    one(Op::GetPair { key: args[1].clone(), want_value: false }, finish)
}

/// The reply about a key that expires; -1 if the key does not expire, -2 if it does not exist.
fn time(result: OpResult, answer: fn(&Pair, Expiry) -> u64) -> Reply {
    match result {
        OpResult::Pair(None) => Reply::Integer(-2),
        OpResult::Pair(Some(pair)) => Reply::Integer(pair.expires.map_or(-1, |expires| answer(&pair, expires) as i64)),
        other => unexpected(&other),
    }
}
