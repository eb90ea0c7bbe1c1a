//! Nodes with many regions keep to their memory budget, mirror buffers and ship slots included: the test samples the
//! memory of the processes while all of their regions are written to. Data that arrives in mirror buffers between two
//! checks of a node is in no budget (docs/open.md), and a node that gets no CPU time checks late. So the lowest sample
//! of two seconds counts, and it may exceed the budget by a fifth.

use crate::running::{Dev, Resp};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Keys that one command sets.
const BATCH: usize = 50;
/// Time between two samples of a process's memory; and the number of samples in a row of which the lowest counts.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: usize = 100;

/// Memory of a process in bytes, without the page cache.
fn memory_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the node runs");
    let kib = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("the kernel tells");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    };
    (kib("RssAnon") + kib("RssShmem")) << 10
}

/// Writes to every region, by way of the node that listens there.
fn fill(port: u16, regions: usize, batches: usize) {
    let mut client = Resp::connect(port);
    assert_eq!(client.call(&["SELECT", "many"]), "+OK");
    let values = ["x".repeat(20), "y".repeat(500), "z".repeat(2_500)];
    for batch in 0..batches {
        let number = |i: usize| batch * BATCH + i;
        let keys: Vec<String> =
            (0..BATCH).map(|i| format!("k{:04}-{port}-{:08}", number(i) * 7 % regions, number(i))).collect();
        let pairs = keys.iter().zip(values.iter().cycle().skip(batch));
        let args = std::iter::once("MSET").chain(pairs.flat_map(|(key, value)| [key.as_str(), value]));
        assert_eq!(client.call(&args.collect::<Vec<_>>()), "+OK");
    }
}

fn keeps_to_the_budget(regions: usize, budget: u64, batches: usize) {
    let dev = Dev::start(3, &["--set", &format!("memory_budget={budget}")]);
    let before: Vec<u64> = dev.pids.iter().map(|pid| memory_bytes(*pid)).collect();
    let splits: Vec<String> = (1..regions).map(|region| format!("k{region:04}")).collect();
    let made = dev.leeward(&["table", "create", "many", "--split-at", &splits.join(",")]);
    assert!(made.contains(&format!("{regions} regions")), "{made}");
    let pids = &dev.pids;
    let mut looks: Vec<Vec<u64>> = vec![Vec::new(); pids.len()];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for ((pid, before), looks) in pids.iter().zip(&before).zip(&mut looks) {
                    looks.push(memory_bytes(*pid).saturating_sub(*before));
                }
                std::thread::sleep(LOOK);
            }
        });
        let ports = (1..=3).map(|node| dev.resp(node));
        let clients: Vec<_> = ports.map(|port| scope.spawn(move || fill(port, regions, batches))).collect();
        clients.into_iter().for_each(|client| client.join().expect("every write is answered"));
        done.store(true, Ordering::Relaxed);
        watch.join().expect("it ends");
    });
    for (node, looks) in looks.iter().enumerate() {
        let lowest = |looks: &[u64]| looks.iter().copied().min().unwrap_or_default();
        let peak = looks.windows(LOOKS.min(looks.len())).map(lowest).max().unwrap_or_default();
        println!("node {}: {} KiB of {} KiB", node + 1, peak >> 10, budget >> 10);
        assert!(peak <= budget / 10 * 12, "node {}: {} KiB of a budget of {} KiB", node + 1, peak >> 10, budget >> 10);
    }
    dev.stop();
}

#[test]
fn many_regions_keep_to_the_budget_of_memory() {
    keeps_to_the_budget(200, 32 << 20, 400);
}

#[test]
#[ignore = "some minutes; docs/operations.md has the command"]
fn a_thousand_regions_keep_to_the_budget_of_memory() {
    keeps_to_the_budget(1000, 128 << 20, 4_000);
}
