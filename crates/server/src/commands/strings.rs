//! Commands on single keys and lists of keys.

use super::session::Session;
use super::work::{Work, unexpected};
use super::{Context, check_op, error_reply};
use crate::resp::{Reply, parse_integer};
use bytes::Bytes;
use leeward_format::cluster::GroupConfig;
use leeward_format::op::{Op, OpResult, PutIf};

const NOT_AN_INTEGER: &str = "value is not an integer or out of range";

/// One operation, once what it holds was checked.
fn one(op: Op, finish: fn(OpResult) -> Reply) -> Work {
    match check_op(&op) {
        Ok(()) => Work::one(op, finish),
        Err(error) => Work::Ready(error_reply(&error)),
    }
}

/// Several operations, once all of them were checked: nothing is carried out if one is refused.
fn many(ops: Vec<Op>, finish: fn(Vec<OpResult>) -> Reply) -> Work {
    match ops.iter().try_for_each(check_op) {
        Ok(()) => Work::many(ops, finish),
        Err(error) => Work::Ready(error_reply(&error)),
    }
}

fn gets(keys: &[Bytes]) -> Vec<Op> {
    keys.iter().map(|key| Op::Get { key: key.clone() }).collect()
}

fn put(key: &Bytes, value: &Bytes, when: PutIf, want_old: bool) -> Op {
    Op::Put { key: key.clone(), value: value.clone(), when, want_old }
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

/// Number of results for which `counts` holds.
fn count(results: &[OpResult], counts: fn(&OpResult) -> bool) -> Reply {
    Reply::Integer(results.iter().filter(|result| counts(result)).count() as i64)
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

/// `SET key value [NX | XX] [GET]`
pub(super) fn set(args: &[Bytes]) -> Work {
    let (mut when, mut want_old) = (PutIf::Always, false);
    for option in &args[3..] {
        let option = option.to_ascii_uppercase();
        match (&option[..], when) {
            (b"NX", PutIf::Always) => when = PutIf::Absent,
            (b"XX", PutIf::Always) => when = PutIf::Present,
            (b"GET", _) if !want_old => want_old = true,
            (b"EX" | b"PX" | b"EXAT" | b"PXAT" | b"KEEPTTL", _) => {
                return Work::Ready(Reply::err("keys do not expire: EX, PX, EXAT, PXAT and KEEPTTL are not supported"));
            }
            _ => return Work::Ready(Reply::err("syntax error")),
        }
    }
    one(put(&args[1], &args[2], when, want_old), if want_old { put_old } else { put_done })
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
    one(put(&args[1], &args[2], PutIf::Absent, false), |result| match result {
        OpResult::Put { done, .. } => Reply::Integer(i64::from(done)),
        other => unexpected(&other),
    })
}

/// `GETDEL key`
pub(super) fn getdel(args: &[Bytes]) -> Work {
    one(Op::Delete { key: args[1].clone() }, |result| match result {
        OpResult::Deleted { old } => Reply::bulk_or_null(old),
        other => unexpected(&other),
    })
}

/// `MGET key [key ...]`
pub(super) fn mget(args: &[Bytes]) -> Work {
    many(gets(&args[1..]), |results| {
        Reply::Array(results.into_iter().map(|result| value(result, Reply::bulk_or_null)).collect())
    })
}

/// `MSET key value [key value ...]`
pub(super) fn mset(args: &[Bytes]) -> Work {
    let (pairs, []) = args[1..].as_chunks::<2>() else {
        return Work::Ready(Reply::err("wrong number of arguments for 'mset' command"));
    };
    let ops = pairs.iter().map(|[key, value]| put(key, value, PutIf::Always, false)).collect();
    many(ops, |results| results.into_iter().map(put_done).find(|reply| *reply != Reply::OK).unwrap_or(Reply::OK))
}

/// `DEL key [key ...]` and `UNLINK`
pub(super) fn del(args: &[Bytes]) -> Work {
    let ops = args[1..].iter().map(|key| Op::Delete { key: key.clone() }).collect();
    many(ops, |results| count(&results, |result| matches!(result, OpResult::Deleted { old: Some(_) })))
}

/// `EXISTS key [key ...]`
pub(super) fn exists(args: &[Bytes]) -> Work {
    many(gets(&args[1..]), |results| count(&results, |result| matches!(result, OpResult::Value(Some(_)))))
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
    match counts(context.map.regions_of(&session.table)) {
        ops if ops.is_empty() => Work::Ready(Reply::Error("LOADING the table has no regions yet; try again".into())),
        ops => Work::many(ops, |results| Reply::Integer(sum(&results).unwrap_or(0))),
    }
}

/// One [`Op::Count`] a region.
pub(super) fn counts(regions: &[GroupConfig]) -> Vec<Op> {
    regions.iter().map(|group| Op::Count { region: group.region }).collect()
}

/// Sum of integers; `None` if one of them is missing.
pub(super) fn sum(results: &[OpResult]) -> Option<i64> {
    results.iter().try_fold(0, |sum, result| match result {
        OpResult::Integer(number) => Some(sum + number),
        _ => None,
    })
}

/// `WAIT numreplicas timeout`, when all earlier commands of the connection are answered: an answered write is held by
/// every backup in sync, so there is nothing to wait for.
pub(super) fn wait(args: &[Bytes]) -> Work {
    if parse_integer(&args[1]).is_none() {
        return Work::Ready(Reply::err(NOT_AN_INTEGER));
    }
    match parse_integer(&args[2]) {
        None => Work::Ready(Reply::err("timeout is not an integer or out of range")),
        Some(timeout) if timeout < 0 => Work::Ready(Reply::err("timeout is negative")),
        Some(_) => Work::InTurn(|context, table| {
            let backups = context.map.regions_of(table).iter().map(|group| group.backups.len()).min();
            Reply::Integer(backups.unwrap_or(0) as i64)
        }),
    }
}
