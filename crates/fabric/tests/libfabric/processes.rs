//! libfabric between processes: remains of a process that died or ended, memory that is given back, and peers without a
//! link to them.

use crate::{
    common::{Gate, Harness, Log, Node, bytes_of, pattern, recorder},
    harness::{LibfabricShm, LibfabricTcp, options},
};
use leeward_fabric::{Descriptor, Fabric, LibfabricFabric, LinkEvent, PeerId, Provider, Sink, TcpFabric};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::Write,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

const CHILD: &str = "LEEWARD_FABRIC_TEST_LIBFABRIC_CHILD";
const MEMORY_BYTES: usize = 1 << 20;
const PAIR: usize = 16;

/// Not a test by itself: the process that [`ChildNode`] starts. It registers memory and tells its parent where it is.
/// At each line of its input it revokes the memory and sends what it holds; at the end of its input it sends that and
/// ends.
#[test]
#[ignore = "runs as a child process of other tests"]
fn libfabric_child() {
    let Ok(told) = env::var(CHILD) else { return };
    let (provider, parent) = told.split_once(' ').expect("a provider and an address");
    let (log, sink) = recorder();
    let provider = provider.parse().expect("a provider");
    let fabric = LibfabricFabric::bind(PeerId(2), "127.0.0.1:0", provider, options(), sink).expect("a port is free");
    let memory = fabric.allocate(MEMORY_BYTES).expect("there is memory");
    fabric.connect(PeerId(1), parent);
    let mut h = LibfabricTcp::default();
    h.until("the parent is connected", &mut || log.lock().unwrap().contains(&(PeerId(1), LinkEvent::Up)));
    fabric.send(PeerId(1), &memory.descriptor().0);
    fabric.send(PeerId(1), fabric.local_address().as_bytes());
    fabric.flush();
    for line in std::io::stdin().lines() {
        line.expect("the parent writes text");
        memory.revoke();
        fabric.send(PeerId(1), &bytes_of(&*memory, 0, MEMORY_BYTES));
        fabric.flush();
    }
    fabric.send(PeerId(1), &bytes_of(&*memory, 0, MEMORY_BYTES));
    fabric.flush();
    h.until("the parent has it", &mut || {
        log.lock().unwrap().contains(&(PeerId(1), LinkEvent::Message(b"end".to_vec())))
    });
}

/// A node in a process of its own.
struct ChildNode {
    process: Child,
    node: Node,
    address: String,
    memory: Descriptor,
}

