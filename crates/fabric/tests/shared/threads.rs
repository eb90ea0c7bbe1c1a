//! Calls from several threads at once, over every transport that has threads.

use crate::common::{Harness, bytes_of};
use leeward_fabric::{LinkEvent, PeerId};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

threaded_transports!(several_threads_post, a_revocation_under_fire, nothing_of_an_earlier_connection_lands);

const THREADS: u64 = 4;
const OPS: u64 = 1000;
/// Bytes of a write: two words, because a single word may go over the connection.
const PAIR: u64 = 16;

/// The bytes of write `op`.
fn pair(op: u64) -> [u8; PAIR as usize] {
    u128::from(op + 1).to_le_bytes()
}

/// Several threads post and flush; a sink that is never entered twice at a time sees every completion once.
fn several_threads_post(h: &mut dyn Harness) {
    let (entered, overlaps, completed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let state = Arc::new((entered, overlaps, completed));
    let seen = Arc::clone(&state);
    let a = h.attach(
        1,
        Arc::new(move |_, event| {
            let (entered, overlaps, completed) = &*seen;
            overlaps.fetch_add(u64::from(entered.swap(true, Ordering::SeqCst)), Ordering::SeqCst);
            thread::yield_now();
            entered.store(false, Ordering::SeqCst);
            completed.fetch_add(u64::from(matches!(event, LinkEvent::Completed { .. })), Ordering::SeqCst);
        }),
    );
    let b = h.node(2);
    let memory = b.fabric.allocate((THREADS * OPS * PAIR) as usize).unwrap();
    let descriptor = memory.descriptor();
    a.connect(b.id, &b.fabric.local_address());
    h.until("the link is up", &mut || {
        a.send(b.id, b"anybody there?");
        a.flush();
        !b.log.lock().unwrap().is_empty()
    });
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, descriptor) = (&a, &descriptor);
            scope.spawn(move || {
                for op in thread * OPS..(thread + 1) * OPS {
                    a.write(PeerId(2), descriptor, op * PAIR, &pair(op), op);
                    a.flush();
                }
            });
        }
    });
    let (_, overlaps, completed) = &*state;
    h.until("all complete", &mut || completed.load(Ordering::SeqCst) == THREADS * OPS);
    assert_eq!(overlaps.load(Ordering::SeqCst), 0, "events of one link were delivered at the same time");
    for op in 0..THREADS * OPS {
        assert_eq!(memory.load_u64((op * PAIR) as usize), op + 1);
    }
}

/// The target revokes its memory while writes pour in: completed writes are there, and nothing comes after.
fn a_revocation_under_fire(h: &mut dyn Harness) {
    const BYTES: usize = PAIR as usize * 1024;
    let (a, b) = h.pair();
    // The link is up: one event.
    let mut ended = 1;
    for round in 0..20u64 {
        let memory = b.fabric.allocate(BYTES).unwrap();
        let (descriptor, stop) = (memory.descriptor(), AtomicBool::new(false));
        let base = round << 32;
        let posted = thread::scope(|scope| {
            let posting = scope.spawn(|| {
                let mut op = 0;
                while !stop.load(Ordering::Relaxed) {
                    a.write(&b, &descriptor, op % 1024 * PAIR, &pair(op), base + op);
                    op += 1;
                    thread::yield_now();
                }
                op
            });
            h.until("some writes complete", &mut || a.completed(&b, base + 20));
            memory.revoke();
            let settled = bytes_of(&*memory, 0, BYTES);
            h.until("writes are refused", &mut || {
                a.log.lock().unwrap().iter().any(|(_, event)| matches!(event, LinkEvent::Refused { op } if *op >= base))
            });
            stop.store(true, Ordering::Relaxed);
            assert!(bytes_of(&*memory, 0, BYTES) == settled, "bytes changed after the revocation");
            posting.join().expect("it does not panic")
        });
        ended += posted as usize;
        h.until("all end", &mut || a.log.lock().unwrap().len() == ended);
        for (_, event) in a.log.lock().unwrap().iter() {
            if let LinkEvent::Completed { op } = event
                && let Some(op) = op.checked_sub(base)
            {
                assert!(memory.load_u64((op % 1024 * PAIR) as usize) > op % 1024, "completed write {op} is not there");
            }
        }
    }
}

/// Links are given up with writes under way, and made again.
fn nothing_of_an_earlier_connection_lands(h: &mut dyn Harness) {
    const BYTES: usize = 1 << 20;
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(BYTES).unwrap();
    let to = memory.descriptor();
    a.write(&b, &to, 0, &[1; 64], 0);
    h.until("the first write completes", &mut || a.completed(&b, 0));
    for round in 1..=5u8 {
        for op in 0..16 {
            a.fabric.write(b.id, &to, 0, &[round; BYTES], u64::from(round) * 100 + op);
        }
        a.fabric.flush();
        a.fabric.disconnect(b.id);
        a.fabric.connect(b.id, &b.fabric.local_address());
        h.until("the next connection is up", &mut || a.ups(&b) == 1 + usize::from(round));
        let landed = bytes_of(&*memory, 0, BYTES);
        for _ in 0..20 {
            h.pass();
        }
        assert!(bytes_of(&*memory, 0, BYTES) == landed, "bytes of an earlier connection landed in round {round}");
    }
    a.write(&b, &to, 0, &[9; 64], 9);
    h.until("a write of the last connection completes", &mut || a.completed(&b, 9));
    assert_eq!(bytes_of(&*memory, 0, 64), [9; 64]);
}
