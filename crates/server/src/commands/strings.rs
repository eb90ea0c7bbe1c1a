//! Commands on single keys and lists of keys.

use super::expiry::{ExpiryOption, Unit, option_time};
use super::session::Session;
use super::work::{Work, unexpected};
use super::{Context, check_op, error_reply};
use crate::resp::{Reply, parse_integer};
use bytes::Bytes;
use leeward_format::cluster::{Acknowledge, GroupConfig, TableOptions};
use leeward_format::op::{Condition, Lifetime, Op, OpError, OpResult};
use std::sync::Arc;

const NOT_AN_INTEGER: &str = "value is not an integer or out of range";

/// One operation, if its arguments are valid.
pub(super) fn one(op: Op, finish: fn(OpResult) -> Reply) -> Work {
    match check_op(&op) {
        Ok(()) => Work::one(op, finish),
        Err(error) => Work::Ready(error_reply(&error)),
    }
}

/// Several operations, if the arguments of all are valid. If one is refused, none is executed.
pub(super) fn many(ops: Vec<Op>, finish: impl FnOnce(Vec<OpResult>) -> Reply + Send + 'static) -> Work {
    match ops.iter().try_for_each(check_op) {
        Ok(()) => Work::many(ops, finish),
        Err(error) => Work::Ready(error_reply(&error)),
    }
}

/// As [`many`]. The reply is the number of results for which `counts` holds.
fn count(ops: Vec<Op>, counts: fn(&OpResult) -> bool) -> Work {
    many(ops, |results| Reply::Integer(sum(&results).unwrap_or(0))).counting(counts)
}

fn put(key: &Bytes, value: &Bytes, when: Condition, lifetime: Lifetime) -> Op {
    Op::Put { key: key.clone(), value: value.clone(), when, want_old: false, lifetime }
}

fn delete(key: &Bytes) -> Op {
    Op::Delete { key: key.clone(), when: Condition::Always }
}

fn value(result: OpResult, reply: impl FnOnce(Option<Bytes>) -> Reply) -> Reply {
    match result {
        OpResult::Value(value) => reply(value),
        other => unexpected(&other),
    }
}

fn integer(result: OpResult) -> Reply {
    match result {
        OpResult::Integer(number) => Reply::Integer(number),
        other => unexpected(&other),
    }
}

/// `GET key`
pub(super) fn get(args: &[Bytes]) -> Work {
    one(Op::Get { key: args[1].clone() }, |result| value(result, Reply::bulk_or_null))
}

/// `STRLEN key`
pub(super) fn strlen(args: &[Bytes]) -> Work {
    one(Op::Get { key: args[1].clone() }, |result| {
        value(result, |value| Reply::Integer(value.map_or(0, |value| value.len() as i64)))
    })
}

/// `TYPE key`
pub(super) fn type_of(args: &[Bytes]) -> Work {
    one(Op::Get { key: args[1].clone() }, |result| {
        value(result, |value| Reply::Simple(if value.is_some() { "string" } else { "none" }))
    })
}

/// `SET key value [NX | XX | IFEQ value | IFNE value] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`
pub(super) fn set(args: &[Bytes]) -> Work {
    match set_op(args) {
        Ok(op) => {
            let finish = if matches!(op, Op::Put { want_old: true, .. }) { put_old } else { put_done };
            one(op, finish)
        }
        Err(reply) => Work::Ready(reply),
    }
}

fn set_op(args: &[Bytes]) -> Result<Op, Reply> {
    let (mut when, mut expiry, mut want_old) = (None, None, false);
    let mut options = args[3..].iter();
    while let Some(option) = options.next() {
        let option = option.to_ascii_uppercase();
        let mut argument = || options.next().ok_or_else(|| Reply::err("syntax error"));
        // As in Redis, most options may be given again.
        match &option[..] {
            b"NX" if matches!(when, None | Some(Condition::Absent)) => when = Some(Condition::Absent),
            b"XX" if matches!(when, None | Some(Condition::Present)) => when = Some(Condition::Present),
            b"IFEQ" if when.is_none() => when = Some(Condition::Value(argument()?.clone())),
            b"IFNE" if when.is_none() => when = Some(Condition::NotValue(argument()?.clone())),
            b"GET" => want_old = true,
            b"KEEPTTL" => ExpiryOption::choose(&mut expiry, ExpiryOption::Word)?,
            option => match Unit::of_option(option) {
                Some(unit) => ExpiryOption::choose(&mut expiry, ExpiryOption::Time(unit, argument()?))?,
                None => return Err(Reply::err("syntax error")),
            },
        }
    }
    let lifetime = match expiry {
        None => Lifetime::default(),
        Some(ExpiryOption::Word) => Lifetime::AsBefore,
        Some(ExpiryOption::Time(unit, amount)) => option_time("set", unit, amount)?,
    };
    let (key, value, when) = (args[1].clone(), args[2].clone(), when.unwrap_or_default());
    Ok(Op::Put { key, value, when, want_old, lifetime })
}

