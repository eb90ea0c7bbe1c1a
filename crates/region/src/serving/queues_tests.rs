//! Which operations wait in front of which.

use super::*;
use crate::request::{ReplyTo, Token};
use leeward_format::op::Op;

fn pending(token: u64, key: &'static str) -> Pending {
    let op = Op::Get { key: key.into() };
    let (to, since) = (ReplyTo::Client(Token(token)), Nanos(token));
    Pending { to, op, names_region: false, once: None, since, read_at: None }
}

#[test]
fn stalled_writes_are_deferred_in_order_with_what_waits_for_their_keys() {
    let mut queues = Queues::new();
    for (token, key) in [(1, "a"), (3, "b")] {
        let write = pending(token, key);
        queues.lock(&key.into());
        queues.stalled.push(write.since, write);
    }
    let later = pending(4, "a");
    queues.locked.get_mut(&b"a"[..]).expect("it is locked").push(later.since, later);
    for token in [5, 6] {
        let later = pending(token, "a");
        queues.behind.push(later.since, later);
    }
    queues.lock(&"c".into());
    assert!(!queues.is_drained());
    queues.defer_stalled();
    let order: Vec<u64> = queues.behind.iter().map(|pending| pending.since.0).collect();
    assert_eq!(order, [1, 3, 4, 5, 6]);
    assert!(queues.stalled.is_empty() && !queues.is_drained(), "another key is looked up");
    queues.locked.clear();
    assert!(queues.is_drained());
}
