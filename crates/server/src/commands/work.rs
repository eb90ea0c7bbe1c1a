//! The work that is left for a command that was parsed.

use super::scan::ScanWork;
use super::{Context, MAX_REPLY_BYTES, error_reply};
use crate::resp::Reply;
use leeward_format::op::{Op, OpError, OpResult};
use leeward_region::client_memory::result_bytes;
use leeward_region::client_memory::{OPERATION_BYTES, SCAN_OPERATION_BYTES};

/// Bytes that a plain write under way takes besides its arguments.
const WRITE_BYTES: usize = 512;

/// A command under way.
pub(super) enum Work {
    /// Its reply is known.
    Ready(Reply),
    /// Its reply is known, and says of no key whether it exists. Only a user that may have the operation executed gets it.
    Nothing(Box<(Op, Reply)>),
    /// One operation.
    One(One),
    /// Several operations at once; they may be answered in any order.
    Many(Many),
    /// A scan: page after page, each of one operation or of one for each region.
    Scan(Box<ScanWork>),
    /// Its reply is made when all earlier commands are answered. It gets the table that was selected.
    InTurn(fn(&mut Context, &str) -> Reply),
    /// How stale the data is that the command before has read, in milliseconds.
    Age,
    /// The password thread is asked: [`Session::answered`](super::Session) has the rest.
    Waiting,
}

/// One operation, and the function that makes a reply of its result.
pub(super) struct One {
    op: Option<Op>,
    finish: fn(OpResult) -> Reply,
}

/// Several operations, and the function that makes a reply of their results, in the order of the operations.
pub(super) struct Many {
    ops: std::vec::IntoIter<Op>,
    results: Vec<Option<OpResult>>,
    waiting: usize,
    bytes: usize,
    keeps_errors: bool,
    /// Of a result only this is kept, if anything: whether it counts.
    counts: Option<fn(&OpResult) -> bool>,
    finish: Option<Box<dyn FnOnce(Vec<OpResult>) -> Reply + Send>>,
}

impl Work {
    /// One operation. `finish` never sees [`OpResult::Error`].
    pub(super) fn one(op: Op, finish: fn(OpResult) -> Reply) -> Work {
        Work::One(One { op: Some(op), finish })
    }

    /// Several operations. `finish` never sees [`OpResult::Error`]: the first error is the reply.
    pub(super) fn many(ops: Vec<Op>, finish: impl FnOnce(Vec<OpResult>) -> Reply + Send + 'static) -> Work {
        Work::all(ops, false, finish)
    }

    /// As [`Work::many`], but errors are handed to `finish` like other results.
    pub(super) fn many_with_errors(ops: Vec<Op>, finish: impl FnOnce(Vec<OpResult>) -> Reply + Send + 'static) -> Work {
        Work::all(ops, true, finish)
    }

    /// Of each result only 1 or 0 is kept, by whether `counts` holds for it, and handed to `finish`.
    pub(super) fn counting(self, counts: fn(&OpResult) -> bool) -> Work {
        match self {
            Work::Many(many) => Work::Many(Many { counts: Some(counts), ..many }),
            other => other,
        }
    }

    /// The reply to a command that has nothing to do, and needs the rights of this operation all the same.
    pub(super) fn nothing(op: Op, reply: Reply) -> Work {
        Work::Nothing(Box::new((op, reply)))
    }

    /// The work once its rights were checked.
    pub(super) fn permitted(self) -> Work {
        match self {
            Work::Nothing(nothing) => Work::Ready(nothing.1),
            other => other,
        }
    }

    fn all(ops: Vec<Op>, keeps_errors: bool, finish: impl FnOnce(Vec<OpResult>) -> Reply + Send + 'static) -> Work {
        if ops.is_empty() {
            return Work::Ready(finish(Vec::new()));
        }
        let count = ops.len();
        Work::Many(Many {
            ops: ops.into_iter(),
            results: vec![None; count],
            waiting: count,
            bytes: 0,
            keeps_errors,
            counts: None,
            finish: Some(Box::new(finish)),
        })
    }

    /// The reply, if it comes to one read that the node can answer at once.
    pub(super) fn at_once(&self, table: &str, context: &Context) -> Option<Reply> {
        let Work::One(One { op: Some(op @ (Op::Get { .. } | Op::GetPair { .. })), finish }) = self else { return None };
        context.node.read_at_once(context.now, table, op).map(finish)
    }

    /// Checks each of its operations, before any is submitted. Those that a scan makes later are within the first.
    pub(super) fn check<E>(&self, mut check: impl FnMut(&Op) -> Result<(), E>) -> Result<(), E> {
        match self {
            Work::One(one) => one.op.iter().try_for_each(check),
            Work::Many(many) => many.ops.as_slice().iter().try_for_each(check),
            Work::Scan(scan) => check(&scan.first_op()),
            Work::Nothing(nothing) => check(&nothing.0),
            Work::Ready(_) | Work::InTurn(_) | Work::Age | Work::Waiting => Ok(()),
        }
    }