impl ChildNode {
    /// Starts it and connects `parent` to it.
    fn start(parent: &Node, provider: Provider) -> ChildNode {
        let before = parent.log.lock().unwrap().len();
        let process = Command::new(env::current_exe().expect("this binary"))
            .args(["processes::libfabric_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{provider} {}", parent.fabric.local_address()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("this binary runs");
        // Only its number is of use: what concerns it is found in the parent's log.
        let node = Node { id: PeerId(2), fabric: Arc::clone(&parent.fabric), log: Log::default() };
        let mut h = LibfabricTcp::default();
        let told = || {
            let log = &parent.log.lock().unwrap()[before..];
            let messages = log.iter().filter(|(_, event)| matches!(event, LinkEvent::Message(_)));
            (messages.count(), log.contains(&(node.id, LinkEvent::Up)))
        };
        h.until("the child tells where it is", &mut || told().0 == 2);
        let [memory, address] =
            parent.messages(&node).split_off(parent.messages(&node).len() - 2).try_into().expect("two");
        let address = String::from_utf8(address).expect("an address");
        parent.fabric.connect(node.id, &address);
        h.until("the child is connected", &mut || told().1);
        ChildNode { process, node, address, memory: Descriptor(memory) }
    }

    /// Lets it end as it should; answers what it has seen in its memory.
    fn end(&mut self, parent: &Node) -> Vec<u8> {
        let told = parent.messages(&self.node).len();
        drop(self.process.stdin.take());
        LibfabricTcp::default().until("the child tells what it sees", &mut || parent.messages(&self.node).len() > told);
        parent.fabric.send(self.node.id, b"end");
        parent.fabric.flush();
        assert!(self.process.wait().expect("it ends").success());
        assert_eq!(left_in_shared_memory(self.process.id()), Vec::<String>::new());
        parent.messages(&self.node).swap_remove(told)
    }

    fn kill(&self) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a child has a number");
        kill_process(pid, Signal::KILL).expect("it is our child");
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The files of a process in `/dev/shm`.
fn left_in_shared_memory(process: u32) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.split(|c: char| !c.is_ascii_digit()).any(|number| number == process.to_string())).collect()
}

/// Writes go to another process, which ends as it should: its bytes are there, and nothing of it is left.
fn another_process_is_written(h: &mut dyn Harness, provider: Provider) {
    let parent = h.node(1);
    let mut child = ChildNode::start(&parent, provider);
    let bytes = pattern(MEMORY_BYTES, 5);
    for op in 0..256u64 {
        let at = op as usize * 4096;
        parent.fabric.write(child.node.id, &child.memory, at as u64, &bytes[at..at + 4096], op);
    }
    parent.fabric.flush();
    h.until("all complete", &mut || (0..256).all(|op| parent.completed(&child.node, op)));
    parent.fabric.read(child.node.id, &child.memory, 0, MEMORY_BYTES as u32, 1000);
    parent.fabric.flush();
    h.until("it is read", &mut || parent.outcome(1000).is_some());
    assert!(parent.outcome(1000) == Some(LinkEvent::ReadDone { op: 1000, bytes: bytes.clone() }));
    assert!(child.end(&parent) == bytes, "what the child sees");
    h.until("the link is down", &mut || parent.downs(&child.node) == 1);
}

/// The bytes written to place `number` of a memory: two words, because a single word may go over the connection.
fn pair(number: u64) -> [u8; PAIR] {
    u128::from(number + 1).to_le_bytes()
}

/// Several threads write to another process and flush.
fn several_threads_write_another_process(h: &mut dyn Harness, provider: Provider) {
    const OPS: u64 = 100;
    let parent = h.node(1);
    let mut child = ChildNode::start(&parent, provider);
    thread::scope(|scope| {
        for thread in 0..4 {
            let (parent, child) = (&parent, &child);
            scope.spawn(move || {
                for op in thread * OPS..(thread + 1) * OPS {
                    parent.write(&child.node, &child.memory, op * PAIR as u64, &pair(op), op);
                }
            });
        }
    });
    h.until("all complete", &mut || (0..4 * OPS).all(|op| parent.completed(&child.node, op)));
    let seen = child.end(&parent);
    for (op, bytes) in (0..4 * OPS).zip(seen.chunks(PAIR)) {
        assert_eq!(bytes, pair(op), "write {op}");
    }
}

/// Another process revokes its memory while writes pour in: completed writes are there, and nothing comes after.
fn another_process_revokes_under_fire(h: &mut dyn Harness, provider: Provider) {
    const PLACES: u64 = 256;
    let parent = h.node(1);
    let mut child = ChildNode::start(&parent, provider);
    let mut posted = 0;
    let mut post = || {
        let place = posted % PLACES;
        parent.write(&child.node, &child.memory, place * PAIR as u64, &pair(place), posted);
        posted += 1;
    };
    let count =
        |ends: fn(&LinkEvent) -> bool| parent.log.lock().unwrap().iter().filter(|(_, event)| ends(event)).count();
    let completed = || count(|event| matches!(event, LinkEvent::Completed { .. }));
    let refused = || count(|event| matches!(event, LinkEvent::Refused { .. }));
    h.until("some complete", &mut || {
        post();
        completed() >= 20
    });
    let told = parent.messages(&child.node).len();
    let input = child.process.stdin.as_mut().expect("it was not ended");
    writeln!(input, "revoke").expect("it reads its input");
    h.until("the child has revoked its memory, and refuses", &mut || {
        post();
        parent.messages(&child.node).len() > told && refused() > 0
    });
    h.until("all end", &mut || (completed() + refused()) as u64 == posted);
    let settled = parent.messages(&child.node).swap_remove(told);
    for op in (0..posted).filter(|op| parent.completed(&child.node, *op)) {
        let at = (op % PLACES) as usize * PAIR;
        assert_eq!(settled[at..at + PAIR], pair(op % PLACES), "write {op} was completed");
    }
    assert!(child.end(&parent) == settled, "bytes changed after the revocation");
}

#[test]
fn several_threads_write_another_process_over_shm() {
    LibfabricShm::ready().iter_mut().for_each(|h| several_threads_write_another_process(h, Provider::Shm));
}

#[test]
fn another_process_revokes_under_fire_over_tcp() {
    LibfabricTcp::ready().iter_mut().for_each(|h| another_process_revokes_under_fire(h, Provider::Tcp));
}

#[test]
fn another_process_revokes_under_fire_over_shm() {
    LibfabricShm::ready().iter_mut().for_each(|h| another_process_revokes_under_fire(h, Provider::Shm));
}

#[test]
fn another_process_is_written_over_tcp() {
    LibfabricTcp::ready().iter_mut().for_each(|h| another_process_is_written(h, Provider::Tcp));
}

#[test]
fn another_process_is_written_over_shm() {
    LibfabricShm::ready().iter_mut().for_each(|h| another_process_is_written(h, Provider::Shm));
}

/// Links are given up with writes under way, and made again: what is read over the next stays as it is.
fn nothing_of_an_earlier_connection_lands(h: &mut dyn Harness, provider: Provider) {
    let parent = h.node(1);
    let mut child = ChildNode::start(&parent, provider);
    let address = child.address.clone();
    let read = |op: u64, h: &mut dyn Harness| {
        parent.fabric.read(child.node.id, &child.memory, 0, MEMORY_BYTES as u32, op);
        parent.fabric.flush();
        h.until("it is read", &mut || parent.outcome(op).is_some());
        let Some(LinkEvent::ReadDone { bytes, .. }) = parent.outcome(op) else { panic!("refused") };
        bytes
    };
    read(1, h);
    for round in 1..=5u64 {
        for op in 0..16 {
            parent.fabric.write(child.node.id, &child.memory, 0, &[round as u8; MEMORY_BYTES], round * 100 + op);
        }
        parent.fabric.disconnect(child.node.id);
        parent.fabric.connect(child.node.id, &address);
        h.until("the next connection is up", &mut || parent.ups(&child.node) == 1 + round as usize);
        let landed = read(round * 100 + 50, h);
        for _ in 0..20 {
            h.pass();
        }
        assert!(read(round * 100 + 51, h) == landed, "bytes of an earlier connection landed in round {round}");
    }
    child.end(&parent);
}

#[test]
fn nothing_of_an_earlier_connection_lands_over_tcp() {
    LibfabricTcp::ready().iter_mut().for_each(|h| nothing_of_an_earlier_connection_lands(h, Provider::Tcp));
}

#[test]
fn nothing_of_an_earlier_connection_lands_over_shm() {
    LibfabricShm::ready().iter_mut().for_each(|h| nothing_of_an_earlier_connection_lands(h, Provider::Shm));
}

#[test]
fn a_killed_process_takes_its_link_down_and_its_successor_is_written() {
    let Some(mut h) = LibfabricTcp::ready() else { return };
    let parent = h.node(1);
    for incarnation in 1..=3 {
        let child = ChildNode::start(&parent, Provider::Tcp);
        parent.write(&child.node, &child.memory, 0, &pattern(4096, incarnation), u64::from(incarnation));
        h.until("a write completes", &mut || parent.completed(&child.node, u64::from(incarnation)));
        // Some of these are under way when it dies.
        for op in 0..64 {
            parent.fabric.write(
                child.node.id,
                &child.memory,
                0,
                &[incarnation; MEMORY_BYTES],
                u64::from(incarnation) * 1000 + op,
            );
        }
        child.kill();
        h.until("the link is down", &mut || parent.downs(&child.node) == usize::from(incarnation));
        let process = child.process.id();
        drop(child);
        assert_eq!(left_in_shared_memory(process), Vec::<String>::new());
    }
}

#[test]
fn memory_is_unmapped_when_its_peer_has_heard_that_it_is_revoked_or_dropped() {
    let Some(mut h) = LibfabricTcp::ready() else { return };
    let (a, b) = h.pair();
    // Every memory has a length of its own, by which its mapping is told from those of other tests.
    let mapped = |len: usize| {
        let maps = fs::read_to_string("/proc/self/maps").expect("this process has maps");
        let sizes = maps.lines().filter(|line| line.contains("leeward-fabric")).map(|line| {
            let (start, end) = line.split_once(' ').expect("a range").0.split_once('-').expect("a range");
            let number = |text| usize::from_str_radix(text, 16).expect("an address");
            number(end) - number(start)
        });
        sizes.filter(|size| *size == len + 4096).count()
    };
    let lens = [131, 133, 135].map(|pages| pages * 4096);
    let [dropped, revoked, kept] = lens.map(|len| b.fabric.allocate(len).expect("there is memory"));
    for (op, memory) in [&dropped, &revoked, &kept].into_iter().enumerate() {
        a.write(&b, &memory.descriptor(), 0, &[1; 64], op as u64);
        h.until("it completes", &mut || a.completed(&b, op as u64));
    }
    let (to_dropped, to_revoked) = (dropped.descriptor(), revoked.descriptor());
    drop(dropped);
    revoked.revoke();
    // Its owner still has a mapping of what it only revoked, and its peer none.
    h.until("the peer has given them back", &mut || lens.map(mapped) == [0, 1, 1]);
    for (op, memory) in [(10, &to_dropped), (11, &to_revoked)] {
        a.write(&b, memory, 0, &[2; 64], op);
        h.until("it ends", &mut || a.outcome(op).is_some());
        assert_eq!(a.outcome(op), Some(LinkEvent::Refused { op }));
    }
    a.write(&b, &kept.descriptor(), 0, &[2; 64], 12);
    h.until("what was kept is written", &mut || a.completed(&b, 12));
    drop((revoked, kept));
    h.kill(b);
    h.until("nothing is mapped", &mut || lens.map(mapped) == [0; 3]);
}

#[test]
fn processes_with_another_fabric_or_provider_are_not_connected() {
    let (Some(mut tcp), Some(mut shm)) = (LibfabricTcp::ready(), LibfabricShm::ready()) else { return };
    let (log, sink) = recorder();
    let plain = TcpFabric::bind(PeerId(3), "127.0.0.1:0", options(), sink).expect("a port is free");
    let (a, b, c) = (tcp.node(1), shm.node(2), Node { id: PeerId(3), fabric: plain, log });
    for (from, to) in [(&a, &b), (&b, &a), (&a, &c), (&c, &a)] {
        from.fabric.connect(to.id, &to.fabric.local_address());
    }
    let d = tcp.node(4);
    a.fabric.connect(d.id, &d.fabric.local_address());
    tcp.until("its like is connected", &mut || a.ups(&d) == 1);
    thread::sleep(Duration::from_millis(200));
    for (from, to) in [(&a, &b), (&b, &a), (&a, &c), (&c, &a)] {
        assert_eq!(from.ups(to), 0, "{} to {}", from.id, to.id);
    }
}

#[test]
fn writes_complete_while_the_target_hangs_in_its_sink() {
    let Some(mut h) = LibfabricTcp::ready() else { return };
    let gate = Arc::new(Gate::default());
    let blocked = Arc::clone(&gate);
    let sink: Sink = Arc::new(move |_, event| {
        if matches!(event, LinkEvent::Message(_)) {
            blocked.pass();
        }
    });
    let target = h.attach(2, sink);
    let memory = target.allocate(MEMORY_BYTES).expect("there is memory");
    let (a, c) = (h.node(1), h.node(3));
    let b = Node { id: PeerId(2), fabric: target, log: Log::default() };
    for node in [&a, &c] {
        node.fabric.connect(b.id, &b.fabric.local_address());
        h.until("the link is up", &mut || node.ups(&b) == 1);
        node.write(&b, &memory.descriptor(), 0, b"the first write asks for a grant", 0);
        h.until("the first write completes", &mut || node.completed(&b, 0));
    }
    c.fabric.send(b.id, b"hangs");
    c.fabric.flush();
    let bytes = pattern(MEMORY_BYTES, 7);
    for op in 1..=256u64 {
        let at = (op as usize - 1) * 4096;
        a.fabric.write(b.id, &memory.descriptor(), at as u64, &bytes[at..at + 4096], op);
    }
    a.fabric.flush();
    h.until("all complete", &mut || (1..=256).all(|op| a.completed(&b, op)));
    assert!(bytes_of(&*memory, 0, MEMORY_BYTES) == bytes);
    gate.open();
}

#[test]
fn what_is_due_is_told_while_the_connection_is_busy() {
    let Some(mut h) = LibfabricTcp::ready() else { return };
    let (a, b) = h.pair();
    let memory = b.fabric.allocate(MEMORY_BYTES).expect("there is memory");
    let received = || b.fabric.counters().bytes_received;
    a.write(&b, &memory.descriptor(), 0, &[1; MEMORY_BYTES], 0);
    let mut op = 1;
    h.until("the owner hears what was written", &mut || {
        // A word goes over the connection, and its answer keeps that from being silent.
        a.write(&b, &memory.descriptor(), 0, &[2; 8], op);
        op += 1;
        received() >= MEMORY_BYTES as u64
    });
}

/// A bug in a sink must not leave other links waiting for completions that no thread takes.
#[test]
fn a_panic_in_the_thread_that_makes_progress_takes_every_link_down() {
    let Some(mut h) = LibfabricTcp::ready() else { return };
    let (b, c) = (h.node(2), h.node(3));
    let (log, record) = recorder();
    let sink: Sink = Arc::new(move |peer, event| {
        assert!((peer, &event) != (PeerId(2), &LinkEvent::Completed { op: 13 }), "as the test wants it");
        record(peer, event);
    });
    let a = Node { id: PeerId(1), fabric: h.attach(1, sink), log };
    let memories = [&b, &c].map(|node| node.fabric.allocate(MEMORY_BYTES).expect("there is memory"));
    for (op, (node, memory)) in [&b, &c].into_iter().zip(&memories).enumerate() {
        a.fabric.connect(node.id, &node.fabric.local_address());
        h.until("the link is up", &mut || a.ups(node) == 1);
        a.write(node, &memory.descriptor(), 0, &[1; 64], op as u64);
        h.until("a write completes", &mut || a.completed(node, op as u64));
    }
    a.write(&b, &memories[0].descriptor(), 0, &[1; 64], 13);
    h.until("the other link is down", &mut || a.downs(&c) == 1);
    assert!(a.fabric.allocate(MEMORY_BYTES).is_err(), "memory that no peer could write is not registered");
}
