//! `leeward restart` against real processes.

use crate::running::{Dev, pid_of};
use leeward_client::{Client, ClientOptions};
use std::sync::atomic::{AtomicBool, Ordering};

/// Servers of the cluster.
const NODES: u32 = 3;

#[test]
fn a_cluster_is_restarted_without_a_failed_request() {
    let mut dev = Dev::start(NODES, &["--restart"]);
    let seeds: Vec<String> = (1..=NODES).map(|node| format!("127.0.0.1:{}", dev.resp(node) + 100)).collect();
    let is_over = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            let client = Client::connect(&seeds, ClientOptions::default()).expect("the cluster answers");
            let mut counted = 0;
            while !is_over.load(Ordering::Relaxed) {
                counted += 1;
                assert_eq!(client.add("counter", 1).expect("no request fails"), counted);
                client.put(format!("key{counted}"), "value").expect("no request fails");
            }
            counted
        });
        let text = dev.leeward(&["restart", "--command", "kill $LEEWARD_PID"]);
        assert_eq!(text.matches("restarted, and all regions are whole").count(), NODES as usize, "{text}");
        is_over.store(true, Ordering::Relaxed);
        counting.join().expect("no request fails")
    });
    assert!(counted > 0);
    assert_eq!(dev.leeward(&["get", "counter"]), format!("{counted}\n"));
    for _ in 1..=NODES {
        let line = dev.wait_for_line("started again (pid");
        dev.pids.push(pid_of(&line));
    }
    dev.stop();
}
