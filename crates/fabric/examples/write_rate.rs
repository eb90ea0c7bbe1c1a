//! Measures how fast one process writes the memory of another: 64 B and 4 KiB, over TCP, shared memory, and libfabric's
//! tcp and shm providers if libfabric is installed.
//!
//! `cargo run --release -p leeward-fabric --example write_rate [SECONDS]` starts itself a second time as the target.
//! For each transport and size it keeps a window of writes in flight, and flushes after every batch, as a server does
//! after every turn of its loop. Then it sends one write at a time to measure latency. The first write of a link,
//! posted half a second after it is up, is timed by itself. Where memory is shared, it also measures a read of 64 B in
//! the caller's thread. Machines are noisy: compare only rows of one run.

use leeward_fabric::{
    Descriptor, Fabric, LibfabricFabric, LinkEvent, LinkOptions, PeerId, Provider, ReadNow, ReadableDescriptor,
    ShmFabric, Sink, TcpFabric,
};
use std::{
    env, io,
    io::Read,
    process::{Command, Stdio, id},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

const WRITER: PeerId = PeerId(1);
const TARGET: PeerId = PeerId(2);
const MEMORY_BYTES: usize = 2 << 20;
const BATCH: u64 = 64;
const WINDOW: u64 = 1024;

type Bound = (Arc<dyn Fabric>, mpsc::Receiver<LinkEvent>);

fn main() -> io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    if let [_, role, transport, address, writer] = &arguments[..]
        && role == "target"
    {
        return target(transport, address, writer);
    }
    let seconds = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let span = Duration::from_secs_f64(seconds);
    println!("{:<13} {:>7} {:>14} {:>10} {:>12} {:>10}", "", "bytes", "writes/s", "MB/s", "latency us", "first ms");
    for transport in ["tcp", "shm", "libfabric-tcp", "libfabric-shm"] {
        match measure(transport, span) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => println!("{transport:<13} {error}"),
            measured => measured?,
        }
    }
    Ok(())
}

fn bind(transport: &str, me: PeerId, address: &str) -> io::Result<Bound> {
    let (queue, events) = mpsc::channel();
    let sink: Sink = Arc::new(move |_, event| {
        // The receiver is gone when the measurement is over.
        let _ = queue.send(event);
    });
    let options = LinkOptions::default();
    let fabric: Arc<dyn Fabric> = match transport {
        "tcp" => TcpFabric::bind(me, address, options, sink)?,
        "shm" => ShmFabric::bind(me, address, options, sink)?,
        "libfabric-tcp" => LibfabricFabric::bind(me, address, Provider::Tcp, options, sink)?,
        _ => LibfabricFabric::bind(me, address, Provider::Shm, options, sink)?,
    };
    Ok((fabric, events))
}