/// `SETEX key seconds value`
pub(super) fn setex(args: &[Bytes]) -> Work {
    set_for("setex", Unit::Ex, args)
}

/// `PSETEX key milliseconds value`
pub(super) fn psetex(args: &[Bytes]) -> Work {
    set_for("psetex", Unit::Px, args)
}

fn set_for(command: &str, unit: Unit, args: &[Bytes]) -> Work {
    match option_time(command, unit, &args[2]) {
        Ok(lifetime) => one(put(&args[1], &args[3], Condition::Always, lifetime), put_done),
        Err(reply) => Work::Ready(reply),
    }
}

fn put_done(result: OpResult) -> Reply {
    match result {
        OpResult::Put { done: true, .. } => Reply::OK,
        OpResult::Put { done: false, .. } => Reply::Null,
        other => unexpected(&other),
    }
}

fn put_old(result: OpResult) -> Reply {
    match result {
        OpResult::Put { old, .. } => Reply::bulk_or_null(old),
        other => unexpected(&other),
    }
}

/// `SETNX key value`
pub(super) fn setnx(args: &[Bytes]) -> Work {
    one(put(&args[1], &args[2], Condition::Absent, Lifetime::Forever), |result| match result {
        OpResult::Put { done, .. } => Reply::Integer(i64::from(done)),
        other => unexpected(&other),
    })
}

/// `GETDEL key`
pub(super) fn getdel(args: &[Bytes]) -> Work {
    one(delete(&args[1]), |result| match result {
        // An earlier attempt deleted the key. Its answer was lost, and the value with it.
        OpResult::Deleted { done: true, old: None, .. } => error_reply(&OpError::AnswerGone { done: true }),
        OpResult::Deleted { old, .. } => Reply::bulk_or_null(old),
        other => unexpected(&other),
    })
}

/// `MGET key [key ...]`
pub(super) fn mget(args: &[Bytes]) -> Work {
    let gets = args[1..].iter().map(|key| Op::Get { key: key.clone() }).collect();
    many(gets, |results| Reply::Array(results.into_iter().map(|result| value(result, Reply::bulk_or_null)).collect()))
}

/// `MSET key value [key value ...]`
pub(super) fn mset(args: &[Bytes]) -> Work {
    let (pairs, []) = args[1..].as_chunks::<2>() else {
        return Work::Ready(Reply::err("wrong number of arguments for 'mset' command"));
    };
    let ops = pairs.iter().map(|[key, value]| put(key, value, Condition::Always, Lifetime::Forever)).collect();
    many(ops, |results| results.into_iter().map(put_done).find(|reply| *reply != Reply::OK).unwrap_or(Reply::OK))
}

/// `DEL key [key ...]` and `UNLINK`
pub(super) fn del(args: &[Bytes]) -> Work {
    count(args[1..].iter().map(delete).collect(), was_deleted)
}

fn was_deleted(result: &OpResult) -> bool {
    matches!(result, OpResult::Deleted { done: true, .. })
}

/// `DELEX key [IFEQ value | IFNE value]`
pub(super) fn delex(args: &[Bytes]) -> Work {
    let when = match (args.get(2).map(|option| option.to_ascii_uppercase()).as_deref(), args.get(3), args.len()) {
        (None, ..) => Condition::Always,
        (Some(b"IFEQ"), Some(value), 4) => Condition::Value(value.clone()),
        (Some(b"IFNE"), Some(value), 4) => Condition::NotValue(value.clone()),
        (_, _, 4) => return Work::Ready(Reply::err("Invalid condition. Use IFEQ or IFNE")),
        _ => return Work::Ready(Reply::err("wrong number of arguments for 'delex' command")),
    };
    count(vec![Op::Delete { key: args[1].clone(), when }], was_deleted)
}