    /// Bytes that the command takes until it is answered, besides its arguments.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Work::Ready(reply) => reply.memory_bytes(),
            Work::Many(many) => size_of_val(many.ops.as_slice()) + size_of_val(&many.results[..]),
            Work::One(_) | Work::Scan(_) | Work::Nothing(_) | Work::InTurn(_) | Work::Age | Work::Waiting => 0,
        }
    }

    /// Bytes of the entries that a scan, or its reply, holds; `None` for other commands.
    pub(super) fn scan_bytes(&self, kind: Kind) -> Option<usize> {
        match self {
            Work::Scan(scan) => Some(scan.memory_bytes()),
            Work::Ready(reply) if kind == Kind::Scan => Some(reply.memory_bytes()),
            _ => None,
        }
    }

    /// The kind of the next operation, if there is one that can be submitted.
    pub(super) fn next_kind(&self) -> Option<Kind> {
        match self {
            Work::One(one) => one.op.as_ref().map(Kind::of),
            Work::Many(many) => many.ops.as_slice().first().map(Kind::of),
            Work::Scan(scan) => scan.has_op().then_some(Kind::Scan),
            Work::Ready(_) | Work::Nothing(_) | Work::InTurn(_) | Work::Age | Work::Waiting => None,
        }
    }

    /// Bytes that this operation takes until it is answered, besides its arguments.
    pub(super) fn next_takes(&self) -> usize {
        let takes = |op: &Op| if op.is_plain_put() { WRITE_BYTES } else { OPERATION_BYTES };
        match self {
            Work::One(one) => one.op.as_ref().map_or(0, takes),
            Work::Many(many) => many.ops.as_slice().first().map_or(0, takes),
            Work::Scan(_) => SCAN_OPERATION_BYTES,
            Work::Ready(_) | Work::Nothing(_) | Work::InTurn(_) | Work::Age | Work::Waiting => 0,
        }
    }

    /// Takes the operation that [`Work::next_kind`] announced, and its position among those of the command.
    pub(super) fn next_op(&mut self) -> Option<(usize, Op)> {
        match self {
            Work::One(one) => one.op.take().map(|op| (0, op)),
            Work::Many(many) => {
                let position = many.results.len() - many.ops.len();
                many.ops.next().map(|op| (position, op))
            }
            Work::Scan(scan) => scan.take_op(),
            Work::Ready(_) | Work::Nothing(_) | Work::InTurn(_) | Work::Age | Work::Waiting => None,
        }
    }

    /// Whether a part of the answers is still to be processed, by [`Work::run_next`].
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(self, Work::Scan(scan) if scan.is_unfinished())
    }

    /// Processes more of the answers, as far as the quota goes.
    pub(super) fn run_next(&mut self, context: &mut Context) {
        let Work::Scan(scan) = self else { return };
        if let Some(reply) = scan.run_next(context) {
            *self = Work::Ready(reply);
        }
    }

    /// Handles the answer to the operation at `position`.
    pub(super) fn answered(&mut self, position: usize, result: OpResult, context: &mut Context) {
        let reply = match self {
            Work::One(one) => Some(match result {
                OpResult::Error(error) => error_reply(&error),
                result => (one.finish)(result),
            }),
            Work::Many(many) => many.answered(position, result, most_reply_bytes(context)),
            Work::Scan(scan) => scan.answered(result, context),
            // The reply was decided while other operations of the command were still under way.
            Work::Ready(_) | Work::Nothing(_) | Work::InTurn(_) | Work::Age | Work::Waiting => None,
        };
        if let Some(reply) = reply {
            *self = Work::Ready(reply);
        }
    }
}

impl Many {
    fn answered(&mut self, position: usize, result: OpResult, most: usize) -> Option<Reply> {
        let result = match (result, self.counts) {
            (OpResult::Error(error), _) => OpResult::Error(error),
            (result, Some(counts)) => OpResult::Integer(i64::from(counts(&result))),
            (result, None) => result,
        };
        self.bytes += result_bytes(&result);
        self.results[position] = Some(result);
        self.waiting -= 1;
        if self.bytes > most {
            return Some(too_long(most));
        }
        if self.waiting > 0 {
            return None;
        }
        let results: Vec<OpResult> = std::mem::take(&mut self.results).into_iter().flatten().collect();
        let failed = results.iter().find_map(|result| match result {
            OpResult::Error(error) if !self.keeps_errors => Some(error_reply(error)),
            _ => None,
        });
        failed.or_else(|| self.finish.take().map(|finish| finish(results)))
    }
}

/// What an operation must wait for on its own connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Read,
    /// Earlier scans, which must not see it.
    Write,
    /// Earlier writes, which it must see.
    Scan,
}

impl Kind {
    fn of(op: &Op) -> Kind {
        match op {
            op if op.is_write() => Kind::Write,
            op if op.range().is_some() => Kind::Scan,
            _ => Kind::Read,
        }
    }
}

/// Most bytes of one reply: [`MAX_REPLY_BYTES`], or less if the memory for clients allows only less.
pub(super) fn most_reply_bytes(context: &Context) -> usize {
    MAX_REPLY_BYTES.min(context.shared.memory.most_at_once())
}

/// The reply to a command whose reply would be longer than `most`.
pub(super) fn too_long(most: usize) -> Reply {
    Reply::err(format_args!("the reply would be longer than {most} bytes: ask for less (LIMIT, SCAN)"))
}

/// The reply when a node answers with a result that does not belong to the operation.
pub(super) fn unexpected(result: &OpResult) -> Reply {
    let kind = match result {
        OpResult::Value(_) => "value",
        OpResult::Put { .. } => "put",
        OpResult::Deleted { .. } => "deleted",
        OpResult::Pair(_) => "pair",
        OpResult::Approximation { .. } => "approximation",
        OpResult::Integer(_) => "integer",
        OpResult::Entries { .. } => "entries",
        OpResult::Done => "done",
        OpResult::RangeDeleted { .. } => "range deleted",
        OpResult::Checkpoint { .. } => "checkpoint",
        OpResult::Digests { .. } | OpResult::RangeDigests(_) => "digests",
        OpResult::RangeBounds { .. } => "range bounds",
        OpResult::HashIndex(_) => "hash index",
        OpResult::Users(_) => "users",
        OpResult::Stale { .. } => "stale",
        OpResult::Error(error) => return error_reply(error),
    };
    error_reply(&OpError::Unavailable(format!("the primary answered with a result of another kind ({kind})")))
}
