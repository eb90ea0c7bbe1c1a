//! Calls from several threads at once, and fabrics that go away while they are used.

use crate::common::{Harness, Shm, Tcp, bytes_of, recorder};
use leeward_fabric::{Fabric, LinkEvent, PeerId};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

const THREADS: u64 = 4;
const OPS: u64 = 1000;

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
    let memory = b.fabric.allocate((THREADS * OPS * 8) as usize).unwrap();
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
                    a.write(PeerId(2), descriptor, op * 8, &(op + 1).to_le_bytes(), op);
                    a.flush();
                }
            });
        }
    });
    let (_, overlaps, completed) = &*state;
    h.until("all complete", &mut || completed.load(Ordering::SeqCst) == THREADS * OPS);
    assert_eq!(overlaps.load(Ordering::SeqCst), 0, "events of one link were delivered at the same time");
    for op in 0..THREADS * OPS {
        assert_eq!(memory.load_u64(op as usize * 8), op + 1);
    }
}

#[test]
fn several_threads_post_over_tcp() {
    several_threads_post(&mut Tcp::default());
}

#[test]
fn several_threads_post_over_shm() {
    several_threads_post(&mut Shm::default());
}

/// The target revokes its memory while writes pour in: what was completed is there, and nothing comes after.
fn a_revocation_under_fire(h: &mut dyn Harness) {
    let (a, b) = h.pair();
    for round in 0..20u64 {
        let memory = b.fabric.allocate(8 * 1024).unwrap();
        let (descriptor, stop) = (memory.descriptor(), AtomicBool::new(false));
        let base = round << 32;
        thread::scope(|scope| {
            scope.spawn(|| {
                for op in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    a.write(&b, &descriptor, op % 1024 * 8, &(op + 1).to_le_bytes(), base + op);
                    thread::yield_now();
                }
            });
            h.until("some writes complete", &mut || a.completed(&b, base + 20));
            memory.revoke();
            let settled = bytes_of(&*memory, 0, 8 * 1024);
            h.until("writes are refused", &mut || {
                a.log.lock().unwrap().iter().any(|(_, event)| matches!(event, LinkEvent::Refused { op } if *op >= base))
            });
            stop.store(true, Ordering::Relaxed);
            assert!(bytes_of(&*memory, 0, 8 * 1024) == settled, "bytes changed after the revocation");
        });
        for (_, event) in a.log.lock().unwrap().iter() {
            if let LinkEvent::Completed { op } = event
                && let Some(op) = op.checked_sub(base)
            {
                assert!(memory.load_u64((op % 1024 * 8) as usize) > op % 1024, "completed write {op} is not there");
            }
        }
    }
}

#[test]
fn a_revocation_under_fire_over_tcp() {
    a_revocation_under_fire(&mut Tcp::default());
}

#[test]
fn a_revocation_under_fire_over_shm() {
    a_revocation_under_fire(&mut Shm::default());
}

/// The last handle of a fabric goes away inside of its own sink: it ends all the same.
#[test]
fn a_fabric_may_be_dropped_by_its_own_sink() {
    let mut h = Tcp::default();
    let b = h.node(2);
    let held: Arc<Mutex<Option<Arc<dyn Fabric>>>> = Arc::default();
    let (log, record) = recorder();
    let dropped = Arc::clone(&held);
    let a = h.attach(
        1,
        Arc::new(move |peer, event| {
            record(peer, event);
            drop(dropped.lock().unwrap().take());
        }),
    );
    // The sink waits until the only handle is where it will find it.
    held.lock().unwrap().insert(a).connect(b.id, &b.fabric.local_address());
    h.until("the sink was called", &mut || !log.lock().unwrap().is_empty());
    h.until("the address is free again", &mut || held.lock().unwrap().is_none());
    let again = h.node(1);
    again.fabric.connect(b.id, &b.fabric.local_address());
    h.until("a new fabric takes its place", &mut || again.ups(&b) == 1);
}