/// Registers memory, tells the writer, and sleeps until its input ends.
fn target(transport: &str, address: &str, writer: &str) -> io::Result<()> {
    let (fabric, events) = bind(transport, TARGET, address)?;
    let (memory, readable) = (fabric.allocate(MEMORY_BYTES)?, fabric.allocate_readable(MEMORY_BYTES)?);
    readable.write(0, &vec![7; MEMORY_BYTES]);
    fabric.connect(WRITER, writer);
    while !matches!(events.recv(), Ok(LinkEvent::Up) | Err(_)) {}
    fabric.send(WRITER, &memory.descriptor().0);
    fabric.send(WRITER, &readable.descriptor().0);
    // So that the writer knows where to connect, also if the port was chosen by the system.
    fabric.send(WRITER, fabric.local_address().as_bytes());
    fabric.flush();
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn measure(transport: &str, span: Duration) -> io::Result<()> {
    let names = ["127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()];
    let [own, other] =
        if transport == "shm" { [1, 2].map(|node| format!("@leeward-write-rate-{}-{node}", id())) } else { names };
    let (fabric, events) = bind(transport, WRITER, &own)?;
    let mut child = Command::new(env::current_exe()?)
        .args(["target", transport, &other, &fabric.local_address()])
        .stdin(Stdio::piped())
        .spawn()?;
    let mut messages = events.iter().filter_map(|event| match event {
        LinkEvent::Message(bytes) => Some(bytes),
        _ => None,
    });
    let ended = || io::Error::other("the target ended");
    let memory = Descriptor(messages.next().ok_or_else(ended)?);
    let readable = ReadableDescriptor(messages.next().ok_or_else(ended)?);
    let address = String::from_utf8(messages.next().ok_or_else(ended)?).map_err(io::Error::other)?;
    fabric.connect(TARGET, &address);
    while !matches!(events.recv(), Ok(LinkEvent::Up) | Err(_)) {}
    // Gives the provider time to connect.
    thread::sleep(Duration::from_millis(500));
    let mut first = format!("{:.1}", first_write(&*fabric, &events, &memory).as_secs_f64() * 1e3);
    for bytes in [64, 4096] {
        let rate = rate(&*fabric, &events, &memory, bytes, span);
        let latency = latency(&*fabric, &events, &memory, bytes, span / 4);
        println!(
            "{transport:<13} {bytes:>7} {rate:>14.0} {:>10.0} {:>12.2} {:>10}",
            rate * bytes as f64 / 1e6,
            latency.as_secs_f64() * 1e6,
            std::mem::take(&mut first)
        );
    }
    if let Some(time) = read_now(&*fabric, &events, &readable, span / 4) {
        println!("{transport:<13} {:>7} read in the caller's thread in {} ns", 64, time.as_nanos());
    }
    drop(child.stdin.take());
    child.wait()?;
    Ok(())
}

/// Time from the post of the first write of a link, of more than a word, to its completion.
fn first_write(fabric: &dyn Fabric, events: &mpsc::Receiver<LinkEvent>, to: &Descriptor) -> Duration {
    let begin = Instant::now();
    fabric.write(TARGET, to, 0, &[7; 64], 0);
    fabric.flush();
    while !is_completion(&events.recv().expect("the fabric lives")) {}
    begin.elapsed()
}

/// Writes per second with a window of them in flight.
fn rate(fabric: &dyn Fabric, events: &mpsc::Receiver<LinkEvent>, to: &Descriptor, bytes: usize, span: Duration) -> f64 {
    let payload = vec![7; bytes];
    let places = (MEMORY_BYTES / bytes) as u64;
    let (mut posted, mut completed) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < span || completed < posted {
        if begin.elapsed() < span && posted - completed < WINDOW {
            for op in posted..posted + BATCH {
                fabric.write(TARGET, to, (op % places) * bytes as u64, &payload, op);
            }
            fabric.flush();
            posted += BATCH;
        } else {
            completed += u64::from(is_completion(&events.recv().expect("the fabric lives")));
        }
        completed += events.try_iter().filter(is_completion).count() as u64;
    }
    completed as f64 / begin.elapsed().as_secs_f64()
}

/// Mean time from the post of a lone write to its completion.
fn latency(
    fabric: &dyn Fabric,
    events: &mpsc::Receiver<LinkEvent>,
    to: &Descriptor,
    bytes: usize,
    span: Duration,
) -> Duration {
    let payload = vec![7; bytes];
    let (mut writes, begin) = (0, Instant::now());
    while begin.elapsed() < span {
        fabric.write(TARGET, to, 0, &payload, 0);
        fabric.flush();
        while !is_completion(&events.recv().expect("the fabric lives")) {}
        writes += 1;
        thread::yield_now();
    }
    begin.elapsed() / writes.max(1)
}

/// Mean time of a read of 64 B in this thread; `None` if the memory is not shared.
fn read_now(
    fabric: &dyn Fabric,
    events: &mpsc::Receiver<LinkEvent>,
    from: &ReadableDescriptor,
    span: Duration,
) -> Option<Duration> {
    // The first read maps the memory.
    fabric.read(TARGET, from, 0, 64, 0);
    fabric.flush();
    while !matches!(events.recv().expect("the fabric lives"), LinkEvent::ReadDone { .. }) {}
    let (mut reads, mut bytes, begin) = (0, [0; 64], Instant::now());
    while begin.elapsed() < span {
        for place in 0..BATCH {
            match fabric.read_now(TARGET, from, place * 4096, &mut bytes) {
                ReadNow::Copied => reads += 1,
                ReadNow::NotMapped => return None,
                ReadNow::Refused => panic!("the target does not let it read"),
            }
        }
    }
    Some(begin.elapsed() / reads.max(1))
}

fn is_completion(event: &LinkEvent) -> bool {
    match event {
        LinkEvent::Completed { .. } => true,
        LinkEvent::Down | LinkEvent::Refused { .. } => panic!("the target does not take what is written"),
        LinkEvent::Up | LinkEvent::Message(_) | LinkEvent::ReadDone { .. } => false,
    }
}
