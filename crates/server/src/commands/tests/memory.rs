//! The account of all clients: what sessions hold is charged before they hold it, and bounded over all of them.

use super::fake::Fake;
use crate::clients::Client;
use crate::commands::idle_node::number_of;
use crate::protocol_session::ProtocolSession;
use crate::resp::ARGUMENT_BYTES;
use bytes::{Buf, Bytes};
use leeward_format::op::{Op, OpResult};
use leeward_region::client_memory::ClientMemory;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const VALUE_BYTES: usize = 1_000_000;
const LIMIT: u64 = 32 << 20;
/// One step may be taken beyond the limit: a value and its reply, in a buffer that grew for it.
const STEP: u64 = 4 << 20;

/// A value that knows how many bytes of its kind there are.
struct Value {
    bytes: Vec<u8>,
    alive: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        self.alive.fetch_sub(self.bytes.len(), Relaxed);
    }
}

fn value(number: u64, alive: &Arc<AtomicUsize>) -> OpResult {
    alive.fetch_add(VALUE_BYTES, Relaxed);
    let mut bytes = vec![b'v'; VALUE_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    OpResult::Value(Some(Bytes::from_owner(Value { bytes, alive: alive.clone() })))
}

/// Does all that can be done for one session, as a region does it: no value is read while the account is full.
fn answer_all(fake: &mut Fake, memory: &ClientMemory, alive: &Arc<AtomicUsize>) -> bool {
    fake.advance();
    let mut is_any = false;
    while !fake.waiting.is_empty() && !memory.is_full() {
        let number = number_of(&fake.waiting.remove(0));
        fake.complete(number, value(number, alive));
        is_any = true;
    }
    is_any
}

#[test]
fn clients_that_do_not_read_have_no_more_than_the_account_together() {
    let memory = ClientMemory::with_limit(LIMIT);
    let alive = Arc::new(AtomicUsize::new(0));
    let mut fakes: Vec<Fake> = (0..40).map(|_| Fake::within(&[], memory.clone())).collect();
    for fake in &mut fakes {
        fake.feed("GET k\r\n".repeat(50).as_bytes());
    }
    let check = |fakes: &mut Vec<Fake>| {
        let output: usize = fakes.iter_mut().map(|fake| fake.session.output().capacity()).sum();
        let held = output + alive.load(Relaxed);
        assert!(held as u64 <= LIMIT + STEP, "{held} bytes are held");
        assert!(memory.used() <= LIMIT + STEP, "{} bytes are charged", memory.used());
        assert!(held as u64 <= memory.used(), "{held} bytes are held, {} charged", memory.used());
    };
    for _ in 0..10 {
        for at in 0..fakes.len() {
            answer_all(&mut fakes[at], &memory, &alive);
            check(&mut fakes);
        }
    }
    assert!(memory.is_full() || fakes.iter().all(|fake| !fake.session.wants_input()));
    // They read: all are answered, in order.
    let mut answered = vec![0_u64; fakes.len()];
    while answered.iter().any(|answered| *answered < 50) {
        let before = answered.clone();
        for (at, answered) in answered.iter_mut().enumerate() {
            answer_all(&mut fakes[at], &memory, &alive);
            let output = fakes[at].session.output();
            while output.has_remaining() {
                let head = format!("${VALUE_BYTES}\r\n");
                assert_eq!(&output[..head.len()], head.as_bytes());
                assert_eq!(output[head.len()..][..8], answered.to_le_bytes(), "in order");
                output.advance(head.len() + VALUE_BYTES + 2);
                *answered += 1;
            }
            if output.capacity() > 0 {
                *output = bytes::BytesMut::new();
            }
            fakes[at].advance();
            check(&mut fakes);
        }
        assert_ne!(before, answered, "it does not go on");
    }
    assert_eq!(alive.load(Relaxed), 0);
    drop(fakes);
    assert_eq!(memory.used(), 0, "all is given back");
}

#[test]
fn an_argument_is_charged_for_what_it_takes() {
    assert!(ARGUMENT_BYTES >= size_of::<Bytes>() + 16 + size_of::<Op>() + size_of::<Option<OpResult>>());
    let memory = ClientMemory::with_limit(1 << 40);
    let mut fake = Fake::within(&[], memory.clone());
    let keys = 100_000;
    for command in ["MGET", "DEL", "EXISTS"] {
        fake.feed(format!("*{}\r\n${}\r\n{command}\r\n", keys + 1, command.len()).as_bytes());
        fake.feed("$1\r\nk\r\n".repeat(keys).as_bytes());
        let least = (keys * (size_of::<Op>() + size_of::<OpResult>())) as u64;
        assert!(
            memory.used() >= least,
            "{command} is charged {} bytes, its operations alone take {least}",
            memory.used()
        );
        while !fake.waiting.is_empty() {
            fake.answer(0);
        }
        assert_ne!(fake.take_output(), "");
        assert!(memory.used() < 1 << 20, "{} bytes are left of {command}", memory.used());
    }
}

#[test]
fn a_command_that_would_take_too_much_is_refused_while_it_comes() {
    let memory = ClientMemory::with_limit(LIMIT);
    let mut fake = Fake::within(&[], memory.clone());
    let keys = 1_000_000;
    fake.feed(format!("*{}\r\n$4\r\nMGET\r\n", keys + 1).as_bytes());
    for _ in 0..keys / 10_000 {
        assert!(fake.session.wants_input(), "the command is read to its end");
        fake.feed("$1\r\nk\r\n".repeat(10_000).as_bytes());
        assert!(memory.used() <= LIMIT / 2 + (1 << 20), "{} bytes are charged", memory.used());
    }
    let reply = fake.take_output();
    assert!(reply.starts_with("-ERR ") && reply.contains("use fewer at once"), "{reply}");
    assert_eq!(fake.run("PING"), "+PONG|", "the connection goes on");
}

#[test]
fn nothing_is_taken_while_the_account_is_full_and_all_goes_on_after_it() {
    let memory = ClientMemory::with_limit(1 << 20);
    let mut fake = Fake::within(&[], memory.clone());
    let other = memory.hold(Bytes::from(vec![1; 1 << 20]));
    assert!(!fake.session.wants_input());
    fake.feed(b"SET a 1\r\nGET a\r\n");
    assert!(fake.waiting.is_empty());
    drop(other);
    fake.advance();
    while !fake.waiting.is_empty() {
        fake.answer(0);
    }
    assert_eq!(fake.take_output(), "+OK|$1|1|");
}

#[test]
fn replies_that_are_known_at_once_are_charged_before_they_are_sent() {
    let memory = ClientMemory::with_limit(1 << 20);
    let mut fake = Fake::within(&[], memory.clone());
    (1_000..1_200).for_each(|id| fake.shared.clients.add(id, Client { address: "a".repeat(100), ..Client::default() }));
    fake.feed(b"GET a\r\n");
    // None of these can leave before the first.
    fake.feed("CLIENT LIST\r\n".repeat(300).as_bytes());
    assert!(memory.used() <= (1 << 20) + (256 << 10), "{} bytes are charged", memory.used());
    assert!(memory.is_scarce(), "there is more than that to be said");
    fake.answer(0);
    let mut answered = 0;
    loop {
        let output = fake.take_output();
        if output.is_empty() {
            break;
        }
        answered += output.matches("id=7 ").count();
    }
    assert_eq!(answered, 300);
}

#[test]
fn a_scan_is_charged_for_what_it_found_not_for_what_it_met() {
    let memory = ClientMemory::with_limit(1 << 30);
    let mut fake = Fake::within(&[], memory.clone());
    for n in 0..20_000 {
        fake.node.keys().insert(format!("key{n:05}").into(), Bytes::from_static(b"value"));
    }
    fake.feed(b"KEYS none*\r\n");
    while !fake.waiting.is_empty() {
        fake.answer(0);
        assert!(memory.used() < 2 << 20, "{} bytes are charged", memory.used());
    }
    assert_eq!(fake.take_output(), "*0|");
    assert!(memory.used() < 64 << 10);
}
