//! No thread of the owner's application takes part in a write or read: with all of them stopped, both still complete.

use crate::{
    common::{Gate, Harness, Node, TIMEOUT, bytes_of, options, pattern, recorder},
    harness::{Shm, unique_name},
};
use leeward_fabric::{Descriptor, Fabric, LinkEvent, PeerId, ReadNow, ReadableDescriptor, ShmFabric, Sink, TcpFabric};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env, fs,
    io::Read,
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

const CHILD: &str = "LEEWARD_FABRIC_TEST_CHILD";
const MEMORY_BYTES: usize = 1 << 20;

/// The bytes of the child's readable memory.
fn readable_bytes() -> Vec<u8> {
    pattern(MEMORY_BYTES, 0x77)
}

/// Not a test by itself: the process that [`ChildNode`] starts. It registers memory of both kinds, tells its parent,
/// and at the end of its input sends what the writable memory holds.
#[test]
#[ignore = "runs as a child process of other tests"]
fn shm_child() {
    let Ok(names) = env::var(CHILD) else { return };
    let (own, parent) = names.split_once(' ').expect("two names");
    let (log, sink) = recorder();
    let fabric = ShmFabric::bind(PeerId(2), own, options(), sink).expect("the name is free");
    let child = Node { id: PeerId(2), fabric, log };
    let memory = child.fabric.allocate(MEMORY_BYTES).expect("there is memory");
    let readable = child.fabric.allocate_readable(MEMORY_BYTES).expect("there is memory");
    readable.write(0, &readable_bytes());
    child.fabric.connect(PeerId(1), parent);
    Shm::default()
        .until("the parent is connected", &mut || child.log.lock().unwrap().contains(&(PeerId(1), LinkEvent::Up)));
    child.fabric.send(PeerId(1), &[memory.descriptor().0, readable.descriptor().0].concat());
    child.fabric.flush();
    std::io::stdin().read_to_end(&mut Vec::new()).expect("the parent closes it");
    child.fabric.send(PeerId(1), &bytes_of(&*memory, 0, MEMORY_BYTES));
    child.fabric.flush();
    // The parent kills this process when it has the message.
    thread::sleep(TIMEOUT);
}

/// A node in a process of its own.
struct ChildNode {
    process: Child,
    node: Node,
    memory: Descriptor,
    readable: ReadableDescriptor,
}