/// `EXISTS key [key ...]`
pub(super) fn exists(args: &[Bytes]) -> Work {
    let of = |key: &Bytes| Op::GetPair { key: key.clone(), want_value: false };
    count(args[1..].iter().map(of).collect(), |result| matches!(result, OpResult::Pair(Some(_))))
}

/// `INCR key`
pub(super) fn incr(args: &[Bytes]) -> Work {
    one(Op::Add { key: args[1].clone(), delta: 1 }, integer)
}

/// `DECR key`
pub(super) fn decr(args: &[Bytes]) -> Work {
    one(Op::Add { key: args[1].clone(), delta: -1 }, integer)
}

/// `INCRBY key increment`
pub(super) fn incrby(args: &[Bytes]) -> Work {
    match parse_integer(&args[2]) {
        Some(delta) => one(Op::Add { key: args[1].clone(), delta }, integer),
        None => Work::Ready(Reply::err(NOT_AN_INTEGER)),
    }
}

/// `DECRBY key decrement`
pub(super) fn decrby(args: &[Bytes]) -> Work {
    match parse_integer(&args[2]).map(i64::checked_neg) {
        Some(Some(delta)) => one(Op::Add { key: args[1].clone(), delta }, integer),
        Some(None) => Work::Ready(Reply::err("decrement would overflow")),
        None => Work::Ready(Reply::err(NOT_AN_INTEGER)),
    }
}

/// `APPEND key value`
pub(super) fn append(args: &[Bytes]) -> Work {
    one(Op::Append { key: args[1].clone(), suffix: args[2].clone() }, integer)
}

/// `DBSIZE`: the estimates of the table's regions, added up.
pub(super) fn dbsize(session: &Session, context: &Context) -> Work {
    let table = &session.terms.table;
    let Some(first) = context.routes.regions_of(table).next() else { return Work::Ready(context.no_regions(table)) };
    let is_of_node = session.is_of_node(context);
    match counts(context.routes.regions_of(table).filter(|group| is_of_node(group))) {
        ops if ops.is_empty() => Work::nothing(Op::Count { region: first.region }, Reply::Integer(0)),
        ops => Work::many(ops, |results| Reply::Integer(sum(&results).unwrap_or(0))),
    }
}

/// One [`Op::Count`] a region.
pub(super) fn counts<'a>(regions: impl Iterator<Item = &'a Arc<GroupConfig>>) -> Vec<Op> {
    regions.map(|group| Op::Count { region: group.region }).collect()
}

/// Sum of integers; `None` if one of them is missing.
pub(super) fn sum(results: &[OpResult]) -> Option<i64> {
    results.iter().try_fold(0, |sum, result| match result {
        OpResult::Integer(number) => Some(sum + number),
        _ => None,
    })
}

/// `WAIT numreplicas timeout`, answered after all earlier commands of the connection. As many backups as the table's options
/// say hold each answered write, so there is nothing to wait for.
pub(super) fn wait(args: &[Bytes]) -> Work {
    if parse_integer(&args[1]).is_none() {
        return Work::Ready(Reply::err(NOT_AN_INTEGER));
    }
    match parse_integer(&args[2]) {
        None => Work::Ready(Reply::err("timeout is not an integer or out of range")),
        Some(timeout) if timeout < 0 => Work::Ready(Reply::err("timeout is negative")),
        Some(_) => Work::InTurn(|context, table| {
            let options = context.routes.table(table);
            let holding = |group: &Arc<GroupConfig>| options.map_or(0, |options| holding(options, group));
            Reply::Integer(context.routes.regions_of(table).map(holding).min().unwrap_or(0) as i64)
        }),
    }
}

/// Number of backups that hold each answered write of a region.
fn holding(options: &TableOptions, group: &GroupConfig) -> usize {
    match options.acknowledge {
        Acknowledge::LastFlush => 0,
        Acknowledge::LastWrite => options.needed_of(1 + group.backups.len()).saturating_sub(1),
    }
}
