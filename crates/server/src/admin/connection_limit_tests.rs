//! The admin port against too many clients, and clients that send nothing or too little; and against a correct one.

use super::*;
use axum::Router;
use axum::routing::get;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream as Client;
use std::sync::mpsc::{Receiver, channel};
use tokio::sync::oneshot;

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(20);

/// A port that answers "ok\n" at `/`, until dropped.
struct Port {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: Receiver<()>,
}

impl Port {
    fn open(timeout: Duration) -> Port {
        let (addresses, address) = channel();
        let (ending, ended) = channel();
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                addresses.send(listener.local_addr().expect("it is bound")).expect("the test waits for it");
                let router = Router::new().route("/", get(async || "ok\n"));
                let served = axum::serve(ConnectionLimit::new(listener, None, timeout), router);
                tokio::select! {
                    served = served.into_future() => served.expect("it serves"),
                    _ = stopped => {}
                }
            });
            drop(ending);
        });
        Port { address: address.recv_timeout(LONG).expect("it listens"), stop: Some(stop), ended }
    }

    fn connect(&self) -> Client {
        let client = Client::connect(self.address).expect("it listens");
        client.set_read_timeout(Some(LONG)).expect("a time limit");
        client
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.stop = None;
        // Closed, not sent to.
        assert!(self.ended.recv_timeout(LONG).is_err());
    }
}

/// A request on a connection that stays open.
fn ask(client: &mut Client) -> String {
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("it is taken");
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"ok\n") {
        assert_eq!(client.read(&mut byte).expect("an answer"), 1, "{}", String::from_utf8_lossy(&answer));
        answer.push(byte[0]);
    }
    String::from_utf8(answer).expect("text")
}

/// Whether the other end closed the connection before the time limit.
fn is_closed(client: &mut Client) -> bool {
    match client.read(&mut [0; 16]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn who_sends_nothing_or_too_little_is_disconnected() {
    let port = Port::open(Duration::from_millis(200));
    let (mut silent, mut slow) = (port.connect(), port.connect());
    slow.write_all(b"GET / HT").expect("it is taken");
    assert!(is_closed(&mut silent) && is_closed(&mut slow));
    let mut good = port.connect();
    assert!(ask(&mut good).starts_with("HTTP/1.1 200"));
    assert!(is_closed(&mut good), "one that asks nothing more does not keep its place");
}

#[test]
fn bytes_that_trickle_in_do_not_keep_a_connection() {
    let port = Port::open(Duration::from_millis(300));
    let mut slow = port.connect();
    slow.set_read_timeout(Some(Duration::from_millis(20))).expect("a time limit");
    let begun = std::time::Instant::now();
    let mut request = b"GET /".to_vec();
    request.resize(10_000, b'x');
    let closed = request.iter().find(|byte| slow.write_all(&[**byte]).is_err() || is_closed(&mut slow));
    assert!(closed.is_some() && begun.elapsed() < LONG, "it is given up");
}

#[test]
fn too_many_wait_until_there_is_room() {
    let port = Port::open(LONG);
    let mut sessions: Vec<Client> = (0..MOST_SESSIONS).map(|_| port.connect()).collect();
    for session in &mut sessions {
        assert!(ask(session).starts_with("HTTP/1.1 200"));
    }
    let mut one_more = port.connect();
    one_more.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("the kernel queues it");
    one_more.set_read_timeout(Some(Duration::from_millis(100))).expect("a time limit");
    let early = one_more.read(&mut [0; 16]).expect_err("the node does not answer it");
    assert!(matches!(early.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{early}");
    sessions.pop();
    one_more.set_read_timeout(Some(LONG)).expect("a time limit");
    assert!(one_more.read(&mut [0; 16]).expect("an answer") > 0);
}