impl ChildNode {
    /// Starts it at `name` and connects `parent` to it.
    fn start(parent: &Node, name: &str) -> ChildNode {
        let messages = parent.log.lock().unwrap().len();
        let process = Command::new(env::current_exe().expect("this binary"))
            .args(["bypass::shm_child", "--exact", "--ignored", "--nocapture"])
            .env(CHILD, format!("{name} {}", parent.fabric.local_address()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("this binary runs");
        // Only its number is of use: what concerns it is found in the parent's log.
        let node = Node { id: PeerId(2), fabric: Arc::clone(&parent.fabric), log: Arc::default() };
        parent.fabric.connect(node.id, name);
        Shm::default().until("the child is connected both ways", &mut || {
            let log = &parent.log.lock().unwrap()[messages..];
            log.contains(&(node.id, LinkEvent::Up))
                && log.iter().any(|(_, event)| matches!(event, LinkEvent::Message(_)))
        });
        let mut told = parent.messages(&node).pop().expect("just seen");
        let readable = ReadableDescriptor(told.split_off(told.len() / 2));
        ChildNode { process, node, memory: Descriptor(told), readable }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a child has a number");
        kill_process(pid, signal).expect("it is our child");
    }

    /// Stops every thread of it, and waits until they are.
    fn stop(&self) {
        self.signal(Signal::STOP);
        Shm::default().until("the child is stopped", &mut || {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("it exists");
            tasks.flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        });
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn shm_writes_and_reads_complete_while_the_targets_process_is_stopped() {
    let mut h = Shm::default();
    let parent = h.node(1);
    let mut child = ChildNode::start(&parent, &unique_name());
    parent.write(&child.node, &child.memory, 0, b"the first write asks for the file", 0);
    h.until("the first write completes", &mut || parent.completed(&child.node, 0));
    child.stop();
    let bytes = pattern(MEMORY_BYTES, 5);
    for op in 1..=256u64 {
        let at = (op as usize - 1) * 4096;
        parent.write(&child.node, &child.memory, at as u64, &bytes[at..at + 4096], op);
        assert_eq!(parent.outcome(op), Some(LinkEvent::Completed { op }), "complete as soon as it is flushed");
    }
    parent.fabric.read(child.node.id, &child.memory, 0, MEMORY_BYTES as u32, 1000);
    parent.fabric.flush();
    assert!(parent.outcome(1000) == Some(LinkEvent::ReadDone { op: 1000, bytes: bytes.clone() }));
    child.signal(Signal::CONT);
    drop(child.process.stdin.take());
    h.until("the child tells what it sees", &mut || parent.messages(&child.node).len() == 2);
    assert!(parent.messages(&child.node)[1] == bytes);
    assert_eq!(parent.downs(&child.node), 0);
}

#[test]
fn shm_reads_what_a_stopped_owner_holds_and_survives_its_death() {
    let mut h = Shm::default();
    let parent = h.node(1);
    let child = ChildNode::start(&parent, &unique_name());
    let (peer, mut bytes) = (child.node.id, vec![0; MEMORY_BYTES]);
    assert_eq!(parent.fabric.read_now(peer, &child.readable, 0, &mut bytes), ReadNow::NotMapped);
    parent.fabric.read(peer, &child.readable, 0, 8, 0);
    parent.fabric.flush();
    h.until("the first read ends", &mut || parent.outcome(0).is_some());
    child.stop();
    let mut read = || {
        bytes.fill(0);
        let outcome = parent.fabric.read_now(peer, &child.readable, 0, &mut bytes);
        assert!(outcome == ReadNow::NotMapped || bytes == readable_bytes());
        outcome
    };
    assert_eq!(read(), ReadNow::Copied);
    child.signal(Signal::KILL);
    h.until("the link is down", &mut || {
        assert_ne!(read(), ReadNow::Refused, "nobody has revoked it");
        parent.downs(&child.node) == 1
    });
    h.until("nothing is mapped", &mut || read() == ReadNow::NotMapped);
}

#[test]
fn shm_leaves_nothing_behind_a_killed_process_and_connects_to_its_successor() {
    let mut h = Shm::default();
    let (parent, name) = (h.node(1), unique_name());
    for incarnation in 1..=3 {
        let child = ChildNode::start(&parent, &name);
        parent.write(&child.node, &child.memory, 0, &pattern(4096, incarnation), u64::from(incarnation));
        h.until("a write completes", &mut || parent.completed(&child.node, u64::from(incarnation)));
        let pid = child.process.id();
        child.signal(Signal::KILL);
        h.until("the link is down", &mut || parent.downs(&child.node) == usize::from(incarnation));
        drop(child);
        let left = fs::read_dir("/dev/shm").map_or(0, |files| {
            files.flatten().filter(|file| file.file_name().to_string_lossy().contains("leeward")).count()
        });
        assert_eq!(left, 0, "files in /dev/shm after process {pid}");
    }
}

#[test]
fn shm_unmaps_what_its_owner_revoked_dropped_or_took_to_its_grave() {
    let mut h = Shm::default();
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
    let lens = [31, 33, 35, 37].map(|pages| pages * 4096);
    let [dropped, revoked, fresh, last] = lens.map(|len| b.fabric.allocate(len).expect("there is memory"));
    for (op, memory) in [&dropped, &revoked, &last].into_iter().enumerate() {
        a.write(&b, &memory.descriptor(), 0, &[1; 64], op as u64);
        h.until("it completes", &mut || a.completed(&b, op as u64));
    }
    assert_eq!(lens.map(mapped), [2, 2, 1, 2], "by the owner, and by the peer if it wrote");
    drop(dropped);
    revoked.revoke();
    a.write(&b, &fresh.descriptor(), 0, &[1; 64], 10);
    h.until("it completes", &mut || a.completed(&b, 10));
    assert_eq!(lens.map(mapped), [0, 1, 2, 2], "swept when another memory is mapped");
    drop((revoked, fresh, last));
    h.kill(b);
    h.until("nothing is mapped", &mut || lens.map(mapped) == [0; 4]);
}

#[test]
fn tcp_writes_complete_while_every_application_thread_of_the_target_is_blocked() {
    let gate = Arc::new(Gate::default());
    let (queue, inbox) = mpsc::channel();
    let sink: Sink = Arc::new(move |peer, event| {
        let _ = queue.send((peer, event));
    });
    let target = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options(), sink).expect("a port is free");
    // The application's only thread takes one event and then blocks.
    let blocked = Arc::clone(&gate);
    let application = thread::spawn(move || {
        let mut messages = 0;
        while let Ok((_, event)) = inbox.recv() {
            blocked.pass();
            messages += usize::from(matches!(event, LinkEvent::Message(_)));
            if messages == 2 {
                return;
            }
        }
    });
    let memory = target.allocate(MEMORY_BYTES).expect("there is memory");
    let a = connect(1, &*target);
    a.fabric.send(PeerId(2), b"this one blocks the application");
    a.fabric.flush();
    let bytes = pattern(MEMORY_BYTES, 7);
    for op in 0..256u64 {
        let at = op as usize * 4096;
        a.fabric.write(PeerId(2), &memory.descriptor(), op * 4096, &bytes[at..at + 4096], op);
    }
    a.fabric.send(PeerId(2), b"this one waits behind it");
    a.fabric.flush();
    await_outcomes(&a, 256);
    assert!(bytes_of(&*memory, 0, MEMORY_BYTES) == bytes);
    assert!(!application.is_finished(), "the application did not move");
    gate.open();
    application.join().expect("it takes both messages");
}

#[test]
fn tcp_a_sink_that_hangs_in_one_peers_message_does_not_hold_up_another_peers_writes() {
    let gate = Arc::new(Gate::default());
    let blocked = Arc::clone(&gate);
    let sink: Sink = Arc::new(move |_, event| {
        if matches!(event, LinkEvent::Message(_)) {
            blocked.pass();
        }
    });
    let target = TcpFabric::bind(PeerId(2), "127.0.0.1:0", options(), sink).expect("a port is free");
    let memory = target.allocate(MEMORY_BYTES).expect("there is memory");
    let (a, c) = (connect(1, &*target), connect(3, &*target));
    c.fabric.send(PeerId(2), b"hangs");
    c.fabric.flush();
    for op in 0..100 {
        a.fabric.write(PeerId(2), &memory.descriptor(), op * 64, &[op as u8; 64], op);
        a.fabric.flush();
    }
    await_outcomes(&a, 100);
    gate.open();
}

/// A node with a link to `target`, which is peer 2.
fn connect(id: u32, target: &dyn Fabric) -> Node {
    let (log, sink) = recorder();
    let fabric = TcpFabric::bind(PeerId(id), "127.0.0.1:0", options(), sink).expect("a port is free");
    fabric.connect(PeerId(2), &target.local_address());
    let deadline = Instant::now() + TIMEOUT;
    while log.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "not connected");
        thread::sleep(Duration::from_millis(1));
    }
    Node { id: PeerId(id), fabric, log }
}

/// Waits until operations 0 to `ops` are completed.
fn await_outcomes(node: &Node, ops: u64) {
    let deadline = Instant::now() + TIMEOUT;
    while !(0..ops).all(|op| node.outcome(op) == Some(LinkEvent::Completed { op })) {
        assert!(Instant::now() < deadline, "writes did not complete");
        thread::sleep(Duration::from_millis(1));
    }
}
